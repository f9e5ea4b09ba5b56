"""Runs the kernels of an exported table: C[m,n] = alpha * op(A) * op(B) + beta * C, FP32, row-major.

A call does three things: it reads address, extents and strides of its arrays; it looks up what it did
for such a call before (the first time: picks a kernel, loads it, plans the launch); it launches. Only
the first call of its kind on a GPU is slow. No call waits for the GPU, so calls work under graph capture.
There is one exception: where the caller asks for it, a first call settles its kind, and waits; under capture
that is put off. Where cuBLAS is taken to be faster than all kernels, it is called instead of one.

Needs cuda-bindings and numpy, for DLPack arrays cuda-core too. Copied into exported tables.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import DispatchError
from ..gemm import Gemm
from .arrays import Libraries, Library, stream_handle
from .blas_provider import BlasProvider, is_switched_on
from .call_recorder import folder_of, recorded_elsewhere
from .chooser import Chooser
from .counting import Counted
from .cubin_files import CubinFiles
from .cuda_driver import LEGACY_STREAMS, PER_THREAD_STREAM, Driver
from .pick import Call, Pick
from .product import UnfitStrides, check_overlap, make_gemm, packed, packed_forms
from .table import load

if TYPE_CHECKING:
    from .choices import KnownChoices
    from .engine import Engine
    from .settling import Settler
    from .tensor_calls import TensorCalls
    from .torch_routing import TorchRouting

MAX_PICKS = 4096  # shapes whose picks are remembered
Settle = Literal["off", "first-use"]
_SETTLE, _CHOICES, _RECORD = "AUTOTUNE_SETTLE", "AUTOTUNE_CHOICES", "AUTOTUNE_RECORD"
_DEFAULT_STREAM = LEGACY_STREAMS[0]  # waits for the work of all streams that do not opt out of that


class Dispatcher:
    """Serves matrix products from one exported folder. Threads may share it.

    Reads the whole folder at once and checks its table. A compiled kernel is unpacked and checked when it is
    first needed (cubin_files.py). What launches is imported, and CUDA asked for, at the first product.

    settle: "first-use" times the model's first few launches at the first call of a kind that was not tuned,
    outside of graph capture, and keeps the fastest in a file of the cache folder, for this and later
    processes (settling.py). "off", the default, waits for no GPU; `settle()` can be called all the same.
    Left out, the environment variable AUTOTUNE_SETTLE says it.
    choices: a file that `export_choices` wrote. What it holds is served before anything else. Left out,
    the environment variable AUTOTUNE_CHOICES names it.
    deterministic: what serves a call follows from the folder and the file of choices alone, in every process.
    Nothing is settled, and nothing that was settled elsewhere is read. cuBLAS is not called, but where
    `cublas` is True.
    cublas: whether cuBLAS is called where it is taken to be faster than every kernel of the table
    (blas_provider.py). Left out, the environment variable AUTOTUNE_CUBLAS says it, 0 or 1; it is by default.

    `num_copied`: how many products needed a packed copy, by whose (a, b, out).
    Where the environment variable AUTOTUNE_RECORD names a file, calls are recorded (`record_calls`).

    Raises DispatchError if the folder or the choices are missing, damaged, or newer than this code, if the
    choices are of another table, and if an option is none.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        settle: Settle | None = None,
        deterministic: bool = False,
        choices: str | Path | None = None,
        cublas: bool | None = None,
        driver: Driver | None = None,
    ) -> None:
        mode = _mode(settle, deterministic)
        self._is_deterministic = deterministic
        self._blas = BlasProvider(is_switched_on(cublas, deterministic))
        self.table = load(Path(folder))
        self._code = CubinFiles(Path(folder), self.table)
        # deterministic: which cuBLAS is loaded by when differs between processes
        loaded = None if deterministic else self._blas.loaded_version
        self._chooser = Chooser(self.table, loaded)
        self._is_first_use = mode == "first-use"
        self._lock = threading.RLock()
        self._known: KnownChoices | None = None  # as long as nothing is pinned or settled
        pinned = choices or os.environ.get(_CHOICES)
        if pinned:
            self._choices(Path(pinned))
        self._picks: dict[tuple[int, int, int, bool, bool], Pick] = {}
        self.num_copied = Counter[str]()
        self._driver = driver
        self._opened: tuple[Engine, Libraries] | None = None
        self._routing: TorchRouting | None = None
        self._routed: list[Engine] = []
        self._record_file: str | None = None
        if os.environ.get(_RECORD):
            self.record_calls(os.environ[_RECORD])
        self._settler: Settler | None = None
        self._tensor_calls: TensorCalls | None
        self._below_autograd: TensorCalls | None
        self._is_new_to_torch, self._tensor_calls, self._below_autograd = True, None, None

    def pick(self, m: int, n: int, k: int, trans_a: bool = False, trans_b: bool = False) -> Pick:
        """What a product of packed, aligned matrices would run, and why. Needs no GPU; what was settled on
        one is known once a product ran there, or `settle` was called.

        Raises DispatchError for extents that are no whole numbers or out of range.
        """
        # 1, True and 1.0 are one key: what is of another type is checked first
        if type(m) is type(n) is type(k) is int and type(trans_a) is type(trans_b) is bool:
            found = self._picks.get((m, n, k, trans_a, trans_b))
            if found is not None:
                return found
        gemm = make_gemm(m, n, k, trans_a, trans_b)
        key = (gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)
        picks = self._picks  # `settle` puts others in their place
        found = picks.get(key) or self._choose(gemm)
        if not (self._is_first_use and found.how == "modelled"):  # which may be settled at any time
            if len(picks) >= MAX_PICKS:
                picks.clear()
            picks[key] = found
        return found

    def _choose(self, gemm: Gemm, device: int | None = None) -> Pick:
        if gemm.m and gemm.n:
            call = Call.packed(gemm)
            known = self._known and self._known.pick(call, device)
            return self._blas.served(known or self._chooser.pick(call), call)
        told = partial(str, "the result has no elements: nothing is launched")
        return Pick(self.table.defaults[gemm.layout], "default", told, 1)

    def settle(self, shapes: Iterable[tuple[Any, ...]], *, device: int | None = None) -> list[Pick]:
        """Time the model's first few launches for shapes that were not tuned, once, and keep the fastest.

        Shapes are (m, n, k) or (m, n, k, trans_a, trans_b), of packed matrices whose addresses are multiples
        of 16. What was settled before on such a GPU, by any process, is not timed again, and serves from now
        on. `device`: number of the GPU, by default the current one. Waits for the GPU.

        Returns what serves each shape. What cannot be settled keeps the model's choice, with a warning.
        Raises DispatchError for what is no shape, if this dispatcher is deterministic, and under capture.
        """
        if self._is_deterministic:
            raise DispatchError(
                "a deterministic dispatcher settles nothing; settle with another one, write what came of it "
                "with export_choices, and pass the file as choices="
            )
        gemms = [make_gemm(*_extents_and_flags(shape)) for shape in shapes]
        engine, _ = self._opened or self._open()
        assert self._settler is not None
        gpu = engine.devices.gpu(engine.devices.for_host() if device is None else _number(device))
        if self._settler.is_captured(gpu, _DEFAULT_STREAM):
            raise DispatchError("shapes cannot be settled while a graph is captured; settle them before")
        self._choices().settled_on(gpu)
        for gemm in gemms:
            if gemm.m and gemm.n:
                self._settler.settle(packed(gemm), gpu, _DEFAULT_STREAM)
        engine.forget_plans()
        self._picks = {}
        return [self._choose(gemm, gpu.device) for gemm in gemms]

    def prepare(self, shapes: Iterable[tuple[Any, ...]], *, device: int | None = None) -> list[Pick]:
        """Choose, load and plan products of packed matrices ahead, so that the first of each is as fast as
        the next, and may be captured. Nothing is launched, and nothing waits for the GPU's work.

        Shapes are (m, n, k) or (m, n, k, trans_a, trans_b), of matrices whose addresses are multiples of 16.
        `device`: number of the GPU, by default the current one. Returns what will serve each shape.
        Raises DispatchError for what is no shape, and where the table does not fit the GPU.
        """
        gemms = [make_gemm(*_extents_and_flags(shape)) for shape in shapes]
        engine, _ = self._opened or self._open()
        gpu = engine.devices.gpu(engine.devices.for_host() if device is None else _number(device))
        for gemm in gemms:
            a, b, c = packed_forms(gemm)
            for form_c in (c, None):  # with an out, and without
                engine.plan((gpu.device,) * 3, (a, b, form_c), (0, 0, 0), gemm.trans_a, gemm.trans_b)
        return [self._choose(gemm, gpu.device) for gemm in gemms]

    def export_choices(self, path: str | Path, *, device: int | None = None) -> None:
        """Write a file of all that is pinned or was settled so far on such a GPU, for `choices=`.

        `device`: number of the GPU, by default the current one. Raises DispatchError where it cannot be
        written.
        """
        if not self._is_deterministic:
            self.settle((), device=device)  # reads what earlier processes settled
        self._choices().export(Path(path))

    def record_calls(self, file: str | Path) -> None:
        """Record what this process calls for into the folder FILE.d: shapes, layouts, leading dimensions and
        alignment, and how often each was served since its first call. Any number of processes may record
        into one FILE.

        Each writes a file of its own there, four times a second where something changed, and at its end: a
        kill loses less than the last second. `autotune search --suite FILE` reads all of them; `autotune
        coverage FILE TABLE` tells what a table does for these calls. What a graph captured counts once,
        however often that is replayed.

        Raises DispatchError where it cannot be written, or calls are recorded into another file.
        """
        named = str(Path(file).absolute())
        folder_of(named)
        with self._lock:
            if self._record_file not in (None, named):
                raise recorded_elsewhere()
            self._record_file = named
            for engine in self._engines:
                engine.record(named)

    def counts(self) -> list[Counted]:
        """How often each kind of call was served so far, and by what; of routed products those, too, that
        were left to torch's cuBLAS."""
        return [counted for engine in self._engines for counted in engine.counts()]

    @property
    def _engines(self) -> list[Engine]:
        return ([] if self._opened is None else [self._opened[0]]) + self._routed

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
    ) -> Any:
        """C[m,n] = alpha * op(a) * op(b) + beta * C, where op transposes if trans_a (trans_b) is set.

        a, b, out: float32 matrices of torch, CuPy, Numba or anything with DLPack or
        `__cuda_array_interface__`, on one GPU of the table's kind. Rows may be any distance apart;
        a transposed view is taken as such, without a copy, an `out` stored by columns too. Other strides
        cost a packed copy of torch's and CuPy's arrays (`num_copied`), and are refused of others and on a
        `stream` that is passed. `out` must not overlap a or b (their address ranges are compared); it is
        required where beta is not 0, and for arrays of other libraries. It is returned; without it a new
        array of a's library is.

        NumPy arrays are copied to a GPU and the result back: this waits for the GPU and is for
        convenience, not for speed.

        Runs on `stream` (a handle or a stream of torch, CuPy, Numba, cuda.core), by default on the
        current stream of a's library; does not wait, but where a first use is settled. Where libraries are
        mixed, `stream` is required.
        beta = 0 does not read C. Under graph capture pass `out`, unless a is a torch tensor.

        Raises DispatchError before any launch if anything about the call or the table is wrong.
        """
        calls = self._tensor_calls
        if calls is not None and stream is None:
            served = calls.sgemm(a, b, out, alpha, beta, trans_a, trans_b)
            if served is not None:
                return served
        engine, libraries = self._opened or self._open()
        library = libraries.of(a, "a")
        library_b = libraries.of(b, "b")
        library_c = library if out is None else libraries.of(out, "out")
        if library_b is not library or library_c is not library:
            _check_mixed((library, library_b, library_c), stream)
        if beta != 0 and out is None:
            raise DispatchError("beta is not 0, but there is no out to scale; pass out=")
        at_a, device_a, form_a = library.describe(a, "a")
        at_b, device_b, form_b = library_b.describe(b, "b")
        at_c, device_c, form_c = (0, device_a, None) if out is None else library_c.describe(out, "out")
        if library.is_host:
            from .host import sgemm_host

            device = engine.devices.for_host()
            handle = PER_THREAD_STREAM if stream is None else _explicit(engine, stream, device)
            return sgemm_host(engine, device, handle, (a, b, out), (alpha, beta), (trans_a, trans_b))
        devices, forms = (device_a, device_b, device_c), (form_a, form_b, form_c)
        try:
            plan = engine.plan(devices, forms, (at_a, at_b, at_c), trans_a, trans_b)
        except UnfitStrides as fault:
            call = partial(self.sgemm, alpha=alpha, beta=beta, stream=stream)
            owners = {"a": library, "b": library_b, "out": library_c}
            return self._serve_otherwise(fault, call, owners, (a, b, out), (trans_a, trans_b))
        device, gemm = plan.gpu.device, plan.problem.gemm
        handle = library.current_stream(a, device) if stream is None else _explicit(engine, stream, device)
        if out is None:
            out = library.empty(gemm.m, gemm.n, device, None if stream is None else handle)
            at_c = library.describe(out, "out")[0]
        else:
            check_overlap((at_a, at_b, at_c), plan.problem.num_bytes)
        if library.is_foreign or library_b.is_foreign or library_c.is_foreign:
            for owner, x in ((library, a), (library_b, b), (library_c, out)):
                owner.order(x, handle)
        engine.run(plan, handle, (at_a, at_b, at_c), alpha, beta)
        if self._is_new_to_torch and library.name == "torch":
            self._meet_torch(engine)
        return out

    def _serve_otherwise(
        self,
        fault: UnfitStrides,
        call: partial[Any],
        owners: Mapping[str, Library],
        operands: tuple[Any, Any, Any],
        transposed: tuple[bool, bool],
    ) -> Any:
        """A product that no kernel computes as its matrices lie: of transposes where `out` is stored by
        columns, C^T = op(b)^T op(a)^T; else with a packed copy. Raises the fault where neither can be."""
        (a, b, out), (trans_a, trans_b) = operands, transposed
        owner, turned = owners[fault.role], getattr(out, "T", None)
        if fault.is_by_columns and turned is not None:
            call(b, a, turned, trans_a=not trans_b, trans_b=not trans_a)
            return out
        named = {"a": a, "b": b, "out": out}
        copy = None if call.keywords["stream"] is not None else owner.packed_copy(named[fault.role])
        if copy is None:
            raise fault
        self.num_copied[fault.role] += 1
        found = call(**named | {fault.role: copy}, trans_a=trans_a, trans_b=trans_b)
        if fault.role != "out":
            return found
        owner.assign(out, copy)
        return out

    def torch(self) -> TorchRouting:
        """A context in which products of an unmodified program of torch are routed to this table, where it is
        expected to be faster than cuBLAS (torch_routing.py). Its `report()` tells what came of it.

        Raises DispatchError where torch is not imported or too old, or the core was not built.
        """
        from .core import core_of
        from .routed_engine import AsPicked, RoutedEngine
        from .torch_routing import TorchRouting

        if self._routing is not None:
            return self._routing
        opened, _ = self._opened or self._open()

        def make_engine(has_bias: bool) -> RoutedEngine:
            core = core_of(self.table)
            if core is None:
                raise DispatchError("routing needs the core in C; install a C compiler, and autotune again")
            engine = RoutedEngine(
                has_bias, core, self.table, self._code, self._chooser, opened.driver, self._known, AsPicked()
            )
            engine.devices = opened.devices  # what is loaded is loaded once
            with self._lock:
                self._routed.append(engine)
                if self._record_file is not None:
                    engine.record(self._record_file)
            return engine

        self._routing = TorchRouting(make_engine)
        return self._routing

    def torch_op(self) -> Any:
        """torch.ops.autotune.sgemm, served by this table: (a, b, alpha=, trans_a=, trans_b=) -> C, with
        gradients by this table too, which torch.compile takes. One dispatcher of a process has it.

        Raises DispatchError where torch is not imported, or another dispatcher has it.
        """
        from .torch_op import register

        return register(self)

    def sgemm_by_core(
        self, a: Any, b: Any, alpha: float, trans_a: bool, trans_b: bool, is_below_autograd: bool = False
    ) -> Any | None:
        """A product of torch's tensors; None for a kind of call that is new, not served by the core, or, but
        below autograd, of a tensor that needs a gradient."""
        calls = self._below_autograd if is_below_autograd else self._tensor_calls
        return None if calls is None else calls.sgemm(a, b, None, alpha, 0.0, trans_a, trans_b)

    def _meet_torch(self, engine: Engine) -> None:
        """From the first product of torch's tensors on the core reads these, if it can."""
        self._is_new_to_torch = False
        self._tensor_calls = engine.tensor_calls()
        self._below_autograd = engine.tensor_calls(is_below_autograd=True)

    def _choices(self, pinned: Path | None = None) -> KnownChoices:
        from .choices import KnownChoices

        with self._lock:
            if self._known is None:
                kernels, is_first_use = self._chooser.kernels, self._is_first_use
                self._known = KnownChoices(self.table, kernels, pinned, is_first_use, self._blas)
            return self._known

    def _open(self) -> tuple[Engine, Libraries]:
        from .core_engine import make_engine
        from .settling import Settler

        with self._lock:
            if self._opened is None:
                driver, known = self._driver or Driver(), self._choices()
                engine = make_engine(self.table, self._code, self._chooser, driver, known, self._blas)
                self._settler = Settler(self.table, engine, self._chooser, known)
                engine.settle = self._settler.at_first_use
                if self._record_file is not None:
                    engine.record(self._record_file)
                self._opened = engine, Libraries(driver)
            return self._opened


