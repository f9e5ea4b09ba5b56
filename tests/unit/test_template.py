"""The CUDA source is found, joined into one text, and given the macros that it expects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.files.errors import EnvironmentProblem
from autotune.kernel import template
from autotune.kernel.config import PARAMETER, Config
from autotune.kernel.launch import Variant

CONFIGS = st.builds(Config, **{name: st.sampled_from(p.values) for name, p in PARAMETER.items()})
VARIANTS = st.builds(Variant, *[st.booleans()] * 4)
FILES = sorted(path.name for path in template.kernel_dir().glob("*.cu*"))


@given(CONFIGS, VARIANTS)
def test_macros_are_the_values_and_the_ranks_of_words(config: Config, variant: Variant) -> None:
    macros = template.macros(config, variant)
    assert (macros["TRANS_A"], macros["TRANS_B"], macros["WIDE"]) == (
        variant.trans_a,
        variant.trans_b,
        variant.is_wide,
    )
    for name, parameter in PARAMETER.items():
        if name in template.LAUNCHED:
            continue
        value = getattr(config, name)
        found = macros[name.upper()]
        assert type(found) is int
        assert (parameter.values[found] if isinstance(value, str) else found) == value


@pytest.mark.parametrize("name", ["copy", "edges", "order"])
def test_words_have_the_rank_that_the_kernel_gives_them(name: str) -> None:
    parameter = PARAMETER.get(name) or PARAMETER[f"{name}_a"]
    expected = [f"{name}_{value}".upper() for value in parameter.values]
    found = re.findall(r"enum \{\s+([^}]*?)\s+\};", template.source())
    listed = [re.split(r",\s+", re.sub(r" = \d+", "", names)) for names in found]
    assert expected in listed


def test_reductions_are_macros_with_the_rank_of_their_words() -> None:
    found = re.findall(r"#define REDUCTION_(\w+) (\d+)", template.source())
    words = PARAMETER["reduction"].values
    assert found == [(str(word).upper(), str(rank)) for rank, word in enumerate(words)]


def test_no_word_is_compared_by_its_number() -> None:
    """What `REDUCTION == 4` means stands in a table; `REDUCTION == REDUCTION_CLUSTER` says it."""
    words = "|".join(name.upper() for name, p in PARAMETER.items() if isinstance(p.values[0], str))
    assert re.findall(rf"\b({words}) *[!=]= *\d", template.source()) == []


def test_the_joined_source_holds_every_file_once() -> None:
    text = template.source()
    assert "#pragma once" not in text
    assert re.findall(r'#include "(.*)"', text) == ["primitives_host.hpp"], "only the host's twin stays out"
    on_tensor_cores, mma, scaled, halves = map(
        template.source, ("tensor_sgemm.cu", "mma_sgemm.cu", "scaled_sgemm.cu", "halves_sgemm.cu")
    )
    of = {
        "tensor": (on_tensor_cores,),
        "mma": (mma,),
        "scaled": (scaled,),
        "halves": (halves,),
        "warpgroups.cuh": (on_tensor_cores, scaled),
        "bits.cuh": (on_tensor_cores, mma, scaled, halves),
    }
    for name in FILES:
        if name.endswith(".cuh"):
            opening = (template.kernel_dir() / name).read_text(encoding="utf-8").splitlines()[0]
            texts = of.get(name.partition("_")[0], (text,))
            assert [one.count(opening) for one in texts] == [1] * len(texts), name


def test_a_source_has_one_hash() -> None:
    hashes = {template.source_hash(name) for name in FILES if name.endswith(".cu")}
    assert len(hashes) == sum(name.endswith(".cu") for name in FILES)
    assert all(re.fullmatch("[0-9a-f]{64}", found) for found in hashes)


def test_a_change_in_an_included_file_changes_the_hash_and_a_comment_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes((template.kernel_dir() / name).read_bytes())
    before = template.source_hash()
    monkeypatch.setattr(template, "kernel_dir", lambda: tmp_path)
    monkeypatch.setattr(template, "source", template.source.__wrapped__)
    assert template.source_hash.__wrapped__() == before
    with (tmp_path / "primitives.cuh").open("a") as file:
        file.write("\n  // said otherwise\n")
    assert template.source_hash.__wrapped__() == before
    with (tmp_path / "primitives.cuh").open("a") as file:
        file.write("static_assert(true);\n")
    assert template.source_hash.__wrapped__() != before


def test_a_package_without_its_kernels_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "__file__", str(tmp_path / "autotune" / "kernel/template.py"))
    with pytest.raises(EnvironmentProblem, match="reinstall autotune"):
        template.kernel_dir.__wrapped__()


@pytest.mark.parametrize("inside", [True, False], ids=["wheel", "checkout"])
def test_kernels_are_found_inside_the_package_and_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    package = tmp_path / "autotune"
    folder = (package if inside else tmp_path) / "kernels"
    folder.mkdir(parents=True)
    (folder / template.MAIN_FILE).touch()
    monkeypatch.setattr(template, "__file__", str(package / "kernel/template.py"))
    assert template.kernel_dir.__wrapped__() == folder
