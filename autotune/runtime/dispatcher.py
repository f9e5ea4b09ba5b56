"""Runs the kernels of an exported folder: C[m,n] = alpha * op(A) * op(B) + beta * C, FP32, row-major; arrays
of more dimensions are batches of such products (stacks.py).

A call does three things: it reads address, extents and strides of its arrays; it looks up what it did
for such a call before (the first time: picks a kernel, loads it, plans the launch); it launches. Only
the first call of its kind on a GPU is slow. No call waits for the GPU, so calls work under graph capture.
There is one exception: if the caller asks for it, a first call settles its kind, and waits; under capture
this is postponed. Where cuBLAS is expected to be faster than all kernels, it is called instead. A folder
may hold tables for several kinds of GPU: each GPU is served by the one for its kind (engines.py).

Needs cuda-bindings and numpy, for DLPack arrays cuda-core too. Copied into exported tables.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from ..facts.gemm import Triple
from ..files.arguments import flag, whole
from ..files.errors import DispatchError
from ..kernel.launch import ACTIVATIONS
from .blas_provider import BlasProvider, is_switched_on
from .forks import UNFORKED, check_fork, use_cuda
from .kinds import FALLBACK
from .one_kind import OneKind, open_kinds
from .pick import MAX_PLANS, Counted, Pick
from .product import UnfitStrides, check_apart, check_launches, check_overlap, make_gemm, packed_forms

if TYPE_CHECKING:
    from .added import Added
    from .arrays import Forms, Leading, Libraries, Library
    from .cuda_driver import Driver
    from .engines import Engines, Fallback
    from .planner import Plan, Planner
    from .quick_check import QuickCheck
    from .routed_engine import RoutedEngine
    from .routed_kinds import RoutedKinds
    from .several_calls import SeveralCalls
    from .stacks import Stack
    from .torch_routing import TorchRouting

    _Leadings = tuple[Leading, Leading, Leading | None]

Settle = Literal["off", "first-use"]
Activation = Literal["relu", "gelu", "gelu_tanh"]
_SETTLE, _CHOICES, _RECORD = "AUTOTUNE_SETTLE", "AUTOTUNE_CHOICES", "AUTOTUNE_RECORD"
_OWN_FOLDER = Path(__file__).resolve().parents[2]  # of an exported table
_OPTIONS = "settle", "deterministic", "choices", "cublas", "fallback"
_made: WeakValueDictionary[tuple[str, tuple[Any, ...], int], Dispatcher] = WeakValueDictionary()


class Dispatcher:
    """Serves matrix products from one exported folder. Threads may share it.

    Reads the whole folder at once and checks its tables. A compiled kernel is unpacked and checked when it is
    first needed (cubin_files.py). The modules that launch are imported, and CUDA is initialised, at the first
    product.

    settle: "first-use" times the model's first few accurate launches at the first call of a kind that was not
    tuned, outside of graph capture, and keeps the fastest in a file of the cache folder, for this and later
    processes (settling.py). "off", the default, waits for no GPU; `settle()` still works. By default the
    environment variable AUTOTUNE_SETTLE decides.
    choices: a file that `export_choices` wrote. Its choices have priority over all others. By default the
    environment variable AUTOTUNE_CHOICES names it.
    deterministic: only the folder and the file of choices decide what serves a call, in every process.
    Nothing is settled, and no choices settled elsewhere are read. cuBLAS is called only if `cublas` is True.
    cublas: whether cuBLAS is called where it is expected to be faster than every kernel of the table
    (blas_provider.py). By default the environment variable AUTOTUNE_CUBLAS, 0 or 1, decides; without it, yes.
    fallback: what happens to products on a GPU without a table in the folder. "refuse", the default, raises
    an error; with "cublas", cuBLAS serves them, with one warning. By default the environment variable
    AUTOTUNE_FALLBACK decides, unless `deterministic`.

    `tables`: those of all kinds of GPU; `table`: the first of them, which was exported first.
    `num_copied`: how many products needed a packed copy of a, of b or of out.
    If the environment variable AUTOTUNE_RECORD names a file, calls are recorded there (`record_calls`).
    A copy, and what is unpickled in the same process, is the dispatcher itself. Another process opens the
    folder again, once, with the same options; what was settled or counted here stays here.

    Raises DispatchError if the folder or the choices are missing, damaged, or newer than this code, if the
    choices are of another table, and if an option has an unknown value.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        settle: Settle | None = None,
        deterministic: bool = False,
        choices: str | Path | None = None,
        cublas: bool | None = None,
        fallback: Fallback | None = None,
        driver: Driver | None = None,
    ) -> None:
        mode = _mode(settle, deterministic)
        self._is_deterministic = deterministic
        self._fallback = _fallback_mode(fallback, deterministic)
        blas = BlasProvider(is_switched_on(cublas, deterministic))
        self._kinds = open_kinds(
            Path(folder), blas, is_first_use=mode == "first-use", is_deterministic=deterministic
        )
        self.tables = tuple(kind.table for kind in self._kinds)
        self.table = self.tables[0]
        self._lock = threading.RLock()
        pinned = choices or os.environ.get(_CHOICES)
        if pinned:
            self._pin(Path(pinned))
        self.num_copied = Counter[str]()
        self._driver = driver
        self._opened: tuple[Engines, Libraries] | None = None
        self._is_without_cuda = False  # as a pick found out
        self._routing: TorchRouting | None = None
        self._routed: list[RoutedEngine] = []
        self._record_file: str | None = None
        if os.environ.get(_RECORD):
            self.record_calls(os.environ[_RECORD])
        self._tensor_calls: SeveralCalls | None = None
        self._below_autograd: SeveralCalls | None = None
        self._met_torch: set[Planner] = set()
        self._forward_mode: Any = None  # these, as long as there are no calls of torch's tensors
        self._dispatch_mode: Any = None
        self._is_traced: Callable[[], bool] = bool
        self._stacks: dict[tuple[Forms, _Leadings, bool, bool], Stack] = {}
        options = settle, deterministic, choices and str(Path(choices).absolute()), cublas, fallback
        made_by = _told_folder(Path(folder)), options
        # The same number in each process that makes as many alike
        number = next(one for one in count() if _made.setdefault((*made_by, one), self) is self)
        self._made_by = (*made_by, number)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_so, self._made_by

    def __copy__(self) -> Dispatcher:
        return self

    def __deepcopy__(self, _: object) -> Dispatcher:
        return self

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
    ) -> Pick:
        """What a product of packed, aligned matrices would run, and why. Needs no GPU; choices settled on one
        are known after a product ran there, or `settle` was called.

        `batch`: number of products, one after the other; `shares_a` (`shares_b`): all read the same A (B).
        `device`: number of the GPU. Without it a folder with one table asks no GPU; among several tables, the
        one for the current GPU decides, else the one for the first GPU that has one, else the first table.
        Raises DispatchError for extents that are not whole numbers or out of range, and for a GPU that is not
        served.
        """
        is_one = device is None and len(self._kinds) == 1
        kind = self._kinds[0] if is_one else self._kind_here(device)
        # 1, True and 1.0 are one key: what is of another type is checked first
        if (
            kind
            and batch == 1
            and type(m) is type(n) is type(k) is int
            and type(trans_a) is type(trans_b) is bool
        ):
            found = kind.remembered((m, n, k, trans_a, trans_b))
            if found is not None:
                return found
        gemm = make_gemm(m, n, k, trans_a, trans_b, batch, shares_a, shares_b)
        if kind is not None:
            return kind.pick(gemm)
        from .blas_engine import blas_pick

        return blas_pick(gemm)

    def _kind_here(self, device: int | None) -> OneKind | None:
        """The kind that serves a GPU; None if cuBLAS does. If no GPU is named and none can be used, the first
        kind. Raises DispatchError for a named GPU that is not served."""
        if device is not None:
            engines, _ = self._on_gpus()
            return engines.kind(_number(device))
        if self._is_without_cuda:
            return self._kinds[0]
        try:
            engines, _ = self._on_gpus()
            return engines.kind(engines.for_host())
        except DispatchError:
            self._is_without_cuda = self._opened is None  # to look for it takes long
            return self._kinds[0]

    def settle(self, shapes: Iterable[tuple[Any, ...]], *, device: int | None = None) -> list[Pick]:
        """Time the model's first few launches for shapes that were not tuned, once, and keep the fastest.

        Shapes are (m, n, k) or (m, n, k, trans_a, trans_b), of packed matrices whose addresses are multiples
        of 16. Batches, as `prepare` takes them, are left as they are. Choices settled before on such a GPU,
        by any process, are not timed again, and serve from now on. `device`: number of the GPU, by default
        the current one. Waits for the GPU.

        Returns what serves each shape. A shape that cannot be settled keeps the model's choice, with a
        warning. Raises DispatchError for an invalid shape, if this dispatcher is deterministic, and under
        capture.
        """
        if self._is_deterministic:
            raise DispatchError(
                "a deterministic dispatcher settles nothing; settle with another one, write what came of it "
                "with export_choices, and pass the file as choices="
            )
        from .blas_engine import blas_pick

        gemms = [make_gemm(*_extents_and_flags(shape)) for shape in shapes]
        engines, number = self._open_for(device)
        kind = engines.kind(number)
        if kind is None:  # cuBLAS serves all
            return [blas_pick(gemm) for gemm in gemms]
        engines.of(number)
        return kind.settle(gemms, engines.driver, number)

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
        Raises DispatchError for what is no shape, and where the table does not fit the GPU.
        """
        from .blas_engine import blas_pick
        from .variants import asked_for

        gemms = [make_gemm(*_extents_and_flags(shape)) for shape in shapes]
        epilogue = asked_for(has_bias, activation)
        engines, number = self._open_for(device)
        engine, kind = engines.of(number), engines.kind(number)
        for gemm in gemms:
            a, b, c = packed_forms(gemm)
            for form_c in (c, None):  # with an out, and without
                call = (number,) * 3, (a, b, form_c), (0, 0, 0), gemm.trans_a, gemm.trans_b
                engine.plan(*call, gemm.strides if gemm.is_batched else None, epilogue)
        if kind is not None:
            return [kind.choose(gemm, number) for gemm in gemms]
        return [blas_pick(gemm) for gemm in gemms]

    def verify_quick(self, *, device: int | None = None) -> QuickCheck:
        """Check one kernel's result against float64, and its time against the recorded one, in some
        milliseconds: `is_right`, `ratio` and `is_as_fast` say what was seen (quick_check.py). Waits for the
        GPU.

        `device`: number of the GPU, by default the current one. Raises DispatchError where no table is for
        it, under capture, and where the GPU fails.
        """
        engines, number = self._open_for(device)
        kind = engines.kind(number)
        if kind is None:
            raise DispatchError(f"no table is for GPU {number}, which cuBLAS serves: nothing can be checked")
        return kind.verify_quick(engines.driver, number)

    def export_choices(self, path: str | Path, *, device: int | None = None) -> None:
        """Write a file of all that is pinned or was settled so far on such a GPU, for `choices=`. It is of
        the table for that kind of GPU, and pins no other's.

        `device`: number of the GPU, by default the current one. Raises DispatchError where it cannot be
        written, or no table is for the GPU.
        """
        if not self._is_deterministic:
            self.settle((), device=device)  # reads what earlier processes settled
        is_one = device is None and len(self._kinds) == 1
        kind = self._kinds[0] if is_one else self._kind_here(device)
        if kind is None:
            raise DispatchError("cuBLAS serves this GPU: there are no choices to write; name another device")
        with UNFORKED:  # CUDA may not have been used
            known = kind.choices()
        known.export(Path(path))

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
        from .core_faults import recorded_elsewhere

        check_fork()
        named = str(Path(file).absolute())
        _make_folder(Path(f"{named}.d"))
        with UNFORKED, self._lock:  # its children may record, too
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
    def _engines(self) -> list[Planner]:
        return ([] if self._opened is None else self._opened[0].all) + list(self._routed)

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
    ) -> Any:
        """C[m,n] = alpha * op(a) * op(b) + beta * C, where op transposes if trans_a (trans_b) is set; with
        bias and activation C = activation(alpha * op(a) * op(b) + beta * C + bias).

        Arrays of more than two dimensions are batches of matrices. Leading dimensions broadcast as NumPy's
        do: what one operand lacks, or has one of, all products share. Those that do not lie regularly in
        memory cost a call for each place of all but the longest of them.

        a, b, out: float32 arrays of torch, CuPy, Numba or anything with DLPack or
        `__cuda_array_interface__`, on one GPU that a table is for. Rows may be any distance apart;
        a transposed view is taken as such, without a copy, an `out` stored by columns too. Other strides
        cost a packed copy of torch's and CuPy's arrays (`num_copied`), and are refused of others and on a
        `stream` that is passed. `out` must not overlap a or b (their address ranges are compared), nor its
        products each other; it is required where beta is not 0, and for arrays of other libraries. It is
        returned; without it a new array of a's library is.

        bias: a vector with an element for each column of C, which all rows and all products of a batch share.
        activation: "relu", "gelu" (by erf) or "gelu_tanh". Both are applied by the kernel that would serve
        the plain product, never by cuBLAS. The table has to hold it with that epilogue (`autotune
        export-table --epilogue bias-relu`).

        NumPy arrays are copied to a GPU and the result back: this waits for the GPU and is for
        convenience, not for speed.

        Runs on `stream` (a handle or a stream of torch, CuPy, Numba, cuda.core), by default on the
        current stream of a's library; does not wait, but where a first use is settled. Where libraries are
        mixed, `stream` is required.
        beta = 0 does not read C. Under graph capture pass `out`, unless a is a torch tensor.

        Raises DispatchError before any launch if anything about the call or the table is wrong.
        """
        calls = self._tensor_calls
        if (
            calls is not None
            and stream is None
            and self._forward_mode._current_level < 0
            and not self._dispatch_mode._is_in_torch_dispatch_mode
            and not self._is_traced()
        ):
            if bias is None and activation is None:
                served = calls.sgemm(a, b, out, alpha, beta, trans_a, trans_b)
            else:
                served = calls.sgemm(a, b, out, alpha, beta, trans_a, trans_b, bias, _told(activation))
            if served is not None:
                return served
        return self._multiply((a, b, out), (alpha, beta), (trans_a, trans_b), stream, (bias, activation))

    def _multiply(
        self,
        arrays: tuple[Any, Any, Any],
        scales: tuple[Any, Any],
        transposed: tuple[bool, bool],
        stream: Any,
        adds: tuple[Any, Any],
    ) -> Any:
        """`sgemm` of what the core does not know, or does not serve. `adds`: bias and activation."""
        (a, b, out), (alpha, beta), (trans_a, trans_b) = arrays, scales, transposed
        engines, libraries = self._on_gpus()
        library = libraries.of(a, "a")
        library_b = libraries.of(b, "b")
        library_c = library if out is None else libraries.of(out, "out")
        added = _added(libraries, adds)
        library_v = library if added is None or added.library is None else added.library
        if not (library is library_b is library_c is library_v):
            _check_mixed((library, library_b, library_c, library_v), stream)
        if beta != 0 and out is None:
            raise DispatchError("beta is not 0, but there is no out to scale; pass out=")
        at_a, device_a, form_a, leading_a = library.describe(a, "a")
        at_b, device_b, form_b, leading_b = library_b.describe(b, "b")
        at_c, device_c, form_c, leading_c = (
            (0, device_a, None, None) if out is None else library_c.describe(out, "out")
        )
        library.check_call()
        if form_c is not None:
            check_apart(form_c, (leading_c or ()) if library.is_host else ())
        if library.is_host:
            from .cuda_driver import PER_THREAD_STREAM
            from .host import sgemm_host

            device = engines.for_host()
            handle = PER_THREAD_STREAM if stream is None else libraries.stream(stream, device)
            return sgemm_host(engines.of(device), device, handle, arrays, scales, transposed, added)
        devices, forms = (device_a, device_b, device_c), (form_a, form_b, form_c)
        engine, stack = engines.serving(devices), None
        epilogue = None if added is None else added.epilogue
        try:
            if leading_a or leading_b or leading_c:
                stack = self._stack(forms, (leading_a, leading_b, leading_c), trans_a, trans_b)
                lowest = stack.lowest((at_a, at_b, at_c))
                plan = engine.plan(devices, forms, lowest, trans_a, trans_b, stack.batch, epilogue)
            else:
                plan = engine.plan(devices, forms, (at_a, at_b, at_c), trans_a, trans_b, None, epilogue)
        except UnfitStrides as fault:
            added_too = {"bias": adds[0], "activation": adds[1]}
            call = partial(self.sgemm, alpha=alpha, beta=beta, stream=stream, **added_too)
            owners = {"a": library, "b": library_b, "out": library_c}
            return self._serve_otherwise(fault, call, owners, arrays, transposed)
        at, all_owners = (at_a, at_b, at_c), (library, library_b, library_c, library_v)
        explicit = None if stream is None else libraries.stream(stream, plan.gpu.device)
        return self._enqueue(engine, plan, stack, arrays, at, scales, all_owners, explicit, added)

    def _enqueue(
        self,
        engine: Planner,
        plan: Plan,
        stack: Stack | None,
        arrays: tuple[Any, Any, Any],
        addresses: Triple,
        scales: tuple[Any, Any],
        owners: tuple[Library, Library, Library, Library],
        stream: int | None,
        added: Added | None,
    ) -> Any:
        """Run a plan on arrays of these owners, the last of them the owner of what is added, on a stream or
        the current one. Returns the result."""
        (a, b, out), (at_a, at_b, at_c) = arrays, addresses
        library, library_b, library_c, library_v = owners
        device = plan.gpu.device
        if added is not None:
            added.check(plan.problem.gemm.n, device)
        handle = library.current_stream(a, device) if stream is None else stream
        if out is None:
            out = library.empty(_shape(plan, stack), device, stream)
            at_c = library.describe(out, "out")[0]
        else:
            num_bytes = _num_bytes(plan, stack)
            check_overlap((at_a, at_b, at_c), num_bytes)
            if added is not None:
                added.check_apart(at_c, num_bytes[2])
        at_bias, bias = (0, None) if added is None else (added.address, added.bias)
        if library.is_foreign or library_b.is_foreign or library_c.is_foreign or library_v.is_foreign:
            for owner, x in zip(owners, (a, b, out, bias), strict=True):
                if x is not None:
                    owner.order(x, handle)
        if stack is not None and not plan.is_cublas:
            check_launches(len(stack.offsets) * plan.loop.products)
        for behind_a, behind_b, behind_c in ((0, 0, 0),) if stack is None else stack.offsets:
            at = (at_a + behind_a, at_b + behind_b, at_c + behind_c)
            engine.run(plan, handle, at, *scales, at_bias)
        if arrays[2] is not None:
            library_c.wrote(out)
        if library.name == "torch" and engine not in self._met_torch:
            self._meet_torch(engine)
        return out

    def _stack(self, forms: Forms, leading: _Leadings, trans_a: bool, trans_b: bool) -> Stack:
        """Which calls serve arrays of more than two dimensions."""
        from .stacks import stacked

        key = forms, leading, trans_a, trans_b
        stacks = self._stacks  # others may replace it
        try:
            found = stacks.get(key)
        except TypeError:  # a flag without a hash: it is refused like other invalid flags
            found = None
        if found is None:
            found = stacked(forms, leading, trans_a, trans_b)
            if len(stacks) >= MAX_PLANS:
                self._stacks = stacks = {}
            stacks[key] = found
        return found

    def _serve_otherwise(
        self,
        fault: UnfitStrides,
        call: partial[Any],
        owners: Mapping[str, Library],
        operands: tuple[Any, Any, Any],
        transposed: tuple[bool, bool],
    ) -> Any:
        """A product with strides that no kernel supports: computed by transposes if `out` is stored by
        columns, C^T = op(b)^T op(a)^T; else with a packed copy. Raises the fault if neither is possible."""
        (a, b, out), (trans_a, trans_b) = operands, transposed
        owner, out_transposed = owners[fault.role], _transposed(out)
        is_along_columns = call.keywords["bias"] is not None  # which would be along rows of the transpose
        if fault.is_by_columns and out_transposed is not None and not is_along_columns:
            call(b, a, out_transposed, trans_a=not trans_b, trans_b=not trans_a)
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
        """A context in which products of an unmodified PyTorch program are routed to this table, where it is
        expected to be faster than cuBLAS (torch_routing.py). Its `report()` says how they were served. The
        first time for a torch a C++ compiler runs some 10 s (torch_router.py); AUTOTUNE_ROUTER=0 avoids that.

        Raises DispatchError where torch is not imported or too old, or the core was not built.
        """
        from .torch_routing import TorchRouting

        if self._routing is None:
            self._routing = TorchRouting(self._routed_kinds)
        return self._routing

    def _routed_kinds(self, has_bias: bool) -> RoutedKinds:
        from .routed_kinds import RoutedKinds

        engines, _ = self._on_gpus()
        made: dict[OneKind, RoutedEngine] = {}

        def make(device: int) -> RoutedEngine:
            kind = self._kind_or_first(engines, device)
            if kind not in made:
                engine = made[kind] = kind.routed_engine(engines.driver, has_bias=has_bias)
                with self._lock:
                    self._routed.append(engine)
                    self._record_too(engine)
            return made[kind]

        try:
            first = engines.for_host()
        except DispatchError:  # there is no table for any: all calls are left alone
            first = 0
        return RoutedKinds(make, first)

    def _kind_or_first(self, engines: Engines, device: int) -> OneKind:
        """The first kind's engine leaves alone calls on a GPU without a table."""
        try:
            return engines.kind(device) or self._kinds[0]
        except DispatchError:
            return self._kinds[0]

    def torch_op(self) -> Any:
        """An operator of torch that this dispatcher serves: (a, b, alpha=, trans_a=, trans_b=) -> C, with
        derivatives by this table too, backward and forward, which torch.compile and the transforms of
        torch.func take. The first dispatcher of a process has torch.ops.autotune.sgemm, others sgemm_2 and
        so on, in the order in which they are asked.

        Raises DispatchError where torch is not imported.
        """
        from .torch_op import register

        return register(self)

    def sgemm_by_core(
        self, a: Any, b: Any, alpha: float, trans_a: bool, trans_b: bool, is_below_autograd: bool = False
    ) -> Any | None:
        """A product of torch's tensors; None for a kind of call that is new, not served by the core, or,
        except below autograd, of a tensor that needs a gradient, or while torch does more than compute."""
        calls = self._below_autograd if is_below_autograd else self._tensor_calls
        if calls is None:
            return None
        forward_level, modes = self._forward_mode._current_level, self._dispatch_mode
        if not is_below_autograd and (forward_level >= 0 or modes._is_in_torch_dispatch_mode):
            return None
        return calls.sgemm(a, b, None, alpha, 0.0, trans_a, trans_b)

    def _meet_torch(self, engine: Planner) -> None:
        """From the first product of torch's tensors on, an engine's core reads these, if it can."""
        from .several_calls import SeveralCalls
        from .torch_modes import dispatch_mode_of, forward_mode_of, tracing_asked_of

        torch = sys.modules["torch"]
        with self._lock:
            self._forward_mode, self._dispatch_mode = forward_mode_of(torch), dispatch_mode_of(torch)
            self._is_traced = tracing_asked_of(torch)
            calls, below = engine.tensor_calls(), engine.tensor_calls(is_below_autograd=True)
            if calls is not None and below is not None and engine not in self._met_torch:
                self._tensor_calls = self._tensor_calls or SeveralCalls()
                self._below_autograd = self._below_autograd or SeveralCalls()
                self._tensor_calls.add(calls)
                self._below_autograd.add(below)
            self._met_torch.add(engine)

    def _pin(self, path: Path) -> None:
        """Use a file of choices for its kind. Raises DispatchError if it is of no kind here."""
        faults = []
        for kind in self._kinds:
            try:
                kind.choices(path)
                return
            except DispatchError as fault:
                faults.append(fault)
        raise faults[0]

    def _on_gpus(self) -> tuple[Engines, Libraries]:
        """What serves this process's GPUs. Raises DispatchError if this is the fork of a process that used
        CUDA."""
        use_cuda()
        return self._opened or self._open()

    def _open(self) -> tuple[Engines, Libraries]:
        from .arrays import Libraries
        from .cuda_driver import Driver
        from .engines import Engines

        with self._lock:
            if self._opened is None:
                driver = self._driver or Driver()
                engines = Engines(self._kinds, driver, self._fallback, self._record_too)
                self._opened = engines, Libraries(driver)
            return self._opened

    def _open_for(self, device: int | None) -> tuple[Engines, int]:
        """The engines, and the number of a GPU: this one, or that for host arrays. Raises DispatchError."""
        engines, _ = self._on_gpus()
        return engines, engines.for_host() if device is None else _number(device)

    def _record_too(self, engine: Planner) -> None:
        if self._record_file is not None:
            engine.record(self._record_file)


