"""What tables choose for shapes that they were not made with: each tuned shape is left out in turn.

    python benchmarks/untuned.py autotune.db [--gpu h200] --out chosen.json
    python benchmarks/vs_itself.py autotune.db chosen.json --suite studies/suites/dev.toml     on that GPU

The first needs no GPU: for each shape it exports a table without that shape's trials and asks it. What such a
choice takes is known only where a search tried the very same config, edges and vectors included, on the very
shape it had not; the second times all choices beside the best that a search found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import reports

from autotune import targets
from autotune.cli import common, console
from autotune.device import DeviceLimits, known_limits
from autotune.errors import UsageError
from autotune.export.cubins import KernelCompiler
from autotune.export.exporter import export_table
from autotune.export.from_store import read_results
from autotune.export.tuned import TunedResults, TunedShape
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.recording.matrix import TimeMatrix
from autotune.runtime.selector import Call, Pick, Selector
from autotune.runtime.table import load


@dataclass(frozen=True)
class Choice:
    """Of a table made without `shape`. `time_us`: what this config took there, if a search tried it."""

    shape: TunedShape
    config: Config
    pick: Pick
    time_us: float | None

    @property
    def best_us(self) -> float:
        return self.shape.ranked[0].time_us


def choices(
    results: TunedResults, compiler: KernelCompiler, matrices: Sequence[TimeMatrix] = ()
) -> Iterator[Choice]:
    """One per shape. Raises UsageError where there is only one, DispatchError as exports do."""
    if len(results.shapes) < 2:
        raise UsageError("a table without its only shape is empty; name a database of two shapes or more")
    for shape in results.shapes:
        others = tuple(other for other in results.shapes if other is not shape)
        with TemporaryDirectory() as folder:
            table = load(
                export_table(
                    replace(results, shapes=others), Path(folder) / "table", compiler, matrices=matrices
                )
            )
        selector = Selector(table)
        pick = selector.pick(Call.packed(shape.gemm))
        config = replace(selector.kernels[pick.kernel_id].config, split_k=pick.split_k)
        yield Choice(shape, config, pick, dict(shape.times).get(config))


def read(path: str, limits: DeviceLimits) -> TunedResults:
    """The newest results for such a GPU. Raises UsageError where the database has none."""
    with common.open_existing(path) as store:
        environment = next((e for e in store.environments() if e.gpu_name == limits.name), None)
        if environment is None:
            raise UsageError(f"{path} has no trials on {limits.name}; name another --gpu, or search first")
        return read_results(store, environment, limits)


def _run(args: argparse.Namespace) -> None:
    results = read(args.db, known_limits(args.gpu))
    report: dict[str, Any] = {
        "benchmark": "untuned",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": results.environment.to_dict(),
        "source_hash": results.source_hash,
        "shapes": [],
    }
    with closing(Compiler(results.limits.arch, num_threads=args.jobs, note=console.note)) as compiler:
        for choice in choices(results, compiler, targets.matrices()):
            report["shapes"].append(facts(choice))
            reports.keep(args.out, report)
    console.show(text(report))


def facts(choice: Choice) -> dict[str, Any]:
    return {
        "shape": str(choice.shape.gemm),
        "best_config": choice.config.to_dict(),  # as vs_itself.py reads it
        "how": choice.pick.how,
        "reason": choice.pick.reason,
        "expected_us": choice.pick.expected_us,
        "time_us": choice.time_us,
        "tuned_us": choice.best_us,
    }


def text(report: dict[str, Any]) -> str:
    headers = ["shape", "tile", "reduction", "expected", "measured", "tuned"]
    return str(console.table(headers, [_row(one) for one in report["shapes"]], right=range(3, 6)))


def _row(one: dict[str, Any]) -> list[object]:
    config = Config.from_dict(one["best_config"])
    splits = "" if config.reduction == "none" else f" {config.split_k}"
    times = (one["expected_us"], one["time_us"], one["tuned_us"])
    return [
        one["shape"],
        f"{config.bm}x{config.bn}x{config.bk}",
        f"{config.reduction}{splits}",
        *("-" if time_us is None else console.time_text(time_us) for time_us in times),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db", help="a database of a search over several shapes")
    parser.add_argument("--gpu", default="h200", help="the known GPU that it ran on (default: h200)")
    parser.add_argument("--jobs", type=int, default=2, help="threads that compile")
    parser.add_argument("--out", type=Path, help="JSON of the choices, for vs_itself.py")
    return parser.parse_args()


if __name__ == "__main__":
    reports.run(_run, _arguments())
