"""Products of torch are routed to a table: by a stand-in for its dispatcher, and where torch is installed by
the real one, with kernels in C++ and without, on the host; tests/gpu has the GPU."""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_torch import HostTorch
from table_cases import FakeDriver, make_kernel, make_spec, make_table, rank, with_epilogues, write_table
from test_tensor_calls import TORCH, Array, _capsule, _Tensor, normal

from autotune.facts.gemm import MAX_EXTENT, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.launch import EPILOGUES, Variant
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.native import core
from autotune.runtime.torch.torch_routing import TorchRouting

WINS, LOSES, UNKNOWN, NEAR, UNSURE, SURE = range(40, 46)  # k of products that are told apart
TIMES_US: dict[int, tuple[float | None, float | None]] = {
    WINS: (10.0, 20.0), LOSES: (20.0, 10.0), UNKNOWN: (10.0, None), NEAR: (10.0, 10.001),
    UNSURE: (20.0, 23.0), SURE: (20.0, 25.0),
}  # fmt: skip
DOUBTFUL = (UNSURE, SURE)  # too little is known for `sgemm`, which asks for MARGIN
MARGIN = math.log(1.4)


class Tensor(_Tensor):
    """What the dispatcher's kernels see; a subclass, as parameters are."""

    def new_empty(self, shape: tuple[int, int]) -> Tensor:
        return Tensor(np.empty(shape, np.float32))

    def copy_(self, other: Tensor) -> Tensor:
        self.data[...] = other.data
        return self

    def untyped_storage(self) -> Any:
        base = self.data if self.data.base is None else self.data.base
        return SimpleNamespace(data_ptr=lambda: base.ctypes.data)


class FakeLibrary:
    """torch.library.Library of kind IMPL: what is registered, as long as it is held."""

    registered: dict[str, Any] = {}  # noqa: RUF012 - torch's dispatcher is one for all

    def __init__(self, namespace: str, kind: str) -> None:
        assert (namespace, kind) == ("aten", "IMPL")

    def impl(self, name: str, function: Any, key: str, with_keyset: bool) -> None:
        assert key == "CUDA" and with_keyset
        self.registered[name] = function

    def __del__(self) -> None:
        self.registered.clear()


class FakeTorch(SimpleNamespace):
    """torch, with kernels of its own that say so, and calls that come by its dispatcher."""

    def __init__(self) -> None:
        library = SimpleNamespace(Library=FakeLibrary, get_kernel=self._kernel)
        matmul = SimpleNamespace(fp32_precision="none")
        backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul))
        super().__init__(**vars(TORCH), library=library, backends=backends, no_grad=contextlib.nullcontext)
        self.own_calls, self._precision = 0, "highest"

    def get_float32_matmul_precision(self) -> str:
        return self._precision

    def set_float32_matmul_precision(self, precision: str) -> None:
        self._precision = precision
        self.backends.cuda.matmul.fp32_precision = "ieee" if precision == "highest" else "tf32"

    def _kernel(self, name: str, key: str) -> Any:
        assert key == "CUDA"

        def call_boxed(keys: str, *arguments: Any, **options: Any) -> Any:
            assert keys == "keys"
            self.own_calls += 1
            return self.product(name.removeprefix("aten::"), *arguments, **options)

        return SimpleNamespace(call_boxed=call_boxed)

    @staticmethod
    def product(
        name: str, *arguments: Tensor, beta: float = 1, alpha: float = 1, out: Tensor | None = None
    ) -> Tensor:
        *added, a, b = (x.data for x in arguments)
        found = alpha * (a @ b) + (beta * added[0] if added else 0)
        return out.copy_(Tensor(found)) if out else Tensor(found.astype(np.float32))

    def call(self, name: str, *arguments: Tensor, **options: Any) -> Tensor:
        found = FakeLibrary.registered.get(name)
        if found is not None:
            return found("keys", *arguments, **options)
        return self.product(name, *arguments, **options)