def _told_folder(folder: Path) -> str:
    """A folder for another process; "": the one that holds this code, wherever it is."""
    is_own = folder.resolve() == _OWN_FOLDER
    return "" if is_own else str(folder.absolute())


def _made_so(folder: str, options: tuple[Any, ...], number: int = 0) -> Dispatcher:
    """The dispatcher of this process that was made so, of those alike the one of this number, or a new one.
    Raises as that does."""
    made_by = folder, options, number
    found = _made.get(made_by)
    if found is None:
        found = Dispatcher(folder or _OWN_FOLDER, **dict(zip(_OPTIONS, options, strict=True)))
        del _made[found._made_by]
        found._made_by, _made[made_by] = made_by, found
    return found


def _fallback_mode(fallback: Fallback | None, deterministic: bool) -> Fallback:
    """What happens on GPUs without a table. Raises DispatchError for an invalid choice."""
    told: str = fallback or (not deterministic and os.environ.get(FALLBACK)) or "refuse"
    if told == "refuse":
        return "refuse"
    if told == "cublas":
        return "cublas"
    name = FALLBACK if fallback is None else "fallback"
    raise DispatchError(f"{name} is {told!r}; say 'refuse' or 'cublas'")


def _mode(settle: Settle | None, deterministic: bool) -> str:
    """What to settle. Raises DispatchError for options that are invalid, or contradict each other."""
    deterministic = flag("deterministic", deterministic, error=DispatchError)
    told = os.environ.get(_SETTLE) or "off" if settle is None else settle
    if told not in ("off", "first-use"):
        name = _SETTLE if settle is None else "settle"
        raise DispatchError(f"{name} is {told!r}; say 'off' or 'first-use'")
    if deterministic and settle == "first-use":
        raise DispatchError("a deterministic dispatcher settles nothing; leave out settle or deterministic")
    return "off" if deterministic else told


