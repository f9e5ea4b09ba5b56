"""What a line leaves out where it is too narrow, and what never happens to a number."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import console
from autotune.cli.search import Painter
from autotune.gemm import Gemm
from autotune.measurement import Measurement, Outcome
from autotune.search.progress import Best, TrialDone

LARGE = Gemm(65536, 65536, 65536, trans_b=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _event(gemm: Gemm, best: Best | None, left_s: float | None) -> TrialDone:
    measured = Measurement(Outcome.OK, time_us=best.time_us if best else None)
    counts = {"num_done": 12_345, "num_failed": 1_234, "num_total": 12_345}
    return TrialDone(
        gemm, "", {}, "", measured, True, best, elapsed_s=1.0, left_s=left_s, trials_per_s=10.4, **counts
    )


def _live_line(monkeypatch: pytest.MonkeyPatch, columns: int, event: TrialDone) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    Painter(console.Progress(terminal), is_quiet=False)(event)
    return terminal.getvalue().removeprefix("\r\x1b[K")


@pytest.mark.parametrize("gemm", [Gemm(4096, 4096, 4096), LARGE])
def test_at_80_columns_the_live_line_keeps_the_limit_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, gemm: Gemm
) -> None:
    event = _event(gemm, Best({}, 2651.2, 2704.3, 2105.0), 12_345.0)
    wide = _live_line(monkeypatch, 200, event)
    assert "12,345 trials  10.4/s  1,234 failed  best 2651 us  1.020x cuBLAS  79.4% of limit" in wide
    narrow = _live_line(monkeypatch, 80, event)
    assert len(narrow) < 80 and {"best 2651 us", "79.4% of limit", "3:25 h left"} <= set(narrow.split("  "))
    kept = [_live_line(monkeypatch, columns, event).split("  ") for columns in range(200, 13, -1)]
    assert [len(parts) for parts in kept] == sorted((len(parts) for parts in kept), reverse=True)
    assert all(set(parts) <= set(wide.split("  ")) for parts in kept)
    assert kept[-1] == ["best 2651 us"]


def test_before_anything_ran_there_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "12,345 trials" in _live_line(monkeypatch, 80, _event(LARGE, None, None))


PARTS = st.lists(st.text("0123456789.x% ", min_size=1, max_size=30), min_size=1, max_size=9)


@given(PARTS, st.integers(1, 120), st.randoms())
def test_a_line_fits_and_holds_whole_words_only(parts: list[str], width: int, random) -> None:
    least_first = random.sample(range(len(parts)), random.randint(0, len(parts)))
    text = console.fitted(parts, least_first, width)
    assert len(text) <= width
    assert set(text.split()) <= set(console.GAP.join(parts).split())


def test_without_a_terminal_nothing_is_left_out() -> None:
    log = io.StringIO()
    progress = console.Progress(log)
    progress._written_at = float("-inf")
    progress.update(*("x" * 100,) * 3, least_first=(0, 1))
    assert log.getvalue() == "  ".join(["x" * 100] * 3) + "\n"
