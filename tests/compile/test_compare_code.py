"""benchmarks/compare_code.py: changes of code are found, those of text are not; sameness is recorded."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import UsageError
from autotune.kernel import template
from autotune.kernel.config import PARAMETER, PARAMETERS, Config
from autotune.kernel.launch import ACTIVATIONS, BIASES, PLAIN, Epilogue, Variant
from autotune.kernel.rules import broken_rules

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import compare_code
import drawn
from drawn import Drawn

REPOSITORY = Path(__file__).parents[2]
SMALL = Config(bm=16, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, unroll_k=8, bursts=1, stages=2, min_blocks=1)
KERNELS = [
    Drawn(
        "sm_75", Config.from_dict(SMALL.to_dict() | {"copy_a": "register", "copy_b": "register"}), Variant()
    ),
    Drawn("sm_90", Config.from_dict(SMALL.to_dict() | {"reduction": "two_pass", "split_k": 2}), Variant()),
]
EPILOGUE = Drawn("sm_90", KERNELS[1].config, Variant(is_batched=True, epilogue=Epilogue("rows", "gelu")))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the module, apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def text(tmp_path: Path) -> Iterator[Path]:
    """A copy of the template, to be changed."""
    folder = tmp_path / "other"
    folder.mkdir()
    for path in template.kernel_dir().glob("*.cu*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change(folder: Path, old: str, new: str) -> None:
    """In the one file where it stands."""
    (path,) = (path for path in folder.glob("*.cuh") if old in path.read_text())
    path.write_text(path.read_text().replace(old, new))


def compared(folder: Path) -> dict[Drawn, str]:
    return compare_code.compare(
        KERNELS, template.source(template.MAIN_FILE, folder), template.source(), jobs=1
    )


def test_names_and_comments_change_no_code(text: Path) -> None:
    for path in text.glob("*.cu*"):
        path.write_text("// another word\n" + path.read_text().replace("is_wanted", "is_asked_for"))
    assert template.source_hash(template.MAIN_FILE, text) != template.source_hash()
    assert compared(text) == {}


def test_a_planted_difference_is_found_in_the_kernels_that_have_it(text: Path) -> None:
    change(text, "scale * product.v[e]", "scale * product.v[e] + 1.0f")
    found = compared(text)
    assert found.keys() == set(KERNELS)
    assert ".text.sgemm," in found[KERNELS[0]]
    assert ".text.sgemm_reduce," in found[KERNELS[1]] and ".text.sgemm," not in found[KERNELS[1]]


def test_a_difference_in_an_epilogue_is_found_in_kernels_that_have_one(text: Path) -> None:
    change(text, "0.5f * x * (1 + erff", "x * (0.5f + 0.5f * erff")
    texts = template.source(template.MAIN_FILE, text), template.source()
    found = compare_code.compare([*KERNELS, EPILOGUE], *texts, jobs=1)
    assert found.keys() == {EPILOGUE}


def test_an_entry_that_is_missing_is_a_difference(text: Path) -> None:
    change(text, "sgemm_reduce(", "sgemm_add(")
    assert {one: "sections" in what for one, what in compared(text).items()} == {KERNELS[1]: True}


def test_a_text_that_does_not_compile_is_not_the_same(text: Path) -> None:
    change(text, "scale * product.v[e]", "scale * products.v[e]")
    assert all("does not compile" in what for what in compared(text).values())
    assert len(compared(text)) == len(KERNELS)


@pytest.mark.stress
def test_the_script_exits_1_and_records_nothing_where_code_differs(text: Path) -> None:
    change(text, "scale * product.v[e]", "scale * product.v[e] + 1.0f")
    command = (sys.executable, "benchmarks/compare_code.py", "--against", text, "--num", "4", "--write")
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert re.search("[0-3] of 4 kernels", done.stdout) and "Recorded" not in done.stdout


def test_sameness_is_recorded_once_per_pair(tmp_path: Path) -> None:
    path = tmp_path / "same_code.json"
    record = compare_code.Record(
        "sgemm", "b" * 64, "a" * 64, 200, ("sm_75", "sm_90"), "nvrtc 13.5", "2026-11-22"
    )
    other = compare_code.Record(
        "sgemm", "c" * 64, "a" * 64, 200, ("sm_75", "sm_90"), "nvrtc 13.5", "2026-11-22"
    )
    for one in (record, other, record):
        compare_code.keep(one, path)
    assert [(one["source_hash"][0], one["same_as"][0]) for one in json.loads(path.read_text())] == [
        ("c", "a"), ("b", "a"),
    ]  # fmt: skip
    assert json.loads(path.read_text())[1] == {
        "family": "sgemm", "source_hash": "b" * 64, "same_as": "a" * 64, "kernels": 200,
        "architectures": ["sm_75", "sm_90"], "compiler": "nvrtc 13.5", "date": "2026-11-22",
    }  # fmt: skip


def test_one_hash_is_nothing_to_record(tmp_path: Path) -> None:
    record = compare_code.Record("sgemm", "a" * 64, "a" * 64, 200, ("sm_75",), "nvrtc 13.5", "2026-11-22")
    assert "nothing to record" in compare_code.keep(record, tmp_path / "same_code.json")
    assert not (tmp_path / "same_code.json").exists()


def test_what_is_neither_a_folder_nor_a_revision_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nor a git revision"):
        compare_code.folder_of("no-such-revision", tmp_path)


def test_the_text_of_a_revision_is_unpacked(tmp_path: Path) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("no git checkout")
    assert (compare_code.folder_of("HEAD", tmp_path) / template.MAIN_FILE).is_file()


@pytest.mark.stress
def test_drawn_kernels_are_legal_and_show_every_value() -> None:
    kernels = drawn.spread(200, seed=1)
    assert len(set(kernels)) == 200
    for one in kernels:
        gemm = Gemm(4096, 4096, 4096, one.variant.trans_a, one.variant.trans_b)
        assert broken_rules(one.config, drawn.DEVICES[one.arch], gemm) == (), one
    for parameter in PARAMETERS:
        if parameter.name != "split_k":  # known at launch
            assert {getattr(one.config, parameter.name) for one in kernels} == set(parameter.values)
    clusters = {one.config.split_k for one in kernels if one.config.reduction == "cluster"}
    assert clusters == {2, 4, 8}
    assert {one.variant.is_wide for one in kernels} == {False, True}
    ends = {(one.config.reduction, one.variant.is_batched) for one in kernels}
    assert ends == set(itertools.product(PARAMETER["reduction"].values, (False, True)))
    epilogues = [one.variant.epilogue for one in kernels]
    assert {epilogue.bias for epilogue in epilogues} == set(BIASES)
    assert {epilogue.keeps for epilogue in epilogues} == {False, True}
    activated = {(one.config.reduction, one.variant.epilogue.activation) for one in kernels}
    assert activated == set(itertools.product(PARAMETER["reduction"].values, ACTIVATIONS))
    assert len(kernels) / 3 < sum(epilogue == PLAIN for epilogue in epilogues) < len(kernels) * 2 / 3
    assert len({(one.arch, one.layout) for one in kernels}) == len(drawn.DEVICES) * len(LAYOUTS)


def test_the_seed_decides_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "_NUM_DRAWS", 300)
    assert drawn.spread(40, seed=1) == drawn.spread(40, seed=1) != drawn.spread(40, seed=2)
