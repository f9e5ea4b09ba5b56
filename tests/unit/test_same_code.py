"""Sources with the same code are one: in the store, for searches and exports. Others are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_target import FakeTarget
from hypothesis import given
from hypothesis import strategies as st
from same_code_record import know_as_same
from store_cases import COMPILER, H200, SQUARE, add, config, failed, ok, requested
from test_export import FakeCompiler, results

from autotune.export.exporter import export_table
from autotune.export.from_store import read_results
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.files.errors import DispatchError, EnvironmentProblem
from autotune.kernel import identity, same_code, template
from autotune.runtime.table.table import load
from autotune.search import Options, study_of, tune
from autotune.store import Known, Store, StudyRef
from autotune.target import point_key

OLD, MIDDLE, NEW, OTHER = (letter * 64 for letter in "0123")
GEMM = Gemm(64, 64, 64)


@pytest.fixture
def store(either_store: Store) -> Store:
    return either_store


def study(store: Store, source_hash: str, gemm: Gemm = SQUARE, **change: str) -> StudyRef:
    return store.study(replace(H200, **change), source_hash, COMPILER, gemm)


def times_of(store: Store, ref: StudyRef) -> dict[str, float | None]:
    return {trial.key: trial.measurement.time_us for trial in store.trials(ref)}


# ---- the record


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=9).map(tuple))
def test_classes_are_what_pairs_lead_to(numbers: tuple[tuple[int, int], ...]) -> None:
    pairs = [(str(one), str(other)) for one, other in numbers]
    classes = same_code._classes_of(pairs)
    reached = {one: {one} for pair in pairs for one in pair}
    for _ in pairs:
        for one, other in pairs:
            for known in reached.values():
                known |= {one, other} if known & {one, other} else set()
    assert {one: set(members) for one, members in classes.items()} == reached
    assert all(len(set(members)) == len(members) for members in classes.values())
    assert all(classes[members[0]] == members for members in classes.values()), "one order for all of a class"


@pytest.mark.parametrize("transposed", [1, -1])
def test_the_oldest_comes_first_in_whatever_order_pairs_stand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, transposed: int
) -> None:
    know_as_same(monkeypatch, tmp_path, *((MIDDLE, OLD), (NEW, MIDDLE))[::transposed])
    assert {same_code.kept_as(one) for one in (OLD, MIDDLE, NEW)} == {OLD}
    assert set(same_code.equivalents(NEW)) == {OLD, MIDDLE, NEW}
    assert same_code.equivalents(OTHER) == (OTHER,)
    assert same_code.is_same(NEW, MIDDLE) and not same_code.is_same(NEW, OTHER)


def test_pairs_of_another_family_join_nothing_of_this_one(tmp_path: Path) -> None:
    pairs = (("sgemm", NEW, OLD), ("sgemm_batched", MIDDLE, OTHER))
    path = tmp_path / "record.json"
    entries = [{"family": f, "source_hash": newer, "same_as": older} for f, newer, older in pairs]
    path.write_text(json.dumps(entries), encoding="utf-8")
    assert {frozenset(members) for members in same_code._classes(path).values()} == {
        frozenset((NEW, OLD)), frozenset((MIDDLE, OTHER)),
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{}", "[1]", "[{}]", '[{"family": "sgemm", "source_hash": "a"}]', "[" * 100_000,
        '[{"family": "sgemm", "source_hash": "a", "same_as": 1}]',
        '[{"family": "sgemm", "source_hash": "a", "same_as": "b", "sames": "c"}]',
    ],
)  # fmt: skip
def test_a_damaged_record_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "same_code.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EnvironmentProblem, match=r"same_code\.json cannot be read .*; reinstall autotune"):
        same_code._classes(path)
    with pytest.raises(EnvironmentProblem, match="absent"):
        same_code._classes(tmp_path / "absent.json")


def test_the_record_that_ships_is_of_known_families() -> None:
    entries = json.loads(same_code.record_file().read_text(encoding="utf-8"))
    assert {entry["family"] for entry in entries} <= {identity.FAMILY}
    hashes = [entry[name] for entry in entries for name in ("source_hash", "same_as")]
    assert all(re.fullmatch("[0-9a-f]{64}", found) for found in hashes)
    assert all(same_code.kept_as(found) in hashes for found in hashes)


# ---- the store


def test_a_study_of_an_equivalent_source_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = study(store, OLD)
    add(store, old, 0, ok(5.0))
    know_as_same(monkeypatch, tmp_path, (NEW, MIDDLE), (MIDDLE, OLD))
    assert study(store, NEW) == old == study(store, OLD), "who knows only the old text shares it, too"
    assert study(store, OTHER) != old
    assert len(store.studies()) == 2


def test_trials_of_all_equivalent_studies_become_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new, middle, other = (study(store, source) for source in (OLD, NEW, MIDDLE, OTHER))
    external = study(store, NEW, Gemm(8, 8, 8))
    other_compiler = store.study(H200, NEW, "nvrtc 13.5", SQUARE)
    add(store, old, 0, ok(5.0))
    for number, time_us in ((0, 6.0), (1, 4.0)):
        add(store, new, number, ok(time_us), "seed")
    add(store, middle, 1, ok(4.5))
    add(store, middle, 2, failed())
    for number, apart in enumerate((other, external, other_compiler), 3):
        add(store, apart, number, ok(1.0))
    know_as_same(monkeypatch, tmp_path, (NEW, OLD), (MIDDLE, OLD))
    for _ in range(2):  # copying again adds nothing
        assert study(store, NEW) == old
        keys = [config(number).key for number in range(3)]
        assert times_of(store, old) == {keys[0]: 5.0, keys[1]: 4.0, keys[2]: None}
    assert [trial.origin for trial in store.trials(old)] == ["tpe", "seed", "tpe"]
    assert store.trials(old)[1].measurement == ok(4.0)
    assert times_of(store, new) == {keys[0]: 6.0, keys[1]: 4.0}, "an older autotune goes on with its own"
    assert store.best(old)[0].key == keys[1]
    assert store.latest_studies(H200)[-1] == other_compiler, "what was copied is as old as it was"
    add(store, old, 6, ok(9.0))
    assert store.latest_studies(H200)[-1] == old


def test_what_other_gpus_and_shapes_know_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine, twin, similar = study(store, NEW), study(store, OLD, gpu_uuid="GPU-2"), study(store, OLD, GEMM)
    add(store, twin, 0, failed(Outcome.WRONG_RESULT))
    add(store, similar, 1, failed())
    key = config(0).key
    with store.claims() as claims:
        assert not claims.claim(mine, requested(0)).known and not store.crash_points(mine)
        assert not store.sibling_studies(mine) and not store.similar_studies(mine, 9)
    know_as_same(monkeypatch, tmp_path, (NEW, OLD))
    mine = study(store, NEW)
    assert [ref.id for ref in store.sibling_studies(mine) if ref.environment != H200] == [twin.id]
    assert store.similar_studies(mine, 9) == [similar]
    assert store.crash_points(mine) == [config(1).to_dict()]
    with store.claims() as claims, store.claims() as others:
        assert claims.claim(mine, requested(0)).known == {key: Known(None, False, "tpe")}
        assert others.claim(study(store, OLD, gpu_uuid="GPU-2"), requested(5)).owned
        assert not claims.given_up(mine, [config(5).key])


# ---- searches, exports


def test_a_search_goes_on_where_an_equivalent_kernel_was(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, now, apart = FakeTarget(), FakeTarget(), FakeTarget()
    before.source_hash, now.source_hash, apart.source_hash = MIDDLE, NEW, OTHER
    tune(before, store, [GEMM], Options(trials=20, seed=1))
    know_as_same(monkeypatch, tmp_path, (NEW, OLD), (MIDDLE, OLD))
    result = tune(now, store, [GEMM], Options(trials=30, seed=1))  # those of before count
    requested = [{point_key(point) for _, point in target.submitted} for target in (before, now)]
    assert len(requested[1]) == 10 and not requested[0] & requested[1]
    assert result.shapes[0].num_trials == 30
    best = store.best(study_of(store, now, GEMM))[0].measurement.time_us
    assert best == min(now._time_us(point) for target in (before, now) for _, point in target.submitted)
    assert tune(apart, store, [GEMM], Options(trials=10, seed=1)).shapes[0].num_trials == 10


def test_results_of_an_equivalent_kernel_are_exported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = template.source_hash()
    with Store.open(tmp_path / "a.db") as store:
        for source, gemm in ((OLD, SQUARE), (MIDDLE, GEMM)):
            add(store, study(store, source, gemm), 0, ok(5.0))
        limits = results().limits
        assert [shape.gemm for shape in read_results(store, H200, limits).shapes] == [GEMM]
        know_as_same(monkeypatch, tmp_path, (MIDDLE, OLD), (here, MIDDLE))
        found = read_results(store, H200, limits)
    assert [shape.gemm for shape in found.shapes] == [GEMM, SQUARE]
    table = load(export_table(found, tmp_path / "t", FakeCompiler()))
    assert table.source_hash == OLD, "of one class all tables say the same"


def test_results_of_a_kernel_that_is_not_equivalent_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    know_as_same(monkeypatch, tmp_path, (template.source_hash(), OLD))
    with pytest.raises(DispatchError) as rejected:
        export_table(results(source_hash=OTHER), tmp_path / "t", FakeCompiler())
    words = str(rejected.value)
    assert OTHER[:12] in words and template.source_hash()[:12] in words
    assert "nothing shows that both compile to the same code" in words
    assert "run `autotune.tune` again with this one, or export with the autotune that searched" in words
