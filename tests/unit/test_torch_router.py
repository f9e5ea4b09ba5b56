"""The router in C++: what it keeps from Python, threads, errors, and how it is compiled. Needs torch."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_torch_routing
from host_torch import HostTorch
from table_cases import write_table
from test_tensor_calls import normal
from test_torch_routing import LOSES, UNKNOWN, WINS, Tensor, batch, check, operands

from autotune.files.errors import DispatchError
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.torch import torch_router
from autotune.runtime.torch.torch_router import NoRouter, Router, Tables
from autotune.runtime.torch.torch_routing import TorchRouting

driver, routing = test_torch_routing.driver, test_torch_routing.routing  # fixtures
added, batches, expected_times = (
    test_torch_routing.added, test_torch_routing.batches, test_torch_routing.expected_times,
)  # fmt: skip


@pytest.fixture
def torch(expected_times: None, monkeypatch: pytest.MonkeyPatch) -> HostTorch:
    return HostTorch(monkeypatch, Tensor, is_compiled=True)


def alone(routing: TorchRouting, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing comes to Python."""
    monkeypatch.setattr(routing, "_is_open", lambda *_: pytest.fail("Python was asked"))


def calls(k: int) -> list[tuple[Any, ...]]:
    (a, b), out = operands(k), {"out": Tensor(normal(70, 66))}
    found: list[tuple[Any, ...]] = [("mm", (a, b), {}), ("mm.out", (a, b), out)]
    for c in (normal(66), normal(70, 66), normal(70, 1)):
        for scales in ({}, {"beta": 0}, {"beta": 2.0, "alpha": 0.5}):
            found += [("addmm", (c, a, b), scales), ("addmm.out", (c, a, b), scales | out)]
    return found


def test_what_is_known_as_left_alone_does_not_come_to_python(torch, routing, monkeypatch) -> None:
    assert not routing.no_router
    notes = [*calls(LOSES), *calls(UNKNOWN)]
    with routing:
        for _ in range(2):
            assert not any(check(torch, name, *x, **options) for name, x, options in notes)
            alone(routing, monkeypatch)
    assert sum(kind.num_calls for kind in routing.kinds()) == 2 * len(notes)


def test_what_is_known_as_served_does_not_come_to_python(torch, routing, driver, monkeypatch) -> None:
    """Except what Python's kernels do not read at once either: an out in which C begins as a copy."""
    notes = [one for one in calls(WINS) if one[0] != "addmm.out" or one[2].get("beta") == 0]
    with routing:
        for _ in range(2):
            assert all(check(torch, name, *x, **options) for name, x, options in notes)
            alone(routing, monkeypatch)
    assert sum(kind.num_calls for kind in routing.kinds()) == 2 * len(notes) == len(driver.launches)


def test_of_batches_and_added_biases_either(torch, batches, added, monkeypatch) -> None:
    for routing, driver in (batches, added):
        (a, b), (x, y) = operands(), batch()
        notes = [("bmm", x, y), ("baddbmm", normal(5, 24, 12), x, y)]
        if routing is added[0]:
            notes += [("baddbmm", normal(12), x, y), ("addmm", normal(66), a, b.T.copy().T)]
        with routing:
            for _ in range(2):
                assert all(check(torch, *one) for one in notes)
                alone(routing, monkeypatch)
        assert len(driver.launches) == 2 * len(notes)


def test_of_batches_and_biases_either(torch, batches, added, monkeypatch) -> None:
    for routing, _ in (batches, added):
        (a, b), (x, y) = operands(LOSES), batch(LOSES)
        notes: list[tuple[Any, ...]] = [
            ("bmm", x, y),
            ("baddbmm", normal(12), x, y),
            ("addmm", normal(66), a, b),
        ]
        with routing:
            for _ in range(2):
                assert not any(check(torch, *one) for one in notes)
                alone(routing, monkeypatch)
        assert sum(kind.num_calls for kind in routing.kinds()) == 2 * len(notes)


def test_the_bias_of_a_kernel_tells_kinds_apart(torch, added) -> None:
    """What loses with a copy may win with a bias, which nobody asked for yet."""
    (a, b), (routing, _) = operands(), added
    with routing:
        for _ in range(2):
            assert check(torch, "addmm", normal(66), a, b, beta=0.5)
            assert check(torch, "addmm", normal(66), a, b)