@pytest.fixture
def fake_torch(expected_times: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    made = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", made)
    capsule, held = _capsule(b"dlpack_exchange_api")
    monkeypatch.setattr(_Tensor, "__dlpack_c_exchange_api__", capsule, raising=False)
    yield made
    del held


@pytest.fixture(params=["played", "C++", "Python"])
def torch(request: pytest.FixtureRequest, expected_times: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "played":
        return request.getfixturevalue("fake_torch")
    return HostTorch(monkeypatch, Tensor, is_compiled=request.param == "C++")


@pytest.fixture
def expected_times(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Chooser.pick

    def pick(self: Chooser, call: Call, *known: Any) -> Pick:
        kernel_us, cublas_us = TIMES_US.get(call.gemm.k, TIMES_US[WINS])
        is_slower = cublas_us and kernel_us and (cublas_us < kernel_us or call.gemm.k in DOUBTFUL)
        who = "cublas" if is_slower else "autotune"
        margin = MARGIN if call.gemm.k in DOUBTFUL else 0.0
        return replace(
            own(self, call, *known), expected_us=kernel_us, cublas_us=cublas_us, provider=who, margin=margin
        )

    monkeypatch.setattr(Chooser, "pick", pick)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(make_table(*(make_kernel(name, make_spec(name)) for name in ("NN", "NT", "TN", "TT"))))


@pytest.fixture
def routing(torch: FakeTorch, driver: FakeDriver, tmp_path: Path) -> TorchRouting:
    return Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver).torch()


def check(torch: FakeTorch, name: str, *operands: Array, **options: Any) -> bool:
    """Whether a call was served; its result is right either way."""
    before = torch.own_calls
    scales = {key: value for key, value in options.items() if key != "out"}
    expected = FakeTorch.product(name, *map(Tensor, operands), **scales)
    found = torch.call(name, *map(Tensor, operands), **options)
    np.testing.assert_allclose(found.data, expected.data, rtol=1e-4, atol=1e-4)
    if "out" in options:
        assert found is options["out"]
    return torch.own_calls == before


def operands(k: int = WINS, m: int = 70, n: int = 66) -> tuple[Array, Array]:
    return normal(m, k), normal(k, n, seed=1)


def test_what_is_expected_to_be_faster_is_served_and_the_rest_left_alone(torch, routing, driver) -> None:
    with routing:
        for _ in range(3):
            assert check(torch, "mm", *operands())
            assert check(torch, "mm", normal(WINS, 70).T, normal(66, WINS).T)
            assert not check(torch, "mm", *operands(LOSES))
            assert not check(torch, "mm", *operands(UNKNOWN))
    assert len(driver.launches) == 6
    torch.call("mm", *map(Tensor, operands()))
    assert len(driver.launches) == 6  # torch takes it back
    kinds = {kind.gemm.k: kind for kind in routing.kinds() if kind.gemm.layout == "NN"}
    assert [kinds[k].num_calls for k in (WINS, LOSES, UNKNOWN)] == [3, 3, 3]
    assert (kinds[WINS].reason, kinds[WINS].saved_us) == ("", 30.0)
    assert "as fast" in kinds[LOSES].reason and "not known" in kinds[UNKNOWN].reason
    notes = routing.report()
    assert "6 products served, 6 left alone; predicted, not measured: 0.1 ms" in notes
    assert "3 x 70x66x40:NN: predicted 10.0 us, cuBLAS 20.0 us" in notes


def test_half_of_the_margin_is_enough(torch, routing, driver) -> None:
    with routing:
        for _ in range(2):
            assert not check(torch, "mm", *operands(UNSURE)) and check(torch, "mm", *operands(SURE))
            assert not check(torch, "addmm", normal(66), *operands(SURE))  # with a copy it is slower
    assert len(driver.launches) == 2


@pytest.mark.parametrize(("us", "num_launches"), [((3.0, 4.0), 1), ((3.0, 9.0), 2), ((8.0, 9.0), 2)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_one_launch_serves_where_the_host_is_the_limit(
    torch, tmp_path, monkeypatch, us, num_launches, has_bias
) -> None:
    """Of two launches the host makes the second while the GPU does the first, if that takes long enough."""
    two_us, one_us = us
    picks = [
        Pick("b", "modelled", lambda: "of b", 2, two_us, cublas_us=20, margin=MARGIN),
        Pick("a", "modelled", lambda: "of a", 1, one_us),
    ]
    monkeypatch.setattr(Chooser, "pick", lambda *_: picks[0])
    monkeypatch.setattr(Chooser, "ranked", lambda *_: picks)
    two = make_spec(reduction="two_pass", split_k=2)
    plain = make_table(make_kernel("b", two), make_kernel("a", make_spec()))
    table = with_epilogues(plain, EPILOGUES["bias"])
    driver = FakeDriver(table)
    with Dispatcher(write_table(table, tmp_path / "t"), driver=driver).torch() as routing:
        (a, b), bias = operands(), [normal(66)] if has_bias else []
        assert check(torch, "addmm" if has_bias else "mm", *bias, a, b)
    assert len(driver.launches) == num_launches
    (kind,) = routing.kinds()
    assert kind.expected_us == (one_us if num_launches == 1 else two_us)
    (notes,) = (routing._biased if has_bias else routing._plain).call_counts().kinds
    assert notes.pick is not None and notes.pick.reason == ("of a" if num_launches == 1 else "of b")


@pytest.mark.parametrize("form", ["vector", "matrix"])
@pytest.mark.parametrize("scales", [{}, {"alpha": 0.5, "beta": -2.0}, {"beta": 0}])
@pytest.mark.parametrize("has_out", [False, True])
def test_what_is_added_is_added(torch, routing, form, scales, has_out) -> None:
    (a, b), c = operands(), normal(66) if form == "vector" else normal(70, 66, seed=3)
    with routing:
        for _ in range(2):
            out = {"out": Tensor(normal(70, 66))} if has_out else {}
            assert check(torch, "addmm.out" if has_out else "addmm", c, a, b, **scales, **out)


def test_a_vector_that_is_added_costs_a_pass_over_c(torch, routing) -> None:
    """cuBLAS adds it as it goes: what is faster by a hair is not, then."""
    (a, b) = operands(NEAR)
    with routing:
        for _ in range(2):
            assert check(torch, "mm", a, b) and check(torch, "addmm", normal(70, 66), a, b)
            assert not check(torch, "addmm", normal(66), a, b)
    (kind,) = (kind for kind in routing.kinds() if kind.has_bias)
    assert kind.num_calls == 2 and kind.reason


@pytest.fixture
def added(torch: FakeTorch, tmp_path: Path) -> tuple[TorchRouting, FakeDriver]:
    """A table whose kernels add a bias, too, and its driver."""
    many = make_kernel("many", make_spec(variant=Variant(is_batched=True)), None)
    entries = (rank(Gemm(24, 12, WINS, batch=5), "many"),)
    kernels = (make_kernel(name, make_spec(name)) for name in ("NN", "NT", "TN", "TT"))
    table = with_epilogues(make_table(*kernels, many, entries=entries), EPILOGUES["bias"])
    driver = FakeDriver(table)
    return Dispatcher(write_table(table, tmp_path / "a"), driver=driver).torch(), driver


@pytest.mark.parametrize("has_out", [False, True])
def test_a_vector_is_added_by_the_kernel_that_has_the_epilogue(torch, added, has_out, monkeypatch) -> None:
    (a, b), (routing, driver) = operands(NEAR), added
    monkeypatch.setattr(Tensor, "copy_", None)  # no copy is made
    with routing:
        for alpha in (1, 0.5):
            out = {"out": Tensor(normal(70, 66))} if has_out else {}
            assert check(torch, "addmm.out" if has_out else "addmm", normal(66), a, b, alpha=alpha, **out)
        for _ in range(2):
            assert check(torch, "addmm", normal(66), a, normal(66, NEAR).T)  # as linear does
            assert check(torch, "baddbmm", normal(12), *batch())
    assert [one.kernel_id for one in driver.launches] == 2 * ["NN-bias_columns"] + 2 * [
        "NT-bias_columns", "many-bias_columns",
    ]  # fmt: skip
    kinds = list(routing.kinds())
    assert all(kind.has_bias and not kind.reason for kind in kinds)
    assert sum(kind.num_calls for kind in kinds) == 6


def test_what_is_no_vector_for_the_columns_is_copied_as_ever(torch, added) -> None:
    (a, b), (routing, driver) = operands(), added
    with routing:
        for _ in range(2):
            assert check(torch, "addmm", normal(66), a, b, beta=0.5)
            assert check(torch, "addmm", normal(70, 1), a, b)
            assert check(torch, "addmm", normal(1), a, b)
            assert check(torch, "addmm", normal(132)[::2], a, b)
            assert check(torch, "addmm", normal(70, 66), a, b)
            space = normal(70, 66)
            assert check(torch, "addmm.out", space[3], a, b, out=Tensor(space))
            assert not check(torch, "addmm", normal(66), *operands(LOSES))
            assert not check(torch, "addmm", normal(66), *operands(UNKNOWN))
    assert {one.kernel_id for one in driver.launches} == {"NN"}
    reasons = {kind.gemm.k: kind.reason for kind in routing.kinds()}
    assert "as fast" in reasons[LOSES] and "not known" in reasons[UNKNOWN]


@pytest.mark.filterwarnings("ignore:overflow")
def test_what_torch_refuses_of_a_sum_it_refuses_itself(torch, routing, driver) -> None:
    a, b = map(Tensor, operands())
    with routing:
        for c, scales in (
            (normal(65), {}),
            (normal(3, 70, 66), {}),
            (normal(70, 66), {"alpha": 1e39}),
            (normal(70, 66), {"beta": -1e39}),
        ):
            num_own = torch.own_calls
            for _ in range(2):
                with contextlib.suppress(RuntimeError, ValueError):  # a stand-in takes the scales
                    torch.call("addmm", Tensor(c), a, b, **scales)
            assert not driver.launches and torch.own_calls - num_own in (0, 2)


@pytest.mark.parametrize("beta", [0, 1])
def test_a_c_that_does_not_fit_is_torch_s_whatever_its_scale(torch, routing, driver, beta) -> None:
    a, b = map(Tensor, operands())
    rejected = [Tensor(normal(65)), Tensor(normal(2, 66)), Tensor(normal(1, 70, 66))]
    if isinstance(torch, FakeTorch):
        rejected += [Tensor(normal(66), device="cpu"), Tensor(normal(70, 66), device="cuda:1")]
    with routing:
        torch.call("addmm", Tensor(normal(66)), a, b, beta=beta)
        for c in rejected:
            for options in ({}, {"out": Tensor(normal(70, 66))}):
                with contextlib.suppress(RuntimeError, ValueError):
                    torch.call("addmm" + ".out" * bool(options), c, a, b, beta=beta, **options)
                    assert isinstance(torch, FakeTorch)
    assert len(driver.launches) == 1
    assert routing.call_counts()["tensors that do not fit each other"] == 2 * len(rejected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_derivatives_of_a_routed_program_are_torch_s(torch, routing, driver) -> None:
    if isinstance(torch, FakeTorch):
        pytest.skip("needs torch's own derivatives")
    a, b = map(torch.tensor, map(Tensor, operands()))

    def loss(x: Any) -> Any:
        return (x @ b).square().sum()

    programs = (
        lambda: torch.func.grad(loss)(a),
        lambda: torch.func.jvp(loss, (a,), (a,))[1],
        lambda: torch.func.vmap(torch.func.grad(loss))(a.view(7, 10, -1)),
        lambda: torch.autograd.functional.jvp(loss, a, a)[1],
    )
    for program in programs:
        expected, num_launches = program(), len(driver.launches)
        with routing:
            for _ in range(2):
                torch.testing.assert_close(program(), expected, rtol=1e-4, atol=1e-2)
        assert len(driver.launches) > num_launches


def test_a_vector_within_the_out_is_torch_s(torch, routing, request) -> None:
    """Which copies it nowhere: they overlap."""
    if isinstance(torch, FakeTorch):
        pytest.skip("NumPy copies what overlaps")
    a, b = map(torch.tensor, map(Tensor, operands()))
    out = torch.tensor(Tensor(normal(70, 66)))
    expected = a @ b + out[3]
    with routing, torch.no_grad():
        torch.addmm(out[3], a, b, out=out)
    np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_an_out_is_written_where_it_lies(torch, routing) -> None:
    space = normal(70, 80)
    around = space.copy()
    with routing:
        for _ in range(2):
            assert check(torch, "mm.out", *operands(), out=Tensor(space[:, 8:74]))
    assert (space[:, :8] == around[:, :8]).all() and (space[:, 74:] == around[:, 74:]).all()


def batch(k: int = WINS, num: int = 5) -> tuple[Array, Array]:
    return normal(num, 24, k), normal(num, k, 12, seed=1)


@pytest.fixture
def batches(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[TorchRouting, Any]:
    """A table with batches that were tuned, and its driver."""
    variant, gemms = Variant(is_batched=True), [Gemm(24, 12, k, batch=5) for k in (WINS, LOSES)]
    many = make_kernel("many", make_spec(variant=variant), None)
    table = make_table(many, make_kernel("NN", make_spec()), entries=tuple(rank(g, "many") for g in gemms))
    driver = FakeDriver(table)
    return Dispatcher(write_table(table, tmp_path / "b"), driver=driver).torch(), driver


def test_batches_are_served_where_they_were_tuned_and_faster(torch, batches) -> None:
    routing, driver = batches
    with routing:
        for _ in range(3):
            assert check(torch, "bmm", *batch())
            assert check(torch, "bmm.out", *batch(), out=Tensor(normal(5, 24, 12)))
            assert check(torch, "baddbmm", normal(5, 24, 12), *batch(), alpha=0.5, beta=-2.0)
            assert check(torch, "baddbmm", normal(12), *batch())
            assert check(torch, "bmm", *batch(num=7))  # near
            assert not check(torch, "bmm", *batch(LOSES))
            assert not check(torch, "bmm", *batch(k=30))  # not tuned
    assert {one.kernel_id for one in driver.launches} == {"many"} and len(driver.launches) == 15
    reasons = {kind.gemm.k: kind.reason for kind in routing.kinds()}
    assert "as fast" in reasons[LOSES] and "not tuned in batches" in reasons[30] and not reasons[WINS]
    assert "15 products served, 6 left alone" in routing.report()


def test_what_bmm_does_not_take_is_torch_s(torch, batches) -> None:
    """The core would broadcast, and multiply stacks where torch has mm refuse them."""
    routing, driver = batches
    a, b = batch()
    with routing:
        for _ in range(2):
            assert not check(torch, "bmm", np.broadcast_to(a[:1], a.shape), b)  # shared: not tuned so
            for name, x in (("bmm", a[:1]), ("bmm", a[0]), ("mm", a)):
                with contextlib.suppress(RuntimeError):  # a simulated torch takes it
                    assert not check(torch, name, x, b)
            assert not check(torch, "bmm", a[:, :0], b)  # nothing to compute
            assert not driver.launches
    (empty,) = (kind for kind in routing.kinds() if kind.reason == "no elements")
    assert (empty.gemm.batch, empty.num_calls) == (len(a), 2)


def test_what_no_kernel_takes_is_left_alone(torch, routing, driver) -> None:
    a, b = operands()
    square = normal(40, 40)
    with routing:
        for _ in range(2):
            assert not check(torch, "mm", normal(70, 80)[:, ::2], b)  # strides
            assert not check(torch, "mm", np.broadcast_to(normal(1, 40), (70, 40)), b)
            assert not check(torch, "mm", a[:0], b)  # nothing to compute
            assert not check(torch, "mm.out", a, b, out=Tensor(normal(66, 70).T))  # by columns
            shared = Tensor(square.copy())
            torch.call("addmm.out", Tensor(square), shared, Tensor(square), out=shared)
            with pytest.raises((ValueError, RuntimeError), match=r"mismatch|be multiplied"):  # torch's own
                torch.call("mm", Tensor(a), Tensor(a))
    assert not driver.launches
    assert "no elements" in routing.report() and "strides or extents" in routing.report()


def test_extents_beyond_those_of_kernels_are_torch_s(torch, routing, driver) -> None:
    """As of rows that are expanded; the result has no elements."""
    with routing:
        for _ in range(2):
            tall = np.broadcast_to(normal(1, 40), (MAX_EXTENT + 1, 40))
            assert not check(torch, "mm", tall, normal(40, 66)[:, :0])
    assert not driver.launches and routing.report()


def test_other_dtypes_and_tf32_are_left_alone(torch, routing, driver, monkeypatch) -> None:
    a, b = map(Tensor, operands())
    with routing:
        half = [Tensor(x.data, dtype="float16", kind={"bits": 16}) for x in (a, b)]
        torch.call("mm", *half)
        matmul = torch.backends.cuda.matmul
        monkeypatch.setattr(matmul, "fp32_precision", "tf32")
        torch.call("mm", a, b)
        torch.call("addmm", Tensor(normal(70, 66)), a, b)
        matmul.fp32_precision = "ieee"
        assert not driver.launches
        torch.call("mm", a, b)
    assert len(driver.launches) == 1 and torch.own_calls == 3
    assert "1 x another dtype" in routing.report() and "x the program allows TF32" in routing.report()


def test_no_kind_counts_a_call_that_may_use_tf32(torch, routing) -> None:
    """Also one that is known as left alone."""
    with routing:
        for precision in ("highest", "high", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            for k in (WINS, LOSES):
                torch.call("mm", *map(Tensor, operands(k)))
    assert [kind.num_calls for kind in routing.kinds()] == [2, 2]
    assert routing.call_counts()["the program allows TF32"] == 4


def test_the_latest_word_on_tf32_counts(torch, routing, monkeypatch) -> None:
    """As it does for torch's own products: the older way of asking still tells what was said before."""
    matmul = torch.backends.cuda.matmul
    monkeypatch.setattr(matmul, "fp32_precision", "ieee")
    before = torch.get_float32_matmul_precision()
    with routing:
        torch.set_float32_matmul_precision("high")
        assert not check(torch, "mm", *operands())
        matmul.fp32_precision = "ieee"
        assert torch.get_float32_matmul_precision() == "high" and check(torch, "mm", *operands())
        matmul.fp32_precision = "tf32"
        assert not check(torch, "mm", *operands())
        torch.set_float32_matmul_precision(before)
        assert check(torch, "mm", *operands())


def test_a_variable_that_forces_tf32_is_told_of(torch, routing, monkeypatch) -> None:
    """Of torch's own products: it says nothing of it itself."""
    for value, is_told in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
        assert ("left alone, run as TF32" in routing.report()) == is_told


def test_one_routing_at_a_time_and_again_after_it(torch, routing, driver, tmp_path) -> None:
    other = Dispatcher(write_table(driver.table, tmp_path / "o"), driver=driver).torch()
    with routing, pytest.raises(DispatchError, match="routed already"), other:
        pass
    with pytest.raises(ZeroDivisionError), routing:
        raise ZeroDivisionError
    with other:
        assert check(torch, "mm", *operands())
    with routing:
        assert check(torch, "mm", *operands())
    assert not FakeLibrary.registered


def test_what_is_missing_is_told(torch, driver, tmp_path, monkeypatch) -> None:
    runtime = Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver)
    monkeypatch.setattr(core, "FOLDER", tmp_path)
    core.library.cache_clear()
    with pytest.raises(DispatchError, match="need the core"):
        runtime.torch()
    monkeypatch.undo()
    core.library.cache_clear()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(DispatchError, match="import it"):
        runtime.torch()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(library=SimpleNamespace(), __version__="2.1"))
    with pytest.raises(DispatchError, match="update it"):
        runtime.torch()


def test_kinds_that_the_core_forgets_are_told_of_once(torch, routing) -> None:
    with routing:
        for n in (60, 61, 62, 63, 64, 60, 61):
            assert check(torch, "mm", *operands(n=n))
            core.library().autotune_forget(routing._plain._engine._engine_of(0).core.handle)
    assert sorted((kind.gemm.n, kind.num_calls) for kind in routing.kinds()) == [
        (60, 2), (61, 2), (62, 1), (63, 1), (64, 1),
    ]  # fmt: skip


def test_a_program_of_endlessly_many_kinds_keeps_a_few(torch, routing, monkeypatch) -> None:
    """And its calls are counted all the same, those that come again and again and those that are left alone
    too."""
    monkeypatch.setattr("autotune.runtime.torch.routed_engine.MAX_DECIDED", 3)
    with routing:
        for n in (60, 61, 62, 63, 64) * 20:
            assert check(torch, "mm", *operands(n=n))
            assert not check(torch, "mm", *operands(LOSES, n=n))
            assert not check(torch, "addmm", normal(70, n), *operands(LOSES, n=n))
            assert len(routing.kinds()) <= 3
    assert "100 products served, 200 left alone; predicted, not measured: 1.0 ms" in routing.report()
    assert "200 x cuBLAS is expected to be as fast" in routing.report()


def test_what_is_routed_is_counted_and_recorded_with_what_is_left_alone(torch, driver, tmp_path) -> None:
    runtime = Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver)
    runtime.record_calls(tmp_path / "calls.json")
    with runtime.torch() as routing:
        assert runtime.torch() is routing
        for _ in range(3):
            check(torch, "mm", *operands())
            check(torch, "mm", *operands(LOSES))
            check(torch, "mm", normal(70, 80)[:, ::2], operands()[1])  # no kernel takes it: torch copies it
            check(torch, "mm", operands()[0][:0], operands()[1])  # nothing to compute
            check(torch, "addmm", normal(66), *operands(), beta=0.5)
            check(torch, "addmm", normal(66), *operands(LOSES))
    biased = [one for one in runtime.counts() if one.epilogue == EPILOGUES["bias"]]
    assert Counter({(one.gemm.k, one.provider): one.calls for one in biased}) == {
        (WINS, "autotune"): 3,  # C begins as a copy
        (LOSES, "cublas"): 3,
    }
    found = Counter({(one.gemm.k, one.provider): 0 for one in runtime.counts()})
    for one in runtime.counts():
        found[one.gemm.k, one.provider] += one.calls
    assert +found == {(WINS, "autotune"): 6, (LOSES, "cublas"): 6, (WINS, "cublas"): 3}


def test_another_table_is_taken_between_two_routed_products(torch, driver, tmp_path, monkeypatch) -> None:
    """In C++ and in Python, without that routing is left; calls before that still count."""
    program = Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver)
    later = make_table(*(make_kernel(f"later-{x}", make_spec(x, group=8)) for x in ("NN", "NT", "TN", "TT")))
    other = Dispatcher(write_table(later, tmp_path / "other")).models[0]
    driver.table = replace(driver.table, kernels=(*driver.table.kernels, *later.kernels[:4]))
    with program.torch() as routing:
        for name in ("NN", "later-NN"):
            for _ in range(3):
                assert check(torch, "mm", *operands())
                assert check(torch, "addmm", normal(70, 66), *operands(), beta=2.0)
                assert not check(torch, "mm", *operands(LOSES))
            assert driver.launches[-1].kernel_id == name
            if name == "NN":
                program.exchange({other.gpu_model: (other.table, other._code)})
    assert len(driver.launches) == 12
    assert routing.call_counts()[""] == 12 and program.counts()
