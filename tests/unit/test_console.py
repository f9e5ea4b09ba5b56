"""What a line leaves out where it is too narrow, and what never happens to a number."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import console, trials
from autotune.cli.search import EventPrinter
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.files import words
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
    EventPrinter(console.Progress(terminal), is_quiet=False)(event)
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


def _on(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_terminal_width", lambda: columns)


def test_sentences_of_a_table_go_on_in_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one long row moves the last column of all beneath its row, as `doctor` had it at 80 columns."""
    rows = [("ok", "python", "3.11"), ("broken", "compiler", "NVRTC is not loaded: " + "no such file, " * 6)]
    _on(80, monkeypatch)
    lines = console.table(("state", "what", "found"), rows, ends_in_text=True).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == ["ok", "python", "3.11"]
    start = lines[3].index("NVRTC")
    assert len(lines) > 4 and all(line[:start].isspace() and line[start] != " " for line in lines[4:])
    _on(None, monkeypatch)  # a file
    assert len(console.table(("state", "what", "found"), rows, ends_in_text=True).splitlines()) == 4
    _on(40, monkeypatch)  # too narrow for sentences beside anything
    narrow = console.table(("state", "what", "found"), rows, ends_in_text=True)
    assert max(map(len, narrow.splitlines())) <= 40


@pytest.mark.parametrize(
    ("time_us", "message"),
    [(0.5, "0.500 us"), (4.2, "4.200 us"), (9999.4, "9999 us"), (25_350.0, "25.35 ms"), (2.535e7, "25.35 s")],
)
def test_a_time_has_no_exponent(time_us: float, message: str) -> None:
    assert console.time_text(time_us) == words.time_text(time_us) == message


@pytest.mark.parametrize(
    ("value", "message"), [(0.0123, "0.0123"), (12.3456, "12.35"), (12_345.6, "12,346"), (2.5e6, "2,500,000")]
)
def test_a_number_has_no_exponent(value: float, message: str) -> None:
    assert words.short(value) == message and console.seconds_text(value) == f"{message} s"


@pytest.mark.parametrize("number", [0, 1, 2, 1000])
def test_one_is_no_plural(number: int) -> None:
    assert words.counted(number, "trial") == f"{number:,} {'trial' if number == 1 else 'trials'}"
    assert words.counted(number, "study", "studies").endswith("study" if number == 1 else "studies")


def test_what_steers_a_terminal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console.sanitize("a\nb") == "a\nb"
    assert console.sanitize("\x1b[2J\x9b\r\t\x00\u202e") == r"\x1b[2J\x9b\r\t\x00\u202e"
    assert console.one_line("a\nb") == r"a\nb"
    assert console.sanitize("größer 行列") == "größer 行列"
    assert "\x1b" not in console.table(("a",), [["\x1b[1mx\n"]])


def test_a_terminal_obeys_what_is_painted_and_nothing_that_a_database_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console.show(console.with_style("a\x1b[0m", "red") + " \x1b[31mb\u061c")
    console.show_csv([{"c\x1b[1m": "d\x1b[31m"}], ["c\x1b[1m"])
    with_style, *rest = terminal.getvalue().splitlines()
    assert with_style == "\x1b[31m\x1b[1m" + r"a\x1b[0m" + "\x1b[0m" + r" \x1b[31mb\u061c"
    assert rest == [r"c\x1b[1m", r"d\x1b[31m"]


def test_a_run_takes_no_lines_but_its_own() -> None:
    facts = {"id": 1, "began_at": "then", "ended_at": None, "state": "not ended", "num_trials": None}
    facts |= dict.fromkeys(("login", "host", "command"), "x\ny")
    facts |= {
        "shapes": ["x\ny"],
        "environment": {"recorded_on": "", "gpu_name": "x\ny", "driver_version": "1"},
    }
    assert len(trials._text({**facts, "versions": {"x\ny": "1\n"}}).splitlines()) == 4


@given(st.text())
def test_no_text_steers_a_terminal(text: str) -> None:
    shown = console.sanitize(text)
    assert all(character == "\n" or unicodedata.category(character) != "Cc" for character in shown)
