"""benchmarks/untuned.py: a shape's own trials say nothing to the table that is asked for it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from table_cases import ENVIRONMENT, LIMITS
from test_export import FakeCompiler

from autotune.errors import UsageError
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.gemm import Gemm
from autotune.kernel import families, template
from autotune.store import Store

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import untuned
import vs_itself

TILE = families.LARGE[0]
SHAPES = {"4096": 2600.0, "4096x4096x4160": 2640.0, "35x700x2048": 300.0}  # of one tile


def results(*names: str) -> TunedResults:
    """A winner of its own for each; in the trials of all."""
    winners, shapes = [replace(TILE, group=2**number) for number in range(len(names))], []
    for name, winner in zip(names, winners, strict=True):
        times = tuple((other, SHAPES[name] * (1 if other == winner else 1.02)) for other in winners)
        shapes.append(TunedShape(Gemm.parse(name), (TunedPoint(winner, SHAPES[name], True),), times))
    return TunedResults(ENVIRONMENT, LIMITS, template.source_hash(), "cold", 1, tuple(shapes))


def test_a_shape_is_served_by_the_trials_of_others(tmp_path):
    found = list(untuned.choices(results(*SHAPES), FakeCompiler(arch="sm_90")))
    assert [choice.shape.gemm for choice in found] == [Gemm.parse(name) for name in SHAPES]
    assert {choice.pick.how for choice in found} == {"modelled"}
    square, deeper, _ = found
    for choice in (square, deeper):  # by the times of the other
        assert choice.pick.expected_us == pytest.approx(choice.best_us, rel=0.05)
    own = {choice.shape.gemm: choice.shape.ranked[0].config for choice in found}
    assert all(choice.config != own[choice.shape.gemm] for choice in found)
    path = tmp_path / "chosen.json"
    path.write_text(json.dumps({"shapes": [untuned.facts(choice) for choice in found]}), encoding="utf-8")
    assert vs_itself.from_json(str(path)) == {choice.shape.gemm: choice.config for choice in found}


def test_a_time_is_that_of_the_same_config_on_that_shape():
    for choice in untuned.choices(results("4096", "4096x4096x4160"), FakeCompiler(arch="sm_90")):
        assert choice.time_us == pytest.approx(1.02 * choice.best_us)  # the other's winner
        assert str(choice.shape.gemm) in untuned.text({"shapes": [untuned.facts(choice)]})


def test_one_shape_alone_leaves_nothing_to_choose_by():
    with pytest.raises(UsageError, match="two shapes or more"):
        next(untuned.choices(results("4096"), FakeCompiler(arch="sm_90")))


def test_a_database_of_another_gpu_is_refused(tmp_path):
    path = tmp_path / "empty.db"
    Store.open(path).close()
    with pytest.raises(UsageError, match="no trials on NVIDIA H200"):
        untuned.read(str(path), LIMITS)
