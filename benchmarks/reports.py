"""What benchmarks share: how they begin, what a report of a race holds, where it is kept, its tables."""

from __future__ import annotations

import json
import lzma
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contest import Arena

from autotune.cli import common, console
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import POLICY_VERSION
from autotune.files.errors import AutotuneError, UsageError
from autotune.files.output_file import write_file
from autotune.kernel import template


def run(benchmark: Callable[[Namespace], None], arguments: Namespace) -> None:
    """A script from end to end: an error that a person can mend is told as the command line does."""
    try:
        benchmark(arguments)
    except AutotuneError as error:
        console.fail(error)
        sys.exit(error.exit_code)


def named_shapes(shapes: Sequence[str] | None, suite: Path | None) -> tuple[Gemm, ...]:
    """Of `--shape` and `--suite`, each once. Raises UsageError."""
    return common.read_shapes(shapes or (), common.read_calls([suite] if suite else [])[0])


def identity(arena: Arena, benchmark: str, rounds: int, **more: Any) -> dict[str, Any]:
    """A report without results: all that its numbers mean nothing without, and what is `more`."""
    return {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": arena.environment.to_dict(),
        "source_hash": template.source_hash(),
        "policy": arena.policy,
        "policy_version": POLICY_VERSION,
        "num_rounds": rounds,
        **more,
        "shapes": [],
    }


def keep(out: Path | None, report: dict[str, Any]) -> None:
    """Write a report as far as it is, if it is to be written; one whose name ends with .xz is compressed. A
    file of before stays whole until the new one is."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report, indent=1, default=str) + "\n"
        write_file(out, lzma.compress(text.encode(), preset=1) if out.suffix == ".xz" else text)


def read(path: Path, benchmark: str) -> dict[str, Any]:
    """A report that `keep` wrote. Raises UsageError for what is none of this benchmark."""
    try:
        data = path.read_bytes()
        report = json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
        if report["benchmark"] == benchmark:
            return dict(report)
        reason = f"it is of {report['benchmark']}"
    except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        reason = repr(error)
    raise UsageError(f"{path} holds no report of {benchmark} ({reason}); name another file")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table: each row has a cell per header; all columns but the first are numbers."""
    rule = ["---", *["--:"] * (len(headers) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headers, rule, *rows)]
