"""The comparison with Nsight Compute, on a report that is simulated: what is read of it, and what is found
wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import counted_launch
import counts_vs_ncu
from counts_vs_ncu import METRICS, compare, read_metrics

HEAD = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
NUMBERS = range(len(counted_launch.KERNELS))


def fake(values: dict[str, float]) -> str:
    """A report as `ncu --csv` writes it, with lines of the tool and the program around it."""
    rows = [f'"0","sgemm","{name}","","{value:,.0f}"' for name, value in values.items()]
    return "\n".join(
        ["==PROF== Connected to process 7", HEAD, *rows, '"0","sgemm","no__such.sum","","n/a"', "done"]
    )


def expected(number: int) -> dict[str, float]:
    _, counts, wide = counted_launch.counted(number)
    return {metric.name: float(metric.expected(counts, wide)) for metric in METRICS}


@pytest.mark.every(5)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_report_is_read_and_agrees(number: int) -> None:
    name, counts, wide = counted_launch.counted(number)
    found = compare(name, counts, wide, read_metrics(fake(expected(number))))
    assert len(found) == len(METRICS)
    assert all(c.holds for c in found)
    assert name in counts_vs_ncu.table(found)


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_off_by_more_than_2_per_cent_is_told(number: int) -> None:
    name, counts, wide = counted_launch.counted(number)
    off = {m.name: m.expected(counts, wide) - 1.5 * m.tolerance(counts, wide) for m in METRICS}
    found = compare(name, counts, wide, off)
    assert all(c.holds == (c.tolerance == 0) for c in found)
    assert "NO" in counts_vs_ncu.table(found)


@pytest.mark.stress
def test_kernels_between_them_show_every_metric() -> None:
    """None of the metrics is 0 throughout: each is held against something."""
    sums = {metric.name: sum(expected(number)[metric.name] for number in NUMBERS) for metric in METRICS}
    never = {name for name, total in sums.items() if not total}
    assert never <= {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"}


def test_more_passes_of_copies_than_the_model_has_are_right() -> None:
    name, counts, wide = counted_launch.counted(0)
    copies = next(m for m in METRICS if m.relation == "at least")
    (found,) = compare(name, counts, wide, {copies.name: 3.0 * copies.expected(counts, wide)})
    assert found.holds
