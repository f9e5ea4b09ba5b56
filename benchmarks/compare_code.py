"""Checks whether two sources of the template give the same machine code, as after changes of names and
comments.

    python benchmarks/compare_code.py --against REVISION [--num 200] [--seed 1] [--where order!=row]
        [--no-bias] [--jobs 2] [--write]

REVISION is a git revision, or a folder that holds the other text. Needs no GPU. Kernels drawn by the seed
(drawn.py) are compiled from both texts; `--where` leaves out what the other text cannot say, `--no-bias`
kernels that add a bias, of which there are no trials. For each pair
it compares all sections of code and constants byte for byte, and ptxas's report: registers, spills, stack,
shared memory. Exits 1 if any differs.

With `--write`, and if all are the same, it is recorded in kernels/same_code.json that results of the other
text count for this one (autotune/kernel/same_code.py).
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import reports
from drawn import DEVICES, Drawn, spread

from autotune.cli import console
from autotune.files.errors import TrialFailure, UsageError
from autotune.kernel import identity, machine_code, same_code, template
from autotune.kernel.compiler import Compiler, Cubin, compiler_version
from autotune.kernel.where import Where

_REPORTED = ("registers", "spill_bytes", "stack_bytes", "static_smem_bytes")


@dataclass(frozen=True)
class Record:
    """A line of kernels/same_code.json: this many kernels of two sources were compiled to the same code."""

    family: str
    source_hash: str
    same_as: str
    kernels: int
    architectures: tuple[str, ...]
    compiler: str
    date: str


def main() -> None:
    reports.run(_run, _arguments())


def _run(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        other = folder_of(args.against, Path(scratch))
        texts = template.source(folder=other), template.source()
        hashes = template.source_hash(folder=other), template.source_hash()
    drawn = spread(args.num, args.seed, Where.parse(args.where))
    drawn = [one for one in drawn if not args.no_bias or one.variant.epilogue.bias == "none"]
    found = compare(drawn, *texts, args.jobs)
    for one, what in found.items():
        console.show(f"{one}: {what}")
    archs = tuple(arch for arch in DEVICES if any(one.arch == arch for one in drawn))
    console.show(
        f"{len(drawn) - len(found)} of {len(drawn)} kernels for {', '.join(archs)} are the same code"
        f" ({hashes[0][:12]} in {args.against}, {hashes[1][:12]} here, {compiler_version()})"
    )
    if found:
        sys.exit(1)
    if args.write:
        today = datetime.now(UTC).date().isoformat()
        record = Record(identity.FAMILY, hashes[1], hashes[0], len(drawn), archs, compiler_version(), today)
        console.show(keep(record, same_code.record_file()))


def folder_of(against: str, scratch: Path) -> Path:
    """The folder of the other text: one that is named, or `kernels/` of a revision, unpacked."""
    if (Path(against) / template.MAIN_FILE).is_file():
        return Path(against)
    command = ("git", "archive", "--format=tar", against, "kernels")
    repository = Path(__file__).resolve().parents[1]
    packed = subprocess.run(command, cwd=repository, capture_output=True, check=False)
    if packed.returncode:
        raise UsageError(
            f"{against} is neither a folder with {template.MAIN_FILE} nor a git revision"
            f" ({packed.stderr.decode().strip()}); name one of them"
        )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "kernels"


def compare(drawn: Sequence[Drawn], first: str, second: str, jobs: int) -> dict[Drawn, str]:
    """The kernels whose code is not the same in both texts, and what differs. One that does not compile
    counts as different, too: nothing is known of it."""
    found = {}
    with ThreadPoolExecutor(jobs) as pool:
        for arch, group in groupby(sorted(drawn, key=lambda one: one.arch), lambda one: one.arch):
            those = list(group)
            with closing(Compiler(arch, num_threads=jobs, timeout_s=300.0, note=console.note)) as compiler:
                message = pool.map(lambda one, c=compiler: difference(c, one, first, second), those)
                found.update({one: what for one, what in zip(those, message, strict=True) if what})
            console.note(f"{arch}: {len(those)} kernels compared")
    return found


def difference(compiler: Compiler, drawn: Drawn, first: str, second: str) -> str:
    """What differs between a kernel of one text and of the other; "" if nothing does."""
    macros = template.macros(drawn.config, drawn.variant)
    try:
        one, other = (compiler.compile_source(text, macros) for text in (first, second))
    except TrialFailure as failure:
        return f"does not compile: {failure}"
    return difference_of(one, other)


def difference_of(one: Cubin, other: Cubin) -> str:
    """What differs in the sections of two cubins that are compared, and in ptxas's report."""
    first, second = _compared(one), _compared(other)
    if first.keys() != second.keys():
        return f"the sections are {', '.join(sorted(first))} and {', '.join(sorted(second))}"
    message = [
        f"{name}, {first[name][0]} and {second[name][0]} bytes"
        for name in first
        if first[name] != second[name]
    ]
    figures = [(name, getattr(one, name), getattr(other, name)) for name in _REPORTED]
    return "; ".join([*message, *(f"{name} {a} and {b}" for name, a, b in figures if a != b)])


def _compared(cubin: Cubin) -> dict[str, tuple[int, bytes]]:
    """Length and content."""
    found = machine_code.sections(cubin.code)
    return {name: one[1:] for name, one in found.items() if name.startswith(machine_code.COMPARED)}


def keep(record: Record, path: Path) -> str:
    """Adds a record to the file, in place of an older one of the same two sources. Returns what was done."""
    if record.source_hash == record.same_as:
        return "Both texts have one hash: there is nothing to record."
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    pair = (record.family, record.source_hash, record.same_as)
    others = [one for one in records if (one["family"], one["source_hash"], one["same_as"]) != pair]
    path.write_text(json.dumps([*others, asdict(record)], indent=1) + "\n", encoding="utf-8")
    return f"Recorded in {path}."


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, metavar="REVISION", help="or a folder")
    parser.add_argument("--num", type=int, default=200, help="kernels to compile (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="decides which (default: 1)")
    parser.add_argument("--where", default="", help="conditions, as of `search`: order!=row; default: none")
    parser.add_argument("--no-bias", action="store_true", help="leave out kernels with a bias")
    parser.add_argument("--jobs", type=int, default=2, help="threads that compile (default: 2)")
    parser.add_argument("--write", action="store_true", help="record it in kernels/same_code.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
