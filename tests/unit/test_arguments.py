"""Numbers of NumPy become Python's where they enter; what is no number is refused in the caller's words."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune import tuning
from autotune.facts.gemm import Gemm
from autotune.files import words
from autotune.files.errors import DispatchError, UsageError
from autotune.files.words import flag, number, whole
from autotune.kernel.config import Config
from autotune.kernel.where import MIB, Where
from autotune.runtime.calls.arrays import stream_handle
from autotune.search import Options
from autotune.search_policy import SearchPolicy
from autotune.target_finder import default_recording

WIDE = Gemm(100_000, 40_000, 70_000)  # whose bytes no int32 counts


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.array])
def test_a_shape_holds_numbers_of_python(kind: Any) -> None:
    gemm = Gemm(kind(WIDE.m), kind(WIDE.n), kind(WIDE.k), np.False_, 0, kind(3), np.True_)  # type: ignore[arg-type]
    assert gemm == Gemm(WIDE.m, WIDE.n, WIDE.k, batch=3, shares_a=True)
    assert {type(value) for name, value in vars(gemm).items() if name != "a_type"} == {int, bool}
    assert gemm.num_bytes == 4 * (WIDE.m * WIDE.k + 3 * (WIDE.k * WIDE.n + WIDE.m * WIDE.n))


@pytest.mark.parametrize(
    "value", ["4", 4.0, True, np.True_, None, [4], np.ones(2, int), np.float32(4), -1, 2**31], ids=repr
)
def test_what_is_no_extent_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"k is .*, expected a whole number of 0"):
        Gemm(4, 4, value)


@pytest.mark.parametrize("value", ["N", 2, None, np.ones(1), 1.0])
def test_a_flag_is_true_or_false(value: Any) -> None:
    with pytest.raises(UsageError, match=r"trans_b is a .*True or False"):
        Gemm(4, 4, 4, False, value)
    assert (flag("x", np.True_), flag("x", 0)) == (True, False)


def test_the_handle_of_a_stream_may_be_a_number_of_numpy() -> None:
    assert type(stream_handle(np.int64(7))) is int and stream_handle(np.uint64(2**40)) == 2**40
    with pytest.raises(DispatchError):
        stream_handle(True)


def test_numbers_have_bounds() -> None:
    assert type(number("x", np.float32(0.5))) is float and number("x", np.int8(3), 0, 3) == 3.0
    for wrong in (np.nan, np.inf, -0.1, "1", True, None, 1j):
        with pytest.raises(UsageError, match=r"x is .*, expected a number: at least 0, and finite"):
            number("x", wrong)
    with pytest.raises(UsageError, match="more than 0"):
        number("x", 0, is_above=True)
    with pytest.raises(UsageError, match="an endless number"):
        whole("x", 10**5000)


def test_records_that_are_stored_hold_numbers_of_python() -> None:
    options = Options(trials=np.int64(9), seconds=np.float32(2), seed=np.int16(7))  # type: ignore[arg-type]
    assert [type(x) for x in (options.trials, options.seconds, options.seed)] == [int, float, int]
    policy = SearchPolicy(num_seeds=np.int64(3), most_trial_s=np.float64(1.5))  # type: ignore[arg-type]
    assert json.loads(json.dumps(policy.to_dict()))["num_seeds"] == 3
    for config in (Config(bm=np.int64(32)), Config.from_dict({"bm": np.int32(32)})):  # type: ignore[arg-type]
        assert type(config.bm) is int and config == Config(bm=32)
    assert Where.parse((), np.float32(1.5)).max_workspace == 1.5 * MIB  # type: ignore[arg-type]


def test_a_search_requested_for_in_numbers_of_numpy_is_as_any_other(tmp_path: Path) -> None:
    """Its study was stored as blobs, which damaged it."""
    db = tmp_path / "a.db"
    found = autotune.tune(
        np.array([[512, 512, 16384]]), gpu=f"replay:{default_recording()}", db=db,
        trials=np.int64(4), seed=np.uint8(5), num_drawn=np.int64(0), max_error=np.float32(2),
        max_workspace=np.int64(100), policy=SearchPolicy(num_seeds=np.int64(2)), calls={},
    )  # fmt: skip
    with sqlite3.connect(db) as opened:
        types = opened.execute("SELECT typeof(m), typeof(n), typeof(k) FROM study").fetchall()
        assert types == [("integer",) * 3]
        assert opened.execute("SELECT typeof(seed) FROM search").fetchall() == [("integer",)]
    opened.close()
    assert len(found.trials[Gemm(512, 512, 16384)]) == 4


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (np.int64(64), [Gemm(64, 64, 64)]),
        (np.array(64), [Gemm(64, 64, 64)]),
        ([np.int32(64), (np.int64(1), 2, 3)], [Gemm(64, 64, 64), Gemm(1, 2, 3)]),
        ((np.int64(1), np.int64(2), np.int64(3)), [Gemm(1, 2, 3)]),
        (np.array([[1, 2, 3], [4, 5, 6]]), [Gemm(1, 2, 3), Gemm(4, 5, 6)]),
        ((8, 9), [Gemm(8, 8, 8), Gemm(9, 9, 9)]),
    ],
)
def test_shapes_are_read_however_their_numbers_are_stored(shapes: Any, expected: list[Gemm]) -> None:
    assert list(tuning.read_shapes(shapes)) == expected


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"sampler": "x"}, "sampler 'x' is unknown"),
    ({"trials": 0}, "trials is 0, expected a whole number of 1"),
    ({"trials": 1.5}, "trials is 1.5, expected a whole number"),
    ({"seed": -1}, "seed is -1, expected a whole number of 0"),
    ({"seconds": "9"}, "seconds is '9', expected a number: more than 0"),
    ({"max_error": -1.0}, "max_error is -1.0, expected a number"),
    ({"max_workspace": "64"}, "max_workspace is '64', expected a number: at least 0"),
    ({"num_drawn": 1.5}, "num_drawn is 1.5, expected a whole number"),
    ({"num_drawn": 2, "gpu": "replay"}, r"drawn \(num_drawn\) for a GPU"),
    ({"calls": {64: 0}}, "calls is 0, expected a whole number of 1"),
    ({"cache": "hot"}, "cache is 'hot'; say 'cold' or 'warm'"),
    ({"where": "bm"}, "where 'bm': write conditions"),
    ({"gpu": 1.5}, "gpu is 1.5, expected a whole number"),
    ({"gpu": "rtx-4090"}, "gpu rtx-4090 names a GPU model"),
    ({"gpu": "rtx4090"}, "gpu rtx4090 names a GPU model"),
    ({"db": None}, "db is None; name a file"),
    ({"seconds": 10**400}, r"seconds is 1000.*, expected a number: more than 0"),
    ({"max_error": 10**400}, r"max_error is 1000.*, expected a number"),
    ({"where": 5}, "where is or holds 5, expected a text or several"),
    ({"where": ["bm=64", b"bn=64"]}, "where is or holds b'bn=64', expected a text"),
    ({"calls": [1]}, r"calls is \[1\], expected a dict by shape"),
    ({"order": 5}, "order 5: write chain"),
    ({"policy": {"num_startup": 30}}, r"policy is \{'num_startup': 30\}; pass one as SearchPolicy"),
    ({"on_event": 5}, r"on_event is or holds \(5,\), expected what can be called"),
    ({"callbacks": 5}, "callbacks is or holds 5, expected what can be called"),
    ({"callbacks": [print, None]}, "callbacks is or holds .*, expected what can be called"),
    ({"shapes": None}, "shape None: write 4096"),
    ({"shapes": True}, "m is True, expected a whole number"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=[text for _, text in WRONG])
def test_a_function_answers_in_its_own_words(
    arguments: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments.get("gpu") == "replay":
        arguments = arguments | {"gpu": f"replay:{default_recording()}"}
    with pytest.raises(UsageError, match=text) as fault:
        autotune.tune(**{"shapes": 512, "trials": 1, "db": str(tmp_path / "a.db"), **arguments})
    assert "--" not in str(fault.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"epilogues": 5}, "epilogues is or holds 5, expected a text"),
        ({"epilogues": ["bias", 5]}, "epilogues is or holds 5, expected a text"),
        ({"called": {64: 5}}, "epilogues is or holds 5, expected a text"),
        ({"called": [1]}, r"called is \[1\], expected a dict"),
        ({"calls": 7}, "calls is 7, expected a dict"),
        ({"where": 5}, "where is or holds 5"),
        ({"max_megabytes": 10**400}, "max_megabytes is 1000.*, expected a number"),
    ],
)
def test_an_export_answers_in_its_own_words(arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=text):
        autotune.export_table(tmp_path / "out", db=tmp_path / "a.db", **arguments)


def test_a_space_and_a_policy_answer_in_their_own_words() -> None:
    with pytest.raises(UsageError, match="where is or holds 5"):
        autotune.space(64, "rtx-4090", where=5)
    with pytest.raises(UsageError, match=r"num_drawn is 1000.*, and not finite"):
        autotune.SearchPolicy(num_drawn=10**400)


def test_a_space_of_a_kind_that_is_nearly_named_suggests_it() -> None:
    with pytest.raises(UsageError, match=r"gpu 'rtx4090' is no GPU .* \(did you mean 'rtx-4090'\?\)"):
        autotune.space(64, "rtx4090")
    assert autotune.space(64, "RTX-4090").num_points


@pytest.mark.parametrize("gpu", [0, np.int64(0), None])
def test_a_gpu_may_be_a_number_or_none(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def refuse(selector: str, *_: Any, **__: Any) -> None:
        requested.append(selector)
        raise UsageError("seen")

    monkeypatch.setattr(tuning.targets, "open_target", refuse)
    with pytest.raises(UsageError, match="seen"):
        autotune.tune([4096], gpu=gpu)
    assert requested == ["auto" if gpu is None else "0"]


def test_a_command_names_options_and_a_function_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (words.option("num_drawn"), words.command("search")) == ("num_drawn", "`autotune.tune`")
    monkeypatch.setattr(words, "_is_command_line", True)
    assert (words.option("num_drawn"), words.option("max_error")) == ("--any", "--max-error")
    assert words.command("search", " --shape 1") == "`autotune search --shape 1`"
