"""What a call costs the host is told as medians of rounds; the part in C builds, and runs on a driver that
stands in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_c_source import LINKED, build, objects, sources, table
from test_core import STRICT

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import host_cost  # noqa: E402
from host_cost import TimedCall  # noqa: E402

assert sources and table and objects  # fixtures of the other file


def test_each_call_is_timed_in_each_round_and_the_first_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cost, "NUM_ROUNDS", 3)
    order: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        order.append("on")
        yield
        order.append("off")

    calls = {
        "one": TimedCall(lambda: order.append("one"), "one"),
        "two": TimedCall(lambda: order.append("two"), "one", around=around),
    }
    found = host_cost.times_us(calls, lambda: order.append("waits"))
    assert {name: len(times) for name, times in found.items()} == {"one": 3, "two": 3}
    one, two = ([name, "waits", *[name] * host_cost.NUM_CALLS] for name in ("one", "two"))
    assert order == [*[*one, "on", *two, "off"] * 4, "waits"]


def test_ratios_are_those_of_the_rounds() -> None:
    found = {
        "torch.mm(out=)": [10.0, 20.0, 30.0],
        "sgemm(out=)": [5.0, 8.0, 3.0],
        "torch.mm": [4.0] * 3,
        "sgemm": [3.0] * 3,
    }
    bars = {"sgemm(out=)": 0.45}
    calls = {name: TimedCall(list, name.replace("sgemm", "torch.mm"), bars.get(name)) for name in found}
    assert host_cost.rows(64, calls, found) == [
        ["64: torch.mm(out=)", "20.00", "1.000", ""],
        ["64: sgemm(out=)", "5.00", "0.400", "0.45"],
        ["64: torch.mm", "4.00", "1.000", ""],
        ["64: sgemm", "3.00", "0.750", ""],
    ]


@pytest.mark.stress
def test_the_program_in_c_tells_two_times(sources: Path, objects: Path, tmp_path: Path) -> None:
    build(sources, tmp_path, objects)  # and the driver that stands in
    own = [str(path) for path in sorted(sources.glob("*.c")) if path.name != "example.c"]
    own += [str(BENCHMARKS / "host_cost.c"), str(sources / "cubins.S"), "-o", str(tmp_path / "host_cost")]
    strict = [flag for flag in STRICT if flag != "-pedantic"]  # it takes functions from dlsym
    include = (f"-I{sources}", f"-Wa,-I{sources}")
    subprocess.run(["gcc", "-O2", "-std=gnu11", *strict, *include, *own, *LINKED], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "AUTOTUNE_CUBLAS": "0"}
    command = [str(tmp_path / "host_cost"), "8", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    call_us, launch_us = map(float, done.stdout.split())
    assert 0 < launch_us < call_us