def test_what_a_program_gains_is_measured_while_it_runs(torch, routing, monkeypatch) -> None:
    """The router shows its calls, and leaves alone those of plain stretches, which do not count."""
    monkeypatch.setattr(torch_router, "SEGMENT_S", 1e-9)
    monkeypatch.setattr(routing, "_wait", lambda: None)
    (a, b), (x, y) = (map(Tensor, operands(k)) for k in (WINS, LOSES))
    with routing:
        gain = routing.measure_gain()
        before = torch.own_calls
        for _ in range(100):
            for one in (a, b), (a, b), (x, y):
                torch.call("mm", *one)
        plain = torch.own_calls - before - 100  # routed, one of three calls is left alone
    notes = gain.describe(0.0)
    assert "measured: " in notes and "a step of 3 products" in notes and "stretches of 1 steps" in notes
    call_counts = routing.call_counts()
    assert plain > 20 and call_counts[""] == 200 - plain
    assert call_counts.total() == pytest.approx(300 - 1.5 * plain, abs=2)
    torch.call("mm", a, b)
    assert gain.describe(0.0) == notes  # it ended with the context


def test_without_the_router_nothing_is_measured(torch, routing) -> None:
    routing._do_without("no compiler is here")
    with pytest.raises(DispatchError, match=r"router in C.*no compiler is here"):
        routing.measure_gain()


def test_other_dtypes_and_tf32_do_not_come_to_python(torch, routing, monkeypatch) -> None:
    alone(routing, monkeypatch)
    a, b = map(Tensor, operands())
    with routing:
        torch.call("mm", *(Tensor(x.data, dtype="bfloat16") for x in (a, b)))
        torch.call("addmm", *(Tensor(x, dtype="float64") for x in (normal(66), a.data, b.data)))
        for precision in ("high", "medium"):
            torch.set_float32_matmul_precision(precision)
            torch.call("mm", a, b)
        torch.set_float32_matmul_precision("highest")
        with pytest.raises(RuntimeError, match="must be a matrix"):
            torch.call("addmm", Tensor(normal(66)), a, Tensor(normal(40)))
    notes = routing.report()
    assert (
        "2 x another dtype" in notes
        and "2 x the program allows TF32" in notes
        and "1 x tensors that" in notes
    )


def test_errors_keep_their_kind(torch, routing, driver) -> None:
    a, b = operands(LOSES)
    with routing:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="to have the same dtype"):
                torch.call("mm", Tensor(a, dtype="float64"), Tensor(b))
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                torch.call("mm", Tensor(a), Tensor(a))
        check(torch, "mm", *operands())
        driver.launch_error = 700
        with pytest.raises(DispatchError, match="launching a kernel"):
            torch.call("mm", *map(Tensor, operands()))
        driver.launch_error = 0
        assert check(torch, "mm", *operands())


def test_threads_share_it(torch, routing) -> None:
    faults: list[BaseException] = []

    def multiply() -> None:
        try:
            for _ in range(50):
                check(torch, "mm", *operands(LOSES))
                check(torch, "addmm", normal(66), *operands(LOSES))
                check(torch, "mm", *operands())
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=multiply) for _ in range(4)]
    with routing:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults
    assert sorted(kind.num_calls for kind in routing.kinds()) == [200, 200, 200]


def test_gradients_are_torch_s(torch, routing) -> None:
    real = torch._torch
    weight, x = (real.from_numpy(normal(*shape)).requires_grad_() for shape in ((66, LOSES), (70, LOSES)))
    bias = real.zeros(66, requires_grad=True)

    def gradients() -> Any:
        return real.autograd.grad(
            real.nn.functional.linear(x, weight, bias).square().sum(), (weight, x, bias)
        )

    expected = gradients()
    with routing:
        for _ in range(2):
            for mine, its in zip(gradients(), expected, strict=True):
                real.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
    assert {kind.gemm.k: not kind.reason for kind in routing.kinds()}[LOSES] is False


@pytest.mark.parametrize(
    "enter",
    ["routing.__enter__()", "steps = iter_within(routing); next(steps)"],
    ids=["and nobody leaves", "and a generator leaves behind it"],
)
def test_an_interpreter_may_end_within_it(torch: HostTorch, tmp_path: Path, enter: str) -> None:
    program = """
import sys
sys.path += sys.argv[1:]
import pytest, test_torch_routing as cases
from host_torch import HostTorch
from table_cases import write_table
patch = pytest.MonkeyPatch()
torch = HostTorch(patch, cases.Tensor, is_compiled=True)
driver = cases.FakeDriver(cases.make_table(cases.make_kernel("NN", cases.make_spec())))
folder = cases.write_table(driver.table, cases.Path(sys.argv[1]) / "t")
routing = cases.Dispatcher(folder, driver=driver).torch()
def iter_within(routing):
    with routing:
        yield
ENTER
for _ in range(2):
    cases.check(torch, "mm", *cases.operands(cases.UNKNOWN))
print(len(routing.kinds()), routing.no_router)
""".replace("ENTER", enter)
    unit, tests, checkout, *_ = Path(__file__).parents
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", program, *map(str, (tmp_path, unit, tests, checkout))],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1 \n"), done.stderr


