"""Runs the kernels of an exported folder: C[m,n] = alpha * op(A) * op(B) + beta * C, FP32, row-major; arrays
of more dimensions are batches of such products (product.py).

A call does three things: it reads address, extents and strides of its arrays; it looks up what it did
for such a call before (the first time: picks a kernel, loads it, plans the launch); it launches. Only
the first call of its kind on a GPU is slow. No call waits for the GPU, so calls work under graph capture.
There is one exception: if the caller asks for it, a first call settles its kind, and waits; under capture
this is postponed. Where cuBLAS is expected to be faster than all kernels, it is called instead. A folder
may hold tables for several GPU models: each GPU is served by the one for its model.

Needs cuda-bindings and numpy, for DLPack arrays cuda-core too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from weakref import WeakValueDictionary

from ..facts.accuracy_class import STRICT
from ..facts.accuracy_class import read as read_class
from ..facts.gemm import FP32, Gemm
from ..files.errors import DispatchError
from ..files.words import chosen, flag, whole
from ..kernel.launch import ACTIVATIONS
from .calls.product import Activation, Fallback, Settle, make_gemm, packed_forms
from .choose.blas_provider import BlasProvider
from .choose.chooser import Counted, Pick
from .native.processes import FORK_LOCK, check_fork, use_cuda
from .served_model import ServedModel, open_models

if TYPE_CHECKING:
    from .calls.multiply import Engines, Products
    from .launch.cuda_driver import Driver
    from .launch.planner import Planner
    from .service.program_client import ProgramClient
    from .settle.settling import QuickCheck
    from .table.gpu_models import CubinFiles, GpuModel
    from .table.table import Table
    from .torch.tensor_calls import TorchCalls
    from .torch.torch_router import ProgramGain
    from .torch.torch_routing import TorchRouting

_CHOICES, _RECORD, _SERVER = "AUTOTUNE_CHOICES", "AUTOTUNE_RECORD", "AUTOTUNE_SERVER"
_OWN_FOLDER = Path(__file__).resolve().parents[2]  # of an exported table
_made: WeakValueDictionary[tuple[str, _Options, int], Dispatcher] = WeakValueDictionary()


class _Options(NamedTuple):
    """Of a dispatcher, as they were passed."""

    settle: Settle | None
    deterministic: bool
    choices: str | Path | None
    cublas: bool | None
    fallback: Fallback | None
    accuracy: str


class Dispatcher:
    """Serves matrix products from one exported folder. Threads may share it.

    Reads the whole folder at once and checks its tables. A compiled kernel is unpacked and checked when it is
    first needed (table/gpu_models.py). The modules that launch are imported, and CUDA is initialised, at the
    first product.

    settle: "first-use" times the model's first few accurate launches at the first call of a kind that was not
    tuned, outside of graph capture, and keeps the fastest in a file of the cache folder, for this and later
    processes (settling.py). "live" settles routed products of torch on the program's own calls, by launches
    that sum alike, "live-any-order" by others, too (LivePlan). "off", the default, waits for no
    GPU; `settle()` still works. By default the environment variable AUTOTUNE_SETTLE decides.
    choices: a file that `export_choices` wrote. Its choices have priority over all others. By default the
    environment variable AUTOTUNE_CHOICES names it.
    deterministic: only the folder and the file of choices decide what serves a call, in every process.
    Nothing is settled, and no choices settled elsewhere are read. cuBLAS is called only if `cublas` is True.
    cublas: whether cuBLAS is called where it is expected to be faster than every kernel of the table
    (blas_provider.py). By default the environment variable AUTOTUNE_CUBLAS, 0 or 1, decides; without it, yes.
    fallback: what happens to products on a GPU without a table in the folder. "refuse", the default, raises
    an error; with "cublas", cuBLAS serves them, with one warning. By default the environment variable
    AUTOTUNE_FALLBACK decides, unless `deterministic`.

    accuracy: the class of what serves calls that name none (facts/accuracy_class.py): "strict", the default,
    or "fp32", which takes kernels on tensor cores, too, whose errors are no larger than SGEMM's, or
    "fp32-range", which takes those of scaled operands, if the folder was exported for it.

    `tables`: those of all GPU models; `table`: the first of them, which was exported first.
    `num_copied`: how many products needed a packed copy of a, of b or of out.
    If the environment variable AUTOTUNE_RECORD names a file, calls are recorded there (`record_calls`). If
    AUTOTUNE_SERVER is set, a server is told how calls are served, and offers tables (service/).
    A copy, and what is unpickled in the same process, is the dispatcher itself. Another process opens the
    folder again, once, with the same options; what was settled or counted here stays here.

    Raises DispatchError if the folder or the choices are missing, damaged, or newer than this code, if the
    choices are of another table, and if an option has an unknown value."""

    def __init__(
        self,
        folder: str | Path,
        *,
        settle: Settle | None = None,
        deterministic: bool = False,
        choices: str | Path | None = None,
        cublas: bool | None = None,
        fallback: Fallback | None = None,
        accuracy: str = STRICT,
        driver: Driver | None = None,
    ) -> None:
        self._is_deterministic = flag("deterministic", deterministic, error=DispatchError)
        if deterministic and settle not in (None, "off"):
            raise DispatchError(
                "a deterministic dispatcher settles nothing; leave out settle or deterministic"
            )
        settles = self._chosen("settle", settle, get_args(Settle), "off")
        self._fallback: Fallback = self._chosen("fallback", fallback, get_args(Fallback), "refuse")
        is_on = None if cublas is None else str(int(flag("cublas", cublas, error=DispatchError)))
        is_on = self._chosen("cublas", is_on, ("0", "1"), "0" if deterministic else "1")
        blas = BlasProvider(is_on == "1")
        self.accuracy = read_class(accuracy, error=DispatchError)
        self._models = open_models(
            Path(folder), blas, settles, is_deterministic=deterministic, accuracy=accuracy
        )
        self.tables = tuple(model.table for model in self._models)
        self.table = self.tables[0]
        self._lock = threading.RLock()
        pinned = os.environ.get(_CHOICES) if choices is None else choices
        if pinned:
            self._pin(Path(pinned))
        self.is_exchangeable = not (deterministic or pinned)
        self._others: dict[str, Dispatcher] = {}  # of the same folder, by the class that they serve
        self.num_copied = Counter[str]()
        self._driver = driver
        self._opened: tuple[Engines, Products] | None = None
        self._former: list[tuple[Engines, Products]] = []  # of earlier tables: graphs may hold their kernels
        self._client: ProgramClient | None = None
        self._is_without_cuda = False  # as a pick found out
        self._routing: TorchRouting | None = None
        self._record_file: str | None = None
        if os.environ.get(_RECORD):
            self.record_calls(os.environ[_RECORD])
        self._tensors: TorchCalls | None = None
        self._met_torch: set[Planner] = set()
        choices_path = choices and str(Path(choices).absolute())
        options = _Options(settle, deterministic, choices_path, cublas, fallback, accuracy)
        made_by = _describe_folder(Path(folder)), options
        # The same number in each process that makes as many alike
        number = next(one for one in count() if _made.setdefault((*made_by, one), self) is self)
        self._made_by = (*made_by, number)

    def _chosen(self, name: str, value: Any, allowed: tuple[str, ...], default: str) -> Any:
        """An option, or what the environment says of it; that decides nothing for a deterministic one."""
        variable = "" if self._is_deterministic else f"AUTOTUNE_{name.upper()}"
        return chosen(name, value, allowed, default, variable, error=DispatchError)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_so, self._made_by

    def __copy__(self) -> Dispatcher:
        return self

    def __deepcopy__(self, _: object) -> Dispatcher:
        return self

    def for_class(self, accuracy: str) -> Dispatcher:
        """The dispatcher of the same folder and options that serves another class of accuracy; itself for its
        own. Files of choices are of one class, and not passed on. Raises DispatchError if the folder serves
        no such class."""
        if accuracy == self.accuracy:
            return self
        with self._lock:
            if accuracy not in self._others:
                folder, options, _ = self._made_by
                options = options._replace(choices="", accuracy=accuracy)
                other = Dispatcher(folder or _OWN_FOLDER, **options._asdict(), driver=self._driver)
                if self._record_file is not None:
                    other.record_calls(self._record_file)
                self._others[accuracy] = other
            return self._others[accuracy]

    def pick(
        self,
        m: int,
        n: int,
        k: int,
        trans_a: bool = False,
        trans_b: bool = False,
        *,
        batch: int = 1,
        shares_a: bool = False,
        shares_b: bool = False,
        device: int | None = None,
        accuracy: str | None = None,
        a_type: str = FP32,
    ) -> Pick:
        """What a product of packed, aligned matrices would run, and why. Needs no GPU; choices settled on one
        are known after a product ran there, or `settle` was called.

        `batch`: number of products, one after the other; `shares_a` (`shares_b`): all read the same A (B).
        `device`: number of the GPU. Without it a folder with one table asks no GPU; among several tables, the
        one for the current GPU decides, else the one for the first GPU that has one, else the first table.
        `accuracy`: as of `sgemm`; `a_type`: "bf16" or "fp16", if a is of that. Raises DispatchError for
        extents that are not whole numbers or out of range, for a GPU that is not served, and a class that the
        folder does not serve."""
        if accuracy is not None and accuracy != self.accuracy:
            shape = (m, n, k, trans_a, trans_b)
            return self.for_class(accuracy).pick(
                *shape, batch=batch, shares_a=shares_a, shares_b=shares_b, device=device, a_type=a_type
            )
        is_one = device is None and len(self._models) == 1
        model = self._models[0] if is_one else self._gpu_model_here(device)
        # 1, True and 1.0 are one key: what is of another type is checked first
        if (
            model
            and batch == 1
            and a_type == FP32
            and type(m) is type(n) is type(k) is int
            and type(trans_a) is type(trans_b) is bool
        ):
            found = model.cached_pick((m, n, k, trans_a, trans_b))
            if found is not None:
                return found
        gemm = make_gemm(m, n, k, trans_a, trans_b, batch, shares_a, shares_b, a_type)
        if model is not None:
            return model.pick(gemm)
        from .launch.planner import blas_pick

        return blas_pick(gemm)

    def _gpu_model_here(self, device: int | None) -> ServedModel | None:
        """The model whose table serves a GPU; None if cuBLAS does. If no GPU is named and none can be used,
        the first model. Raises DispatchError for a named GPU that is not served."""
        if device is not None:
            engines, _ = self._on_gpus()
            return engines.model(_number(device))
        if self._is_without_cuda:
            return self._models[0]
        try:
            engines, _ = self._on_gpus()
            return engines.model(engines.for_host())
        except DispatchError:
            self._is_without_cuda = self._opened is None  # to look for it takes long
            return self._models[0]

    def settle(self, shapes: Iterable[tuple[Any, ...]], *, device: int | None = None) -> list[Pick]:
        """Time the model's first few launches for shapes that were not tuned, once, and keep the fastest.

        Shapes are (m, n, k) or (m, n, k, trans_a, trans_b), of packed matrices whose addresses are multiples
        of 16. Batches, as `prepare` takes them, are left as they are. Choices settled before on such a GPU,
        by any process, are not timed again, and serve from now on. `device`: number of the GPU, by default
        the current one. Waits for the GPU.

        Returns what serves each shape. A shape that cannot be settled keeps the model's choice, with a
        warning. Raises DispatchError for an invalid shape, if this dispatcher is deterministic, and under
        capture."""
        if self._is_deterministic:
            raise DispatchError(
                "a deterministic dispatcher settles nothing; settle with another one, write what came of it "
                "with export_choices, and pass the file as choices="
            )
        from .launch.planner import blas_pick

        gemms = _gemms(shapes)
        engines, number = self._open_for(device)
        model = engines.model(number)
        if model is None:  # cuBLAS serves all
            return [blas_pick(gemm) for gemm in gemms]
        engines.of(number)
        return model.settle(gemms, engines.driver, number)

    def prepare(
        self,
        shapes: Iterable[tuple[Any, ...]],
        *,
        device: int | None = None,
        has_bias: bool = False,
        activation: Activation | None = None,
    ) -> list[Pick]:
        """Choose, load and plan products of packed matrices ahead, so that the first of each is as fast as
        the next, and may be captured. Nothing is launched, and nothing waits for the GPU's work.

        Shapes are (m, n, k) or (m, n, k, trans_a, trans_b), of matrices whose addresses are multiples of 16;
        behind them, for a batch, its number of products, or that and two flags: whether all share A, or B.
        `device`: number of the GPU, by default the current one. `has_bias`, `activation`: of calls with
        these. Returns what will serve each shape without them.
        Raises DispatchError for what is no shape, and where the table does not fit the GPU."""
        from .choose.chooser import requested
        from .launch.planner import blas_pick

        gemms = _gemms(shapes)
        epilogue = requested(has_bias, activation)
        engines, number = self._open_for(device)
        engine, model = engines.of(number), engines.model(number)
        for gemm in gemms:
            a, b, c = packed_forms(gemm)
            for form_c in (c, None):  # with an out, and without
                call = (number,) * 3, (a, b, form_c), (0, 0, 0), gemm.trans_a, gemm.trans_b
                engine.plan((*call, gemm.strides if gemm.is_batched else None, gemm.a_type, epilogue))
        if model is not None:
            return [model.choose(gemm, number) for gemm in gemms]
        return [blas_pick(gemm) for gemm in gemms]

    def verify_quick(self, *, device: int | None = None) -> QuickCheck:
        """Check one kernel's result against float64, and its time against the recorded one, in some
        milliseconds: `is_right`, `ratio` and `is_as_fast` say what was seen (settling.py). Waits for the
        GPU.

        `device`: number of the GPU, by default the current one. Raises DispatchError where no table is for
        it, under capture, and where the GPU fails."""
        engines, number = self._open_for(device)
        model = engines.model(number)
        if model is None:
            raise DispatchError(f"no table is for GPU {number}, which cuBLAS serves: nothing can be checked")
        return model.verify_quick(engines.driver, number)

    def export_choices(self, path: str | Path, *, device: int | None = None) -> None:
        """Write a file of all that is pinned or was settled so far on such a GPU, for `choices=`. It is of
        the table for that GPU model, and pins no other's.

        `device`: number of the GPU, by default the current one. Raises DispatchError where it cannot be
        written, or no table is for the GPU."""
        if not self._is_deterministic:
            self.settle((), device=device)  # reads what earlier processes settled
        is_one = device is None and len(self._models) == 1
        model = self._models[0] if is_one else self._gpu_model_here(device)
        if model is None:
            raise DispatchError("cuBLAS serves this GPU: there are no choices to write; name another device")
        with FORK_LOCK:  # CUDA may not have been used
            known = model.choices()
        known.export(Path(path))

    def record_calls(self, file: str | Path) -> None:
        """Record what this process calls for into the folder FILE.d: shapes, layouts, leading dimensions and
        alignment, and how often each was served since its first call. Any number of processes may record
        into one FILE.

        Each writes a file of its own there, four times a second where something changed, and at its end: a
        kill loses less than the last second. `autotune search --suite FILE` reads all of them; `autotune
        coverage FILE TABLE` tells what a table does for these calls. What a graph captured counts once,
        however often that is replayed.

        Raises DispatchError where it cannot be written, or calls are recorded into another file."""
        from .native.core import recorded_error

        check_fork()
        named = str(Path(file).absolute())
        _make_folder_beside(named)
        with FORK_LOCK, self._lock:  # its children may record, too
            if self._record_file not in (None, named):
                raise recorded_error()
            self._record_file = named
            for engine in self._engines:
                engine.record(named)
            for other in self._others.values():
                other.record_calls(named)

    def counts(self) -> list[Counted]:
        """How often each call signature was served so far, and by what; of routed products those, too, that
        were left to torch's cuBLAS."""
        own = [counted for _, counted in self.counts_by_engine()]
        return own + [counted for other in list(self._others.values()) for counted in other.counts()]

    def counts_by_engine(self) -> list[tuple[Planner, Counted]]:
        """The same of its own class of accuracy, each with the engine that served it, or left it."""
        return [(engine, counted) for engine in self._engines for counted in engine.counts()]

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The GPU models that it serves."""
        return self._models

    @property
    def cublas_version(self) -> str | None:
        """Of the cuBLAS that this process has loaded."""
        return self._models[0].cublas_version

    @property
    def measured_gain(self) -> ProgramGain | None:
        """What was measured last of the program's gain (`TorchRouting.measure_gain`)."""
        return None if self._routing is None else self._routing.gain

    @property
    def _engines(self) -> list[Planner]:
        opened = [*self._former, *([] if self._opened is None else [self._opened])]
        return [engine for engines, _ in opened for engine in engines.all]

    def exchange(self, tables: Mapping[GpuModel, tuple[Table, CubinFiles]]) -> None:
        """Serve GPUs of these models by other tables from the next call on, of all threads. What earlier
        tables loaded stays loaded, since graphs hold it. Raises DispatchError where the folder has no table
        for such GPUs, and for a deterministic dispatcher or one with a file of choices."""
        models = {model.gpu_model: model for model in self._models}
        if not self.is_exchangeable or not tables.keys() <= models.keys():
            raise DispatchError("only choices that nobody pinned, for GPUs of the folder, may be exchanged")
        found = models | {name: models[name].with_table(*table) for name, table in tables.items()}
        with FORK_LOCK, self._lock:
            self._models = tuple(found.values())
            self.tables = tuple(model.table for model in self._models)
            self.table = self.tables[0]
            if self._opened is not None:
                self._former.append(self._opened)
                self._opened = self._made(self._opened[0].driver)
                self._tensors, self._met_torch = None, set()
                if self._routing is not None:
                    self._routing.exchange(self._opened[0].routed)

    def take_update(self, gather: Callable[[str], Sequence[str]] | None = None) -> bool:
        """Take the tables that a server offers (AUTOTUNE_SERVER, AUTOTUNE_SERVER_KEY), if they have arrived;
        returns whether that was done. A program of one process does so by itself between two calls. Of
        several ranks each calls this at the same step, and all take them if all were offered the same.
        `gather`: returns every rank's text, by default with torch.distributed."""
        return self._client is not None and self._client.take(gather)

    def sgemm(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans_a: bool = False,
        trans_b: bool = False,
        stream: Any = None,
        bias: Any = None,
        activation: Activation | None = None,
        accuracy: str | None = None,
    ) -> Any:
        """C[m,n] = alpha * op(a) * op(b) + beta * C, where op transposes if trans_a (trans_b) is set; with
        bias and activation C = activation(alpha * op(a) * op(b) + beta * C + bias).

        Arrays of more than two dimensions are batches of matrices. Leading dimensions broadcast as NumPy's
        do: what one operand lacks, or has one of, all products share. Those that do not lie regularly in
        memory cost a call for each place of all but the longest of them.

        a, b, out: float32 arrays of torch, CuPy, Numba or anything with DLPack or
        `__cuda_array_interface__`, on one GPU that a table is for. `a` may be of bfloat16 or float16: the
        result is that of a converted to float32, which is exact. A kernel of the class that was searched for
        such an `a` reads it as it is; elsewhere the call converts it first. Rows may be any distance apart;
        a transposed view is taken as such, without a copy, an `out` stored by columns too. Other strides
        cost a packed copy of torch's and CuPy's arrays (`num_copied`), and are refused of others and on a
        `stream` that is passed. `out` must not overlap a or b (their address ranges are compared), nor its
        products each other; it is required where beta is not 0, and for arrays of other libraries. It is
        returned; without it a new array of a's library is.

        bias: a vector with an element for each column of C, which all rows and all products of a batch share.
        activation: "relu", "gelu" (by erf) or "gelu_tanh". Both are applied by the kernel that would serve
        the plain product, never by cuBLAS. The table has to hold it with that epilogue (`autotune
        export-table --epilogue bias-relu`).

        accuracy: "strict", "fp32" or "fp32-range", the class of what may serve this call; by default the
        dispatcher's.

        NumPy arrays are copied to a GPU and the result back: this waits for the GPU and is for
        convenience, not for speed.

        Runs on `stream` (a handle or a stream of torch, CuPy, Numba, cuda.core), by default on the
        current stream of a's library; does not wait, but where a first use is settled. Where libraries are
        mixed, `stream` is required.
        beta = 0 does not read C. Under graph capture pass `out`, unless a is a torch tensor.

        Raises DispatchError before any launch if anything about the call or the table is wrong."""
        if accuracy is not None and accuracy != self.accuracy:
            return self.for_class(accuracy).sgemm(
                a, b, out, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, stream=stream, bias=bias,
                activation=activation,
            )  # fmt: skip
        tensors = self._tensors
        if (
            tensors is not None
            and stream is None
            and tensors.forward_mode._current_level < 0
            and not tensors.dispatch_mode._is_in_torch_dispatch_mode
            and not tensors.is_traced()
        ):
            calls = tensors.calls
            if bias is None and activation is None:
                served = calls.sgemm(a, b, out, alpha, beta, trans_a, trans_b)
            else:
                served = calls.sgemm(a, b, out, alpha, beta, trans_a, trans_b, bias, _describe(activation))
            if served is not None:
                return served
        _, products = self._on_gpus()
        return products.multiply((a, b, out), (alpha, beta), (trans_a, trans_b), stream, (bias, activation))

    def linear(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        """x @ weight.T + bias, as torch's linear, for an x of any number of dimensions, of float32, bfloat16
        or float16, and a float32 weight (n, k): `x.float()` need not be computed before. `options`: as of
        `sgemm`, without flags. Raises DispatchError as that."""
        rows = x if x.ndim > 1 else x[None]
        found = self.sgemm(rows, weight, bias=bias, trans_b=True, **options)
        return found if x.ndim > 1 else found[0]

    def torch(self, accuracy: str | None = None) -> TorchRouting:
        """A context in which products of an unmodified PyTorch program are routed to this table, where it is
        expected to be faster than cuBLAS (torch_routing.py). Its `report()` says how they were served. The
        first time for a torch a C++ compiler runs some 10 s (torch_router.py); AUTOTUNE_ROUTER=0 avoids that.
        `accuracy`: as of `sgemm`.

        Raises DispatchError where torch is not imported or too old, the core was not built, or the folder
        does not serve that class."""
        if accuracy is not None and accuracy != self.accuracy:
            return self.for_class(accuracy).torch()
        from .torch.torch_routing import TorchRouting

        if self._routing is None:
            self._routing = TorchRouting(lambda has_bias: self._on_gpus()[0].routed_signatures(has_bias))
        return self._routing

    def torch_op(self) -> Any:
        """An operator of torch that this dispatcher serves: (a, b, alpha=, trans_a=, trans_b=) -> C, with
        derivatives by this table too, backward and forward, which torch.compile and the transforms of
        torch.func take. The first dispatcher of a process has torch.ops.autotune.sgemm, others sgemm_2 and
        so on, in the order in which they are asked.

        Raises DispatchError where torch is not imported."""
        from .torch.torch_op import register

        return register(self)

    def sgemm_by_core(
        self, a: Any, b: Any, alpha: float, trans_a: bool, trans_b: bool, is_below_autograd: bool = False
    ) -> Any | None:
        """A product of torch's tensors; None for a call signature that is new, not served by the core, or,
        except below autograd, of a tensor that needs a gradient, or while torch does more than compute."""
        tensors = self._tensors
        if tensors is None:
            return None
        if is_below_autograd:
            return tensors.below.sgemm(a, b, None, alpha, 0.0, trans_a, trans_b)
        modes = tensors.dispatch_mode
        if tensors.forward_mode._current_level >= 0 or modes._is_in_torch_dispatch_mode:
            return None
        return tensors.calls.sgemm(a, b, None, alpha, 0.0, trans_a, trans_b)

    def _attach_torch(self, engine: Planner) -> None:
        """From the first product of torch's tensors on, an engine's core reads these, if it can."""
        if engine in self._met_torch:
            return
        from .torch.tensor_calls import TorchCalls

        with self._lock:
            calls, below = engine.tensor_calls(), engine.tensor_calls(is_below_autograd=True)
            is_used = self._opened is not None and engine in self._opened[0].all
            if is_used and calls is not None and below is not None and engine not in self._met_torch:
                tensors = self._tensors or TorchCalls(sys.modules["torch"])
                tensors.add(calls, below)
                self._tensors = tensors
            self._met_torch.add(engine)

    def _pin(self, path: Path) -> None:
        """Use a file of choices for its GPU model. Raises DispatchError if it is of none here."""
        faults = []
        for model in self._models:
            try:
                model.choices(path)
                return
            except DispatchError as fault:
                faults.append(fault)
        raise faults[0]

    def _on_gpus(self) -> tuple[Engines, Products]:
        """What serves this process's GPUs. Raises DispatchError in the fork of a process that used CUDA."""
        use_cuda()
        return self._opened or self._open()

    def _open(self) -> tuple[Engines, Products]:
        from .launch.cuda_driver import Driver

        with self._lock:
            if self._opened is None:
                self._opened = self._made(self._driver or Driver())
                if os.environ.get(_SERVER):
                    from .service.program_client import ProgramClient

                    self._client = ProgramClient(self)
            return self._opened

    def _made(self, driver: Driver) -> tuple[Engines, Products]:
        from .calls.arrays import Libraries
        from .calls.multiply import Engines, Products

        engines = Engines(self._models, driver, self._fallback, self._record_too)
        return engines, Products(engines, Libraries(driver), self.num_copied, self._attach_torch)

    def _open_for(self, device: int | None) -> tuple[Engines, int]:
        """The engines, and the number of a GPU: this one, or that for host arrays. Raises DispatchError."""
        engines, _ = self._on_gpus()
        return engines, engines.for_host() if device is None else _number(device)

    def _record_too(self, engine: Planner) -> None:
        if self._record_file is not None:
            engine.record(self._record_file)


def _describe_folder(folder: Path) -> str:
    """A folder for another process; "": the one that holds this code, wherever it is."""
    is_own = folder.resolve() == _OWN_FOLDER
    return "" if is_own else str(folder.absolute())


def _made_so(folder: str, options: _Options, number: int = 0) -> Dispatcher:
    """The dispatcher of this process that was made so, of those alike the one of a number, or a new one."""
    made_by = folder, options, number
    found = _made.get(made_by)
    if found is None:
        found = Dispatcher(folder or _OWN_FOLDER, **options._asdict())
        del _made[found._made_by]
        found._made_by, _made[made_by] = made_by, found
    return found


def _make_folder_beside(file: str) -> None:
    """For records of calls. Raises DispatchError if it cannot be written, or the file is none."""
    folder = Path(f"{file}.d")
    try:
        if os.path.exists(file) and not os.path.isfile(file):  # noqa: PTH110, PTH113 (None of them raises)
            raise DispatchError(f"calls cannot be recorded in {file}: it is no regular file; name a file")
        folder.mkdir(exist_ok=True)
        fault = None if os.access(folder, os.W_OK | os.X_OK) else "it may not be written"
    except (OSError, ValueError) as error:  # ValueError: a null byte
        fault = getattr(error, "strerror", None) or str(error)
    if fault:
        raise DispatchError(
            f"calls cannot be recorded in {folder}: {fault}; name a file in a folder that can be written"
        )


def _number(device: Any) -> int:
    return whole("device, the number of a GPU,", device, error=DispatchError)


def _gemms(shapes: Any) -> list[Gemm]:
    if not isinstance(shapes, Iterable):
        raise DispatchError(f"{shapes!r:.60} holds no shapes; pass a list of them, such as [(m, n, k)]")
    return [make_gemm(*_extents_and_flags(shape)) for shape in shapes]


def _extents_and_flags(shape: Any) -> tuple[Any, ...]:
    try:
        values = tuple(shape)
    except TypeError:
        values = ()
    if len(values) in (3, 5, 6, 8):
        return (*values, False, False)[:5] if len(values) < 6 else values
    raise DispatchError(
        f"{shape!r:.60} is no shape; pass (m, n, k) or (m, n, k, trans_a, trans_b), and behind these for a "
        "batch its number of products"
    )


def _describe(activation: Any) -> int:
    """As the core is told of it; -1 for what is none, which has no plan there."""
    name = "none" if activation is None else activation
    is_one = type(name) is str and activation != "none" and name in ACTIVATIONS
    return ACTIVATIONS.index(name) if is_one else -1
