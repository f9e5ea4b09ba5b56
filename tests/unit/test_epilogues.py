"""Bias and activation at the runtime: which kernel serves, what it is given, and what is refused.

Products are computed by the simulated driver, which reads what a launch passes as a kernel with an epilogue
does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from fake_blas import FakeBlas
from table_cases import (
    FakeDriver,
    OnGpu,
    activated,
    make_kernel,
    make_spec,
    make_table,
    rank,
    sign,
    with_epilogues,
    write_table,
)
from test_batches import normal
from test_recorded_calls import until_recorded
from test_tensor_calls import _Tensor, offered

from autotune.export.check import verify_table
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError, UsageError
from autotune.kernel.launch import ACTIVATED, ACTIVATIONS, EPILOGUES, PLAIN, Variant, name_of, named
from autotune.runtime.dispatcher import Activation, Dispatcher, _describe
from autotune.runtime.native import core
from autotune.suite import CallSignature, epilogues_of, read_calls

__all__ = ["offered"]
Array = np.ndarray[Any, Any]
SMALL = Gemm(20, 12, 16)
TWO, LAST, PACKS, WIDE = (replace(SMALL, k=k) for k in (64, 80, 128, 256))
BATCH = Gemm(20, 12, 32, batch=6)


def _table() -> Any:
    """Every kind of launch, each tuned for a shape; cuBLAS is slower."""
    batched = Variant(is_batched=True)
    kernels = [
        *(make_kernel(f"plain-{x.lower()}", make_spec(x)) for x in LAYOUTS),
        make_kernel("two", make_spec(reduction="two_pass", split_k=2)),
        make_kernel("last", make_spec(reduction="last_block", split_k=2)),
        make_kernel("packs", make_spec(packs_a=True, packs_b=True, vec_a=4, vec_b=4)),
        make_kernel("vectors", make_spec(vec_a=4, vec_b=4, vec_c=4)),
        make_kernel("many", make_spec(variant=batched), None),
    ]
    transposed = [replace(SMALL, trans_a=x[0] == "T", trans_b=x[1] == "T") for x in LAYOUTS]
    entries = (
        *(rank(gemm, f"plain-{gemm.layout.lower()}") for gemm in transposed),
        *(rank(gemm, name) for gemm, name in ((TWO, "two"), (LAST, "last"), (PACKS, "packs"))),
        rank(WIDE, "vectors"),
        rank(BATCH, "many"),
    )
    return make_table(*kernels, entries=entries)


FULL = with_epilogues(_table(), *EPILOGUES.values())
TUNED = [entry.gemm for entry in FULL.entries]
REQUESTED = [(has_bias, activation) for has_bias in (False, True) for activation in (None, *ACTIVATED)][1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(FULL, tmp_path_factory.mktemp("epilogues") / "t")


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(FULL)


@pytest.fixture
def runtime(folder: Path, driver: FakeDriver, blas: FakeBlas) -> Dispatcher:
    return Dispatcher(folder, driver=driver, cublas=True)


def operands(gemm: Gemm) -> tuple[Array, Array, Array, Array]:
    stack = (gemm.batch,) if gemm.is_batched else ()
    a = (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)
    b = (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)
    c = normal(*stack, gemm.m, gemm.n, seed=2)
    return normal(*stack, *a), normal(*stack, *b, seed=1), c, normal(gemm.n, seed=3)


def expected(
    gemm: Gemm, a: Array, b: Array, c: Array, scales: tuple[float, float], bias: Array | None, activation: Any
) -> Array:
    alpha, beta = scales
    a, b = (np.swapaxes(x, -1, -2) if turns else x for x, turns in ((a, gemm.trans_a), (b, gemm.trans_b)))
    found = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + (beta * c if beta else 0)
    return activated(found if bias is None else found + bias, activation)


def close(found: Array, other: Array) -> None:
    np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-4)


@pytest.mark.every(4)
@pytest.mark.parametrize(("has_bias", "activation"), REQUESTED)
@pytest.mark.parametrize("gemm", TUNED, ids=str)
def test_the_kernel_that_would_serve_the_plain_product_serves_with_its_epilogue(
    runtime: Dispatcher, driver: FakeDriver, blas: FakeBlas, gemm: Gemm, has_bias: bool, activation: Any
) -> None:
    for scales in ((1.0, 0.0), (0.5, -2.0), (0.0, 1.0)):
        a, b, c, vector = operands(gemm)
        bias = vector if has_bias else None
        want = expected(gemm, a, b, c, scales, bias, activation)
        if not scales[1]:
            c.fill(np.nan)
        driver.launches.clear()
        runtime.sgemm(
            *(OnGpu(a), OnGpu(b), OnGpu(c)), alpha=scales[0], beta=scales[1], trans_a=gemm.trans_a,
            trans_b=gemm.trans_b, bias=None if bias is None else OnGpu(bias), activation=activation,
        )  # fmt: skip
        close(c, want)
        pick = runtime.pick(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, batch=gemm.batch)
        [launched] = {one.kernel_id for one in driver.launches if one.name == "sgemm"}
        kernel = next(kernel for kernel in FULL.kernels if kernel.id == launched)
        assert FULL.plain_ids()[launched] == pick.kernel_id != launched
        assert kernel.variant.epilogue.bias == ("columns" if has_bias else "none")
        assert kernel.variant.epilogue.activation == (activation or "none")
    assert not blas.served


def test_calls_are_counted_and_recorded_with_what_they_ask_for(runtime: Dispatcher, tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    runtime.record_calls(file)
    requested = [(False, None), *REQUESTED, *REQUESTED]
    for gemm in (SMALL, BATCH):
        a, b, c, vector = map(OnGpu, operands(gemm))
        for has_bias, activation in requested:
            runtime.sgemm(a, b, c, bias=vector if has_bias else None, activation=activation)
    expected = {PLAIN: 1, **dict.fromkeys(EPILOGUES.values(), 2)}
    for gemm in (SMALL, BATCH):
        assert {one.epilogue: one.calls for one in runtime.counts() if one.gemm == gemm} == expected
    until_recorded(file, 2 * len(requested))
    found = read_calls(file).calls
    assert found == {
        CallSignature.packed(gemm)._replace(epilogue=one): calls
        for gemm in (SMALL, BATCH)
        for one, calls in expected.items()
    }
    assert epilogues_of(found) == dict.fromkeys((SMALL, BATCH), tuple(epilogues_of(found)[SMALL]))
    assert set(epilogues_of(found)[SMALL]) == set(EPILOGUES)


def test_where_cublas_would_serve_the_kernel_does(
    runtime: Dispatcher, driver: FakeDriver, blas: FakeBlas
) -> None:
    """As a batch that nobody tuned, which is launched for each product, all of which share the bias."""
    gemm = Gemm(9, 9, 9, batch=5)
    a, b, c, bias = operands(gemm)
    for _ in range(2):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
        assert len(blas.served) == 1 and not driver.launches
        want = expected(gemm, a, b, c, (1.0, 0.0), bias, "relu")
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(bias), activation="relu")
        close(c, want)
        assert len(blas.served) == 1 and len(driver.launches) == 5
        blas.served.clear()
        driver.launches.clear()


def test_products_of_any_size_and_none(runtime: Dispatcher) -> None:
    for gemm in (Gemm(1, 1, 1), Gemm(70, 1, 33), Gemm(1, 70, 0), Gemm(7, 9, 300), Gemm(130, 67, 31)):
        a, b, c, bias = operands(gemm)
        want = expected(gemm, a, b, c, (2.0, 1.0), bias, "gelu")
        out = runtime.sgemm(
            OnGpu(a), OnGpu(b), OnGpu(c), alpha=2.0, beta=1.0, bias=OnGpu(bias), activation="gelu"
        )
        close(out.data, want)
    a, b, c, bias = operands(Gemm(0, 5, 4))
    assert runtime.sgemm(a, b, c, bias=bias) is c


def test_arrays_of_the_host(runtime: Dispatcher) -> None:
    for gemm in (SMALL, TWO, BATCH):
        a, b, c, _ = operands(gemm)
        bias = normal(2 * gemm.n)[::2]
        want = expected(gemm, a, b, c, (1.0, 0.0), bias, "gelu_tanh")
        close(runtime.sgemm(a, b, bias=bias, activation="gelu_tanh"), want)
    with pytest.raises(DispatchError, match="bias has 24 elements, expected 12"):
        runtime.sgemm(a, b, bias=normal(24))
    with pytest.raises(DispatchError, match="overlaps an input"):
        runtime.sgemm(a[0], b[0], c[0], bias=c[0][3])
    with pytest.raises(DispatchError, match="are mixed"):
        runtime.sgemm(a, b, bias=OnGpu(bias))


def test_stacks_of_stacks_share_the_bias(runtime: Dispatcher) -> None:
    a, b, bias = normal(3, 2, 20, 32), normal(2, 32, 12, seed=1), normal(12, seed=2)
    c = normal(3, 2, 20, 12)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(bias), activation="relu")
    close(c, activated(a.astype(np.float64) @ b + bias, "relu"))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "too long": ({"bias": OnGpu(normal(13))}, "bias has 13 elements, expected 12: one for each column"),
    "one": ({"bias": OnGpu(normal(1))}, "bias has 1 elements, expected 12"),
    "a matrix": ({"bias": OnGpu(normal(1, 12))}, "bias has 2 dimensions, not 1; pass a vector"),
    "a number": ({"bias": 2.0}, "bias is a float; pass a torch"),
    "doubles": ({"bias": OnGpu(normal(12).astype(np.float64))}, "bias has dtype float64; convert"),
    "every second": ({"bias": OnGpu(normal(24)[::2])}, "bias has elements 2 floats apart"),
    "of the host": ({"bias": normal(12)}, "arrays of the host and of a GPU are mixed"),
    "no activation": ({"activation": "tanh"}, "activation is 'tanh'; pass one of relu, gelu, gelu_tanh"),
    "the name of none": ({"activation": "none"}, "activation is 'none'; pass one of"),
    "many": ({"activation": np.zeros(3)}, "activation is 'a ndarray'; pass one of"),
    "no text": ({"activation": True}, "activation is 'a bool'; pass one of"),
    "nothing to ask": ({"activation": ["relu"]}, "activation is 'a list'; pass one of"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told_before_anything_is_launched(
    runtime: Dispatcher, driver: FakeDriver, what: str
) -> None:
    options, message = WRONG[what]
    a, b, c, _ = operands(SMALL)
    with pytest.raises(DispatchError, match=message):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), **options)
    assert not driver.launches


def test_places_of_the_bias_are_looked_at(runtime: Dispatcher, driver: FakeDriver) -> None:
    a, b, c, bias = operands(SMALL)
    driver.places[bias.ctypes.data] = 1
    with pytest.raises(DispatchError, match="bias is on GPU 1, the product on GPU 0"):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(bias))
    with pytest.raises(DispatchError, match="overlaps an input"):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(c[5]))
    assert not driver.launches
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(b[5]))  # it is read as b is


def test_a_table_without_the_epilogue_names_the_option(tmp_path: Path) -> None:
    some = with_epilogues(_table(), EPILOGUES["bias"], EPILOGUES["bias-gelu-tanh"])
    driver = FakeDriver(some)
    runtime = Dispatcher(write_table(some, tmp_path / "some"), driver=driver, cublas=False)
    a, b, c, bias = operands(SMALL)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(bias), activation="gelu_tanh")
    driver.launches.clear()
    message = r"without the epilogue bias-relu; export it with `autotune export-table --epilogue bias-relu`"
    for _ in range(2):
        with pytest.raises(DispatchError, match=message):
            runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(bias), activation="relu")
    with pytest.raises(DispatchError, match="without the epilogue gelu;"):
        runtime.prepare([(20, 12, 16)], activation="gelu")
    assert not driver.launches


def test_a_gpu_that_cublas_serves_has_none(folder: Path, blas: FakeBlas) -> None:
    driver = FakeDriver(FULL, names=("NVIDIA T4",))
    runtime = Dispatcher(folder, driver=driver, fallback="cublas")
    a, b, c, _ = operands(SMALL)
    with pytest.warns(), pytest.raises(DispatchError, match="cuBLAS serves: it adds no bias"):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), activation="relu")


def test_what_is_prepared_is_loaded(runtime: Dispatcher, driver: FakeDriver) -> None:
    [pick] = runtime.prepare([(20, 12, 16)], has_bias=True, activation="relu")
    assert pick == runtime.pick(20, 12, 16)
    loaded = len(driver.of("load"))
    a, b, c, bias = operands(SMALL)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(bias), activation="relu")
    assert len(driver.of("load")) == loaded == 1
    [counted] = runtime.counts()
    assert (counted.gemm, counted.calls) == (SMALL, 1)
    assert counted.kernel_id.endswith("bias_columns-relu")


def test_a_first_use_is_settled_by_plain_kernels(folder: Path, driver: FakeDriver) -> None:
    """Whichever is faster serves, with the epilogue."""
    runtime = Dispatcher(folder, driver=driver, settle="first-use", cublas=False)
    gemm = Gemm(130, 67, 310)
    for _ in range(2):
        a, b, c, bias = operands(gemm)
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), bias=OnGpu(bias), activation="relu")
        close(c, expected(gemm, a, b, c, (1.0, 0.0), bias, "relu"))
    assert runtime.pick(gemm.m, gemm.n, gemm.k).how == "settled"


@pytest.mark.stress
def test_verify_runs_kernels_with_their_epilogues(folder: Path, driver: FakeDriver) -> None:
    found = [*verify_table(folder, driver=driver)]
    assert not [check for check in found if not check.is_ok]
    assert len(FULL.kernels) == len({check.kernel_id for check in found})
    driver.result_error = 1e-2
    some = verify_table(folder, driver=driver, is_checked=lambda kernel: not kernel.is_plain)
    wrong = {check.kernel_id for check in some if not check.is_ok}
    assert wrong and not wrong & {kernel.id for kernel in FULL.kernels if kernel.is_plain}


def test_a_choice_of_a_kernel_with_an_epilogue_is_none(
    folder: Path, driver: FakeDriver, tmp_path: Path
) -> None:
    """A plain call would have it read a bias that is not there."""
    first = Dispatcher(folder, driver=driver, cublas=False)
    first.settle([(130, 67, 310)])
    pinned = tmp_path / "choices.json"
    first.export_choices(pinned)
    tree = json.loads(pinned.read_text())
    [choice] = tree["choices"]
    own = Dispatcher(folder, driver=driver, choices=pinned).pick(130, 67, 310)
    assert (own.how, own.kernel_id) == ("settled", choice["kernel"])
    choice["kernel"] = f"{choice['kernel']}-relu"
    pinned.write_text(sign(tree))
    assert Dispatcher(folder, driver=driver, choices=pinned).pick(130, 67, 310).how == "modelled"


@pytest.mark.parametrize(("has_bias", "activation"), REQUESTED)
def test_the_core_reads_a_bias_of_torch_by_itself(
    folder: Path, driver: FakeDriver, offered: Any, monkeypatch: Any, has_bias: bool, activation: Any
) -> None:
    offered()
    runtime = Dispatcher(folder, driver=driver, cublas=False)
    bias = _Tensor(normal(12, seed=3)) if has_bias else None
    for gemm in (SMALL, BATCH):
        a, b, c, _ = operands(gemm)
        want = expected(gemm, a, b, c, (0.5, 2.0), bias and bias.data, activation)
        call: Any = {"bias": bias, "activation": activation}
        for number in range(3):
            out = _Tensor(c.copy())
            assert runtime.sgemm(_Tensor(a), _Tensor(b), out, alpha=0.5, beta=2.0, **call) is out
            close(out.data, want)
            if not number:
                new = runtime.sgemm(_Tensor(a), _Tensor(b), alpha=0.5, **call)  # its place differs
                refuse_python(runtime, monkeypatch)
        assert new.data.shape == c.shape
        monkeypatch.undo()
        offered()
    assert {one.kernel_id.partition("-bias")[0].partition("-relu")[0] for one in driver.launches}


def refuse_python(runtime: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("Python was asked")

    monkeypatch.setattr(runtime._on_gpus()[1], "multiply", refuse)


@pytest.mark.parametrize(
    "what", ["long", "matrix", "doubles", "strided", "elsewhere", "gradient", "activation"]
)
def test_a_bias_of_torch_that_does_not_fit_is_refused_as_ever(
    folder: Path, driver: FakeDriver, offered: Any, what: str
) -> None:
    offered()
    runtime = Dispatcher(folder, driver=driver, cublas=False)
    a, b, c, vector = operands(SMALL)
    right, call = _Tensor(vector), (_Tensor(a), _Tensor(b), _Tensor(c))
    for _ in range(2):
        runtime.sgemm(*call, bias=right)
    wrong: dict[str, Any] = {
        "long": _Tensor(normal(13)),
        "matrix": _Tensor(normal(1, 12)),
        "doubles": _Tensor(normal(12).astype(np.float64), dtype="float64", kind={"bits": 64}),
        "strided": _Tensor(normal(24)[::2]),
        "elsewhere": _Tensor(normal(12), kind={"device_id": 1}),
        "gradient": _Tensor(normal(12), requires_grad=True),
    }
    messages = {
        "long": "bias has 13 elements", "matrix": "bias has 2 dimensions", "doubles": "bias has dtype",
        "strided": "2 floats apart", "elsewhere": "bias is on GPU 1", "gradient": "bias requires grad",
        "activation": "activation is 'swish'",
    }  # fmt: skip
    driver.launches.clear()
    for _ in range(2):
        with pytest.raises(DispatchError, match=messages[what]):
            if what == "activation":
                runtime.sgemm(*call, bias=right, activation="swish")  # type: ignore[arg-type]
            else:
                runtime.sgemm(*call, bias=wrong[what])
    assert not driver.launches


def test_an_out_by_columns_takes_a_bias_by_a_copy(folder: Path, driver: FakeDriver, offered: Any) -> None:
    """It would lie along the rows of the transpose; an activation is the same for both."""
    offered()
    runtime = Dispatcher(folder, driver=driver, cublas=False)
    a, b, _, bias = operands(SMALL)
    for number in (1, 2):
        out = _Tensor(normal(12, 20).T)
        want = expected(SMALL, a, b, out.data.copy(), (1.0, 1.0), bias, "relu")
        runtime.sgemm(_Tensor(a), _Tensor(b), out, beta=1.0, bias=_Tensor(bias), activation="relu")
        close(out.data, want)
        assert runtime.num_copied == {"out": number}
    want = expected(SMALL, a, b, out.data, (1.0, 0.0), None, "relu")
    runtime.sgemm(_Tensor(a), _Tensor(b), out, activation="relu")
    close(out.data, want)
    assert runtime.num_copied == {"out": 2}


def test_names_lead_to_epilogues_and_back() -> None:
    assert [name_of(one) for one in named(EPILOGUES)] == list(EPILOGUES)
    assert named(["bias", "relu", "bias"]) == (EPILOGUES["bias"], EPILOGUES["relu"])
    assert PLAIN not in EPILOGUES.values()
    with pytest.raises(UsageError, match="no epilogue is named 'bias-tanh'; pass some of bias, relu, gelu,"):
        named(["bias", "bias-tanh"])


def test_an_activation_is_typed_by_what_a_call_may_ask_for() -> None:
    assert get_args(Activation) == ACTIVATED


def test_the_core_numbers_activations_as_python_does() -> None:
    requested: list[Any] = [None, *ACTIVATED, "none", "swish", 1, ["relu"]]
    assert [_describe(activation) for activation in requested] == [0, 1, 2, 3, *4 * [-1]]
    header = (core.FOLDER / "autotune_sgemm.h").read_text(encoding="utf-8")
    listed = header[header.index("AUTOTUNE_ACTIVATION_NONE") : header.index("} autotune_activation")]
    places = [listed.index(f"AUTOTUNE_ACTIVATION_{name.upper()}") for name in ACTIVATIONS]
    assert places == sorted(places)