def test_it_is_left_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the interpreter's end it is left before a generator that is within it is closed."""
    left = list[int]()
    library = SimpleNamespace(autotune_router_enter=lambda *_: 7, autotune_router_leave=left.append)
    monkeypatch.setattr(torch_router, "_library", lambda *_: library)
    made = Router(SimpleNamespace(Tensor=object), Tables(), Tables(), ("", "", ""), "CPU")
    made.enter()
    made.leave()
    made.leave()
    assert left == [7]


def test_what_a_thread_may_be_within_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """To leave waits for nobody."""
    library = SimpleNamespace(autotune_router_enter=lambda *_: 7, autotune_router_leave=lambda _: None)
    monkeypatch.setattr(torch_router, "_library", lambda *_: library)
    tables, core = Tables(), type("Core", (), {"handle": 1})()
    tables.add(core, has_bias=False)
    made = Router(SimpleNamespace(Tensor=object), tables, Tables(), ("", "", ""), "CPU")
    for _ in range(2):
        made.enter()
        made.watch.begin(lambda: None)
        made.leave()
    kept = [weakref.ref(x) for x in (made, core)]
    seen = [weakref.ref(x) for x in made.watch._kept]
    del made, core, tables
    gc.collect()
    assert len(seen) == 2 and all(x() is not None for x in (*kept, *seen))


# How it is compiled


def router(torch: HostTorch) -> Router:
    return Router(torch._torch, Tables(), Tables(), ("", "", ""), "CPU")


def test_it_is_compiled_once(torch, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(torch_router, "default_cache_dir", lambda: tmp_path)
    for notes in ("compiling a router for torch, once", ""):
        router(torch)
        assert notes in capfd.readouterr().err
    monkeypatch.setenv("CXX", "no_compiler_of_this_name")
    with pytest.raises(NoRouter, match="no_compiler_of_this_name"):
        router(torch)
    assert len(list((tmp_path / "router").glob("*.so"))) == 1


def test_a_compiler_that_fails_is_not_requested_again(torch, routing, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(torch_router, "default_cache_dir", lambda: tmp_path)
    source = tmp_path / "other.cpp"
    source.write_text("no C++")
    monkeypatch.setattr(torch_router, "SOURCE", source)
    for is_requested in (True, False):
        with pytest.raises(NoRouter, match="the compiler failed") as notes:
            router(torch)
        assert ("compiling" in capfd.readouterr().err) == is_requested
    (log,) = (tmp_path / "router").glob("*.log")
    assert str(log) in str(notes.value) and "error" in log.read_text()
    log.unlink()
    with pytest.raises(NoRouter):
        router(torch)
    assert log.exists()


def test_without_a_compiler_python_s_kernels_route(torch, driver, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(torch_router.shutil, "which", lambda _: None)
    monkeypatch.delenv("CXX", raising=False)
    made = Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver).torch()
    with made:
        for _ in range(2):
            assert check(torch, "mm", *operands(WINS)) and not check(torch, "mm", *operands(LOSES))
    assert "no C++ compiler" in made.no_router and "no C++ compiler" in made.report()


def test_no_library_comes_from_a_folder_that_others_may_write(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    folder = torch_router._own_folder()
    assert folder == tmp_path / "router" and folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o772, 0o702):
        folder.chmod(mode)
        with pytest.raises(NoRouter, match="may be written by other users; remove it"):
            torch_router._own_folder()
    folder.chmod(0o755)
    assert torch_router._own_folder() == folder
    monkeypatch.setattr("os.geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(NoRouter, match=r"belongs to user \d+, and .*; run as its owner, or name another"):
        torch_router._own_folder()


def test_a_switch_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torch_router.SWITCH, "off")
    with pytest.raises(DispatchError, match="'off'"):
        Router(SimpleNamespace(), Tables(), Tables(), (), "CPU")
    monkeypatch.setenv(torch_router.SWITCH, "0")
    with pytest.raises(NoRouter, match="is 0"):
        Router(SimpleNamespace(), Tables(), Tables(), (), "CPU")


def test_tables_come_later_too() -> None:
    tables = Tables()
    for number in range(torch_router.MAX_TABLES + 2):
        tables.add(SimpleNamespace(handle=1 + number), has_bias=bool(number % 2))
    assert [one.handle for one in tables.list] == [*range(1, torch_router.MAX_TABLES + 1), None]
    assert tables.list[1].has_bias and not tables.list[0].has_bias