def _make_folder(folder: Path) -> None:
    """For records of calls. Raises DispatchError if it cannot be written."""
    try:
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


def _shape(plan: Plan, stack: Stack | None) -> tuple[int, ...]:
    """Of a new result."""
    gemm = plan.problem.gemm
    return (gemm.m, gemm.n) if stack is None else stack.shape


def _num_bytes(plan: Plan, stack: Stack | None) -> Triple:
    """The bytes that A, B and C span."""
    a, b, c = plan.problem.num_bytes
    if stack is None:
        return a, b, c
    if not stack.offsets:
        return 0, 0, 0
    return a + stack.reach[0], b + stack.reach[1], c + stack.reach[2]


def _transposed(x: Any) -> Any | None:
    """The transposes of all matrices of an array, as a view; None if that is impossible."""
    if getattr(x, "ndim", 2) == 2:
        return getattr(x, "T", None)
    swapped = getattr(x, "swapaxes", None)
    return None if swapped is None else swapped(-1, -2)


def _told(activation: Any) -> int:
    """As the core is told of it; -1 for what is none, which has no plan there."""
    name = "none" if activation is None else activation
    is_one = type(name) is str and activation != "none" and name in ACTIVATIONS
    return ACTIVATIONS.index(name) if is_one else -1


def _added(libraries: Libraries, adds: tuple[Any, Any]) -> Added | None:
    """What a call adds, by its bias and activation; None for a plain product."""
    if adds[0] is None and adds[1] is None:
        return None
    from .added import Added

    return Added.of(libraries, *adds)


def _check_mixed(libraries: tuple[Library, ...], stream: Any) -> None:
    names = ", ".join(sorted({library.name for library in libraries}))
    if any(library.is_host for library in libraries):
        raise DispatchError(f"arrays of the host and of a GPU are mixed ({names}); move all to one place")
    if stream is None:
        raise DispatchError(f"arrays of {names} each have a current stream of their own; pass stream=")