def _mode(settle: Settle | None, deterministic: bool) -> str:
    """What to settle. Raises DispatchError for options that are none, or contradict each other."""
    if type(deterministic) is not bool:
        raise DispatchError(f"deterministic is a {type(deterministic).__name__}; pass True or False")
    told = os.environ.get(_SETTLE) or "off" if settle is None else settle
    if told not in ("off", "first-use"):
        name = _SETTLE if settle is None else "settle"
        raise DispatchError(f"{name} is {told!r}; say 'off' or 'first-use'")
    if deterministic and settle == "first-use":
        raise DispatchError("a deterministic dispatcher settles nothing; leave out settle or deterministic")
    return "off" if deterministic else told


def _number(device: Any) -> int:
    if type(device) is not int:
        raise DispatchError(f"device is a {type(device).__name__}; pass the number of a GPU")
    return device


def _extents_and_flags(shape: Any) -> tuple[Any, ...]:
    if isinstance(shape, (tuple, list)) and len(shape) in (3, 5):
        return (*shape, False, False)[:5]
    raise DispatchError(f"{shape!r:.60} is no shape; pass (m, n, k) or (m, n, k, trans_a, trans_b)")


def _explicit(engine: Engine, stream: Any, device: int) -> int:
    """Handle of a stream that the caller passed. Raises DispatchError if it is of another GPU.

    While the stream is captured that cannot be asked: the question would end the capture.
    """
    handle, driver = stream_handle(stream), engine.driver
    is_default = handle in LEGACY_STREAMS or handle == PER_THREAD_STREAM
    if not is_default and not driver.is_capturing(handle):
        owner = driver.stream_device(handle)
        if owner != device:
            raise DispatchError(
                f"the stream is of GPU {owner}, the arrays are on GPU {device}; pass a stream of GPU {device}"
            )
    return handle


def _check_mixed(libraries: tuple[Library, ...], stream: Any) -> None:
    names = ", ".join(sorted({library.name for library in libraries}))
    if any(library.is_host for library in libraries):
        raise DispatchError(f"arrays of the host and of a GPU are mixed ({names}); move all to one place")
    if stream is None:
        raise DispatchError(f"arrays of {names} each have a current stream of their own; pass stream=")
