"""benchmarks/any_shape.py from end to end, on a driver simulated by the host: launches of the runtime
race."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from host_driver import view
from test_checks import checks  # noqa: F401  # a fixture
from test_gpu_session import LIMITS, host  # noqa: F401  # a fixture among them
from test_vs_cublas import arena  # noqa: F401  # a fixture

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import any_shape
import any_shape_figures
import reports
import strided_errors
import table_arena
from any_shape import JudgedCall
from table_cases import FIGURES, FakeDriver, code_of, make_kernel, make_spec, make_table, write_table

from autotune.facts.gemm import FLOAT_BYTES, Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.files.errors import UsageError
from autotune.gpu.memory import OperandSet
from autotune.kernel.compiler import Cubin
from autotune.kernel.launch import Variant
from autotune.runtime.choose.chooser import Call
from autotune.runtime.launch.planner import Engine
from autotune.store import FinalEntry, Store

CALLS = [
    JudgedCall(Call.packed(Gemm(70, 60, 96)), "round"),
    JudgedCall(Call(Gemm(70, 60, 99), (101, 60, 61)), "odd leading dimensions"),
    JudgedCall(Call.packed(Gemm(33, 65, 41, trans_b=True)), "odd size"),
]
KERNELS = [
    make_kernel("a", make_spec("NN")),
    make_kernel("b", make_spec("NN", reduction="two_pass", split_k=2)),
    make_kernel("c", make_spec("NN", reduction="last_block", split_k=2), replace(FIGURES, step_us=0.4)),
    make_kernel("d", make_spec("NN", packs_a=True)),
]
BATCHED = [
    make_kernel(f"batched-{one.id}", replace(one.spec, variant=Variant(is_batched=True)), None)
    for one in KERNELS[:2]
]
TABLE = make_table(*KERNELS, *BATCHED)
BATCHES = [
    JudgedCall(Call.packed(Gemm(70, 60, 96, batch=5)), "round"),
    JudgedCall(Call.packed(Gemm(33, 130, 41, batch=3)), "odd size"),
    JudgedCall(Call.packed(Gemm(33, 65, 41, trans_b=True, batch=3)), "odd size"),
]
ALONE = replace(make_kernel("alone", make_spec("NN", group=8)), id="alone")
MORE_US = {"a": -20.0, "b": -50.0, "c": 400.0, "alone": -60.0}  # than cuBLAS's 100


class StridedCublas:
    """C = op(A) op(B) in float64, rounded, and a little off."""

    def __init__(self, host):  # noqa: F811
        self.host = host

    def sgemm(self, gemm, operands, lds=None):
        call = Call.packed(gemm) if gemm.is_batched or not lds else Call(gemm, lds)
        for product in range(gemm.batch):
            own = (
                address + FLOAT_BYTES * stride * product
                for address, stride in zip((operands.a, operands.b, operands.c), call.batch[1:], strict=True)
            )
            self.host.enqueue(partial(self._play, gemm, OperandSet(*own), call.lds))

    def _play(self, gemm, operands, lds):
        stored_a, stored_b, _ = table_arena.stored(gemm)
        a, b = view(operands.a, *stored_a, lds[0]), view(operands.b, *stored_b, lds[1])
        op_a, op_b = a.T if gemm.trans_a else a, b.T if gemm.trans_b else b
        c = view(operands.c, gemm.m, gemm.n, lds[2])
        c[:] = (op_a.astype(np.float64) @ op_b).astype(np.float32) * np.float32(1 + 2e-7)


@pytest.fixture
def simulated(arena, host, monkeypatch):  # noqa: F811
    """The runtime on the simulated driver: its launches are work of the GPU, done when a graph is
    replayed."""
    fake = FakeDriver(replace(TABLE, kernels=(*TABLE.kernels, ALONE)))
    fake.push_context(100)
    fake.memory = host.memory

    class FakeEngine(Engine):
        def plan_of(self, problem, gpu, pick, addresses=(0, 0, 0)):
            self.kernel_id = pick.kernel_id
            return super().plan_of(problem, gpu, pick, addresses)

        def launch_all(self, *launch):
            host.enqueue(partial(self._play, *launch))

        def _play(self, *launch):
            host.clock_us += MORE_US.get(self.kernel_id, 0.0)
            super().launch_all(*launch)

    def compiled(config, variant):
        assert config == ALONE.config
        return Cubin(code_of(ALONE), ALONE.sha256, "sm_90", "nvrtc 13.0", ALONE.registers, 0, 0, 0, 0.0)

    monkeypatch.setattr(table_arena, "Driver", lambda: fake)
    monkeypatch.setattr(table_arena, "Engine", FakeEngine)
    monkeypatch.setattr(arena.compiler, "compile", compiled)
    monkeypatch.setattr(any_shape, "Arena", lambda *rest, **options: arena)
    monkeypatch.setattr(any_shape, "find_gpu", lambda selector: SimpleNamespace(index=0))
    monkeypatch.setattr(any_shape, "device_limits", lambda index: LIMITS)
    monkeypatch.setattr(
        any_shape,
        "drawn_calls",
        lambda num, *rest, is_batched, is_long: (BATCHES if is_batched else CALLS)[:num],
    )
    arena.session.cublas = StridedCublas(host)
    return fake


def options(tmp_path: Path, **changes: object) -> Namespace:
    table = tmp_path / "table"
    if not table.exists():
        write_table(TABLE, table)
    values = {
        "report": None, "part": "pick", "gpu": "0", "table": table, "seed": 77, "num": 3, "alone": 2,
        "seconds_alone": 1.0, "db": None, "rounds": 4, "least": 1, "accuracy": "strict",
        "seconds": None, "out": tmp_path / "a.json.xz", "batches": False, "long": False, "live": False,
    }  # fmt: skip
    return Namespace(**(values | changes))


def tuned_alone(path: Path, arena) -> str:  # noqa: F811
    """A database in which searches of the calls ended with one kernel each."""
    with Store.open(path) as store:
        for one in CALLS[:2]:
            gemm = any_shape.tuned_as(one.call)
            study = store.study(arena.environment, "s" * 64, "nvrtc 13.0", gemm)
            config, found = ALONE.config, Measurement(Outcome.OK, time_us=9.0, samples_us=(9.0,))
            store.add_trial(study, config.key, config.to_dict(), found, "seed")
            store.set_final(study, [FinalEntry(config.key, config.to_dict(), 1, False, 9.0)])
    return str(path)


def test_picks_race_the_first_four_and_cublas(simulated, host, tmp_path, capsys):  # noqa: F811
    used, handles = host.used_bytes, host.num_handles
    any_shape._run(options(tmp_path))
    report = reports.read(tmp_path / "a.json.xz", "any_shape")
    assert [s["shape"] for s in report["shapes"]] == [str(one.call.gemm) for one in CALLS]
    for shape in report["shapes"]:
        facts = shape["pick"]
        assert {facts["name"], "cublas", *facts["first"]} == set(facts["samples_us"])
        assert all(len(samples) == 4 for samples in facts["samples_us"].values())
        for errors in facts[
            "errors"
        ].values():  # the simulated kernels round once, the simulated cuBLAS is off
            assert errors.keys() == facts["samples_us"].keys()
            assert all(0 < errors[name] < errors["cublas"] < 1e-6 for name in errors if name != "cublas")
    assert [len(shape["pick"]["first"]) for shape in report["shapes"]] == [4, 4, 1]  # NT: the default alone
    assert {launch.kernel_id for launch in simulated.launches} >= {"b", "c", "default-nt"}
    out = capsys.readouterr().out
    assert "3 of 3 shapes against cuBLAS" in out and "70x60x99:NN ld 101,60,61" in out
    assert host.num_handles == handles and host.used_bytes > used  # the pool's memory alone stays


@pytest.mark.stress
def test_batches_race_what_is_ranked_first_and_what_calls_settle(simulated, tmp_path, capsys, monkeypatch):
    """From end to end; a batch of a layout without kernels for batches is a fault, which is kept."""
    on_calls = {"is_settled": True, "num_samples": 9, "cost_calls": 1.5}
    live = SimpleNamespace(settled=lambda call, sets: {"name": "batched-a/1", **on_calls})
    monkeypatch.setattr(any_shape.LiveCalls, "on", lambda *_: live)
    monkeypatch.setitem(MORE_US, "batched-a", 1000.0)  # slower than cuBLAS, so that it is timed again
    any_shape._run(options(tmp_path, batches=True, live=True))
    report = reports.read(tmp_path / "a.json.xz", "any_shape")
    assert report["is_batched"]
    assert [shape["shape"] for shape in report["shapes"]] == [str(one.call.gemm) for one in BATCHES]
    for shape in report["shapes"][:2]:
        facts = shape["pick"]
        assert {"batched-a/1", "batched-b/2", "cublas"} <= facts["samples_us"].keys()
        assert len(facts["live"]["again_us"]) == any_shape.TIMES_AGAIN
        for errors in facts["errors"].values():
            assert errors.keys() == facts["samples_us"].keys()
            assert all(0 < error < 1e-6 for error in errors.values())
    assert "no kernel for batches serves" in report["shapes"][2]["pick"]["fault"]
    out = capsys.readouterr().out
    assert "2 of 3 shapes against cuBLAS" in out and "settled on calls" in out


def test_a_command_goes_on_where_it_ended(simulated, tmp_path, capsys, monkeypatch):
    clock = count(step=10)
    monkeypatch.setattr(any_shape, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    any_shape._run(options(tmp_path, seconds=15.0))
    assert "1 of 3 shapes are done" in capsys.readouterr().err
    any_shape._run(options(tmp_path))
    launches = len(simulated.launches)
    before = reports.read(tmp_path / "a.json.xz", "any_shape")
    any_shape._run(options(tmp_path))
    after = reports.read(tmp_path / "a.json.xz", "any_shape")
    assert len(simulated.launches) == launches and after["shapes"] == before["shapes"]
    assert [shape["pick"]["session"] for shape in after["shapes"]] == [0, 1, 1]
    with pytest.raises(UsageError, match="is of another seed"):
        any_shape._run(options(tmp_path, seed=78))
    with pytest.raises(UsageError, match="is of another draw"):
        any_shape._run(options(tmp_path, num=2))


def test_the_reference_is_the_best_of_all(simulated, arena, tmp_path, capsys):  # noqa: F811
    db = tuned_alone(tmp_path / "alone.db", arena)
    any_shape._run(options(tmp_path, part="reference", db=db, alone=3))
    assert "1 shapes were not tuned alone yet" in capsys.readouterr().err
    report = reports.read(tmp_path / "a.json.xz", "any_shape")
    for shape in report["shapes"][:2]:
        facts = shape["reference"]
        assert facts["alone"] == ALONE.config.key
        assert {"alone", "cublas", facts["name"]} <= facts["samples_us"].keys()
        assert {name.split("/")[0] for name in facts["glances_us"]} >= {"a", "b", "d"}
        assert facts["num_launches"] >= len(facts["glances_us"]) >= 5
        assert not any(name.startswith("c/") for name in facts["glances_us"])  # launched once
        for errors in facts["errors"].values():
            assert errors.keys() == facts["samples_us"].keys()
        found = any_shape_figures.Reached.of(shape)
        assert (found.over_cublas, found.portfolio) == (pytest.approx(100 / 40), pytest.approx(40 / 50))
        assert found.modelled_in_all == pytest.approx(found.modelled * found.portfolio)
    assert "reference" not in report["shapes"][2]
    assert "alone" in {launch.kernel_id for launch in simulated.launches}


def test_accurate_kernels_are_looked_for_behind_faster_ones(simulated, arena, tmp_path, monkeypatch):  # noqa: F811
    call = CALLS[0].call
    tables = any_shape.TableArena(arena, write_table(TABLE, tmp_path / "table"))
    sets = tables.sets(call)
    runners = [table_arena.Runner(f"{i}", tables.cublas(call).enqueue) for i in range(20)]
    requested: list[list[str]] = []

    def errors(session, at, some):
        requested.append([one.name for one in some])
        found = {one.name: 9.0 if one.name in "0 1 2 3 4 5 6 7 8" else 1.0 for one in some}
        return {"normal": dict(found), "uniform": dict.fromkeys(found, 1.0)}

    monkeypatch.setattr(any_shape, "relative_errors", errors)
    cublas = tables.cublas(call)
    accurate, known = any_shape.accurate_of(tables, call, runners, [cublas])
    assert [one.name for one in accurate] == ["9", "10", "11"]
    assert [len(some) for some in requested] == [1, 6, 6] and len(known["normal"]) == 13
    assert len(sets) > 0


def test_a_wrong_kernel_is_seen(simulated, arena, tmp_path):  # noqa: F811
    call = CALLS[1].call
    tables = any_shape.TableArena(arena, write_table(TABLE, tmp_path / "table"))
    runner = tables.launched(table_arena.Chosen("a", 1), call, tables.sets(call))
    simulated.result_error = 1e-3
    errors = strided_errors.relative_errors(arena.session, call, [runner, tables.cublas(call)])
    assert all(found["a/1"] > 5 * found["cublas"] for found in errors.values())
    nothing = table_arena.Runner("nothing", lambda operands: None)
    errors = strided_errors.relative_errors(arena.session, call, [nothing])
    assert errors == {"normal": {"nothing": np.inf}, "uniform": {"nothing": np.inf}}


def test_products_of_a_batch_are_looked_at(simulated, arena, tmp_path):  # noqa: F811
    """The last one, too: a launch that leaves it out is seen."""
    call = Call.packed(Gemm(70, 60, 96, batch=5))
    cublas = any_shape.TableArena(arena, write_table(TABLE, tmp_path / "table")).cublas(call)
    fewer = replace(call.gemm, batch=4)
    short = table_arena.Runner("short", lambda at: arena.cublas().sgemm(fewer, at))
    errors = strided_errors.relative_errors(arena.session, call, [cublas, short])
    assert all(found["cublas"] < 1e-6 and found["short"] == np.inf for found in errors.values())


def test_uniform_numbers_fill_operands(simulated, arena, monkeypatch):  # noqa: F811
    monkeypatch.setattr(strided_errors, "_PERIOD", 997)
    product = strided_errors._Product(arena.session, CALLS[1].call)
    product.errors("normal", [])
    product.errors("uniform", [])
    for address, rows, columns, ld in ((product._operands.a, 70, 99, 101), (product._operands.b, 99, 60, 60)):
        numbers = view(address, rows, columns, ld)
        assert 0 <= numbers.min() < 0.01 and 0.99 < numbers.max() < 1
        assert len(np.unique(numbers)) == 997
    product.free()


def test_a_fault_is_kept_and_the_next_shape_goes_on(simulated, tmp_path, capsys, monkeypatch):
    run = any_shape.pick_facts

    def facts(tables, call, *rest):
        if call == CALLS[0].call:
            raise UsageError("nothing to be had")
        return run(tables, call, *rest)

    monkeypatch.setattr(any_shape, "pick_facts", facts)
    any_shape._run(options(tmp_path))
    report = reports.read(tmp_path / "a.json.xz", "any_shape")
    assert report["shapes"][0]["pick"] == {"fault": "nothing to be had", "session": 0}
    assert "samples_us" in report["shapes"][2]["pick"]
    assert "70x60x96:NN FAILED: nothing to be had" in capsys.readouterr().out


def test_a_table_of_these_shapes_is_refused(simulated, tmp_path):
    known = replace(TABLE, places={"NN": ((70, 60, 99),)}, levels={"NN": "00000000"})
    with pytest.raises(UsageError, match="was made with 70x60x99:NN"):
        any_shape.check_unseen(CALLS, known)
    assert json.dumps(any_shape.check_unseen(CALLS, TABLE)) == "null"
