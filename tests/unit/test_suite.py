"""Suites are read as they are written, and what is none is refused with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.suite import MOST_CALLS, epilogues_of, read_calls, read_suite

SUITES = Path(__file__).resolve().parents[2] / "studies" / "suites"
SHAPE = "[[shape]]\nm = 4\nn = 5\nk = 6\n"


def _suite(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_suite_holds_its_shapes_once_and_in_order(tmp_path: Path) -> None:
    text = f'{SHAPE}{SHAPE}layout = "NT"\n{SHAPE}kind = "again"\n[[shape]]\nm = 0\nn = 1\nk = 2\n'
    assert [str(g) for g in read_suite(_suite(tmp_path, text))] == ["4x5x6:NN", "4x5x6:NT", "0x1x2:NN"]


@pytest.mark.parametrize("layout", ["nn", "nt", "Tn", "TT"])
def test_a_layout_is_read_as_on_the_command_line(tmp_path: Path, layout: str) -> None:
    assert read_suite(_suite(tmp_path, f"{SHAPE}layout = '{layout}'")) == {
        Gemm.parse(f"4x5x6:{layout}"): None
    }


def test_a_batch_and_what_it_shares_are_read(tmp_path: Path) -> None:
    text = f'{SHAPE}batch = 1\n{SHAPE}batch = 32\n{SHAPE}batch = 32\nshared = "b"\nlayout = "NT"\n'
    assert [str(g) for g in read_suite(_suite(tmp_path, text))] == [
        "4x5x6:NN",
        "4x5x6b32:NN",
        "4x5x6b32:NT:shared-b",
    ]


def test_a_suite_may_say_what_it_is(tmp_path: Path) -> None:
    text = f"name = 'mine'\nnotes = 'of my model'\n{SHAPE}name = 'head'\nnotes = 'the last layer'\n"
    assert read_suite(_suite(tmp_path, text)) == {Gemm(4, 5, 6): None}


def test_a_suite_may_say_which_epilogues_calls_ask_for(tmp_path: Path) -> None:
    text = f"{SHAPE}epilogue = 'bias'\n{SHAPE}epilogue = 'bias-gelu'\n{SHAPE}"
    calls = read_calls(_suite(tmp_path, text)).calls
    assert len(calls) == 3 and epilogues_of(calls) == {Gemm(4, 5, 6): ("bias", "bias-gelu")}
    assert read_suite(_suite(tmp_path, text)) == {Gemm(4, 5, 6): None}


def test_calls_of_a_shape_are_added_up(tmp_path: Path) -> None:
    text = f"{SHAPE}count = 7\n{SHAPE}layout = 'NT'\ncount = 1\n{SHAPE}count = {MOST_CALLS}\n"
    assert list(read_suite(_suite(tmp_path, text)).items()) == [
        (Gemm(4, 5, 6), 7 + MOST_CALLS),
        (Gemm(4, 5, 6, trans_b=True), 1),
    ]


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_suites_that_ship_are_read(path: Path) -> None:
    assert len(read_suite(path)) == len(tomllib.loads(path.read_text(encoding="utf-8"))["shape"])


PROGRAMS = ("moe-routers", "lm-heads", "gaussian-processes", "interatomic-potentials", "policies")


@pytest.mark.parametrize("name", PROGRAMS)
def test_suites_of_programs_say_what_each_shape_is_and_how_often_it_is_called(name: str) -> None:
    path = SUITES / f"{name}.toml"
    text = path.read_text(encoding="utf-8")
    rows = tomllib.loads(text)["shape"]
    assert (
        len({row["name"] for row in rows}) == len(rows)
        and "https://" in text
        and "count" in text.split("shape = [")[0]
    )
    assert all(count and gemm.num_bytes < 2**32 for gemm, count in read_suite(path).items())


def test_suites_of_programs_hold_what_is_requested_for() -> None:
    """Sizes that such programs are known to have, and a vocabulary, a width, a batch at either end."""
    routers, heads, gp, potentials, policies = (set(read_suite(SUITES / f"{name}.toml")) for name in PROGRAMS)
    sizes = {(3072, 256), (6144, 128), (6144, 256), (4096, 192), (2688, 128), (7168, 256)}
    for k, n in sizes:
        tokens = {gemm.m for gemm in routers if (gemm.k, gemm.n, gemm.layout) == (k, n, "NT")}
        assert {1, 2, 3, 4, 8, 32, 512, 8192} <= tokens
    assert {(gemm.k, gemm.n) for gemm in routers} == sizes
    forwards = [gemm for gemm in heads if gemm.layout == "NT"]
    assert {gemm.m for gemm in forwards} >= {1, 2, 3, 2048} and max(gemm.m for gemm in forwards) == 2048
    assert {min(g.n for g in forwards), max(g.n for g in forwards)} == {32000, 151936}
    assert {min(g.k for g in forwards), max(g.k for g in forwards)} == {896, 4096}
    assert {Gemm(3000, 3000, 10, trans_b=True), Gemm(3000, 11, 3000), Gemm(4096, 3, 4096)} <= gp
    assert {(g.n, g.k) for g in potentials if g.layout == "NT"} >= {(128, 20), (64, 8)}
    assert {g.batch for g in potentials} == {1, 8}
    assert {Gemm(32, n, k, trans_b=True) for k, n in ((67, 256), (256, 256), (256, 21))} <= policies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no"),
        ("shape = []", "holds no"),
        ("[shape]\nm = 1", r"one table, \[shape\]"),
        ("shape = 5", "expected a list"),
        ("shape = [1]", "shape 1: expected a table"),
        ("[[shape]]\nm = 4\nn = 4\n", "shape 1: the key 'k' is missing"),
        (SHAPE + "[[shape]]\nm = 4.0\nn = 4\nk = 4", "shape 2: m is 4.0"),
        ("[[shape]]\nm = true\nn = 4\nk = 4", "shape 1: m is True"),
        ("[[shape]]\nm = '4'\nn = 4\nk = 4", "shape 1: m is '4'"),
        (SHAPE + "layout = 'XX'", "layout 'XX'"),
        (SHAPE + "epilogue = 'tanh'", "epilogue 'tanh' is none of bias, relu"),
        (SHAPE + "layout = ['N', 'T']", "layout"),
        (SHAPE + "batch = 0", "shape 1: batch is 0, expected a whole number of 1"),
        (f"{SHAPE}count = 2\n{SHAPE}", "shape 2: the key 'count' is missing, which others have"),
        (f"{SHAPE}{SHAPE}count = 2\n", "shape 1: the key 'count' is missing, which others have"),
        (SHAPE + "count = 0", "shape 1: count: expected a whole number from 1 to"),
        (SHAPE + "count = 2.0", "shape 1: count: expected a whole number from 1 to"),
        (SHAPE + "count = true", "shape 1: count: expected a whole number from 1 to"),
        (SHAPE + "count = " + "9" * 900, "shape 1: count: expected a whole number from 1 to"),
        (SHAPE + "batch = '2'", "shape 1: batch is '2', and not a whole number"),
        (SHAPE + "batch = 2\nshared = 'c'", "shape 1: shared 'c' is none of A, B"),
        (SHAPE + "batch = 2\nshared = true", "shape 1: shared True is none of A, B"),
        (SHAPE + "shared = 'a'", "shape 1: .* a single product shares no operand"),
        ("[[shape]]\nm = -4\nn = 4\nk = 4", "shape 1: m is -4, expected"),
        ("[[shape]\nm = 4", "write \\[\\[shape\\]\\] tables"),
        (SHAPE + "layuot = 'NT'", r"shape 1: unknown key 'layuot' \(did you mean 'layout'\?\)"),
        (SHAPE + "colour = 'red'", r"shape 1: unknown key 'colour' \(known are m, n, k, layout,"),
        ("[[shpae]]\nm = 4\n" + SHAPE, "at the top: unknown key 'shpae' .did you mean 'shape'"),
        ("[[shape]]\nm = 4\nn = 4\nk = " + "9" * 900, "[mk] is .*[.]{3}.*, expected"),
        ("[[shape]]\nm = 0x1" + "0" * 900 + "\nn = 4\nk = 4", "[mk] is .*[.]{3}.*, expected"),
        ("shape = " + "[" * 900 + "]" * 900, "line 1 has more than 1,000 characters"),
        ("shape = " + "[\n" * 90_000, "recursion"),
        ("shape = [" + "[" * 60 + "]" * 60 + "]", "shape 1: expected a table"),
        ("a." * 60_000 + "b = 1", "line 1 has more than 1,000 characters"),
        (f"# {'x' * 90}\n" * 3000, "holds more than 256 KiB"),
    ],
)
def test_a_bad_suite_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = _suite(tmp_path, text)
    with pytest.raises(UsageError, match=message) as rejected:
        read_suite(path)
    assert str(path) in str(rejected.value)
    assert len(str(rejected.value)) < 600 and "\n" not in str(rejected.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.toml", ".", "binary.toml"):
        with pytest.raises(UsageError, match="suite"):
            read_suite(tmp_path / name)
