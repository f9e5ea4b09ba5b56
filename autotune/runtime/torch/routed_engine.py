"""Decides, per call signature, whether a table serves a product of another program or leaves it alone."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from ...facts.cublas_calls import TORCH_BYTES, adds_bias_within
from ...facts.fitted import number
from ...facts.gemm import FLOAT_BYTES, Gemm, Triple
from ...files.errors import DispatchError
from ...kernel.config import Config, threads_along_k
from ...kernel.launch import BIAS, NO_LAUNCH, PLAIN, Epilogue
from ...perf_model.model_figures import LAUNCH_APART_US, Depths
from ..calls.product import MAX_PLANS, Product, Settle, make_gemm, packed
from ..choose.blas_provider import BlasProvider
from ..choose.chooser import Call, Pick, offsets_of
from ..launch.devices import OpenGpu
from ..launch.planner import REGIMES, CorePlan, Engine, Key, LivePlan, LiveState, Plan
from ..native.core import Core, numbered
from ..native.processes import is_one_of_several
from ..settle.choices import LiveChoice, LiveKey
from ..table.table import Kernel
from .tensor_calls import CombinedCalls
from .torch_router import Tables

# Of the margin of `sgemm`, whose rival costs the host as much: a served call takes the host half as long as
# torch's, and where cuBLAS was underestimated, little is lost
ROUTED_SHARE = number("ROUTED_SHARE")
LAUNCH_HOST_US = number("LAUNCH_HOST_US")  # that a launch takes the host
# What has torch call cuBLAS otherwise where it adds a bias: cublasSgemm, or with another workspace
_WITHOUT_LT = "DISABLE_ADDMM_CUDA_LT"
ADDING_OTHERWISE = _WITHOUT_LT, "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"
_SHARING = 2, 12  # the first torch whose cuBLASLt may use cuBLAS's workspace; the next one tells
NUM_RANKED = 16  # launches among which one of fewer kernels is sought
MAX_DECIDED = 4 * MAX_PLANS  # call signatures that are told of one by one: 2 KB each
_FASTER = "cuBLAS is expected to be as fast"
_UNKNOWN = "it is not known how fast cuBLAS is"
_UNSUPPORTED = "strides or extents that no kernel takes, a bias that none adds, or another GPU"
_EMPTY = "no elements"
_SETTLED = "torch's own kernel took its turn, or was measured to be best"
_NOT_TUNED = "a batch of a product that was not tuned in batches"


def adds_as_timed() -> bool:
    """Whether torch has cuBLASLt add a bias in TORCH_BYTES of workspace, as tables had it timed (0114)."""
    torch: Any = sys.modules.get("torch")
    ask = getattr(torch and torch.backends.cuda, "cublaslt_workspace_size", None)
    if ask is not None:
        with suppress(RuntimeError, AttributeError):  # a torch that finds no GPU, or knows none
            return _WITHOUT_LT not in os.environ and bool(ask() == TORCH_BYTES)
        return False
    version = str(getattr(torch, "__version__", "0")).split(".")
    is_older = tuple(int(part) for part in version[:2] if part.isdecimal()) < _SHARING
    return is_older and not any(name in os.environ for name in ADDING_OTHERWISE)


@dataclass
class Decided:
    """The decision on a call signature: `reason` says why it is left alone, and is "" if it is served.
    `is_forgotten`: its calls are in the totals, and are not counted any more. `live`: its calls are served in
    turn by this and by `beside`, until one has won; `kept_as`: what that is kept as for a next process, until
    it is; `device`: the GPU; `measured_us`: what a call takes the GPU, and torch's own kernel, where these
    times settled it."""

    gemm: Gemm
    pick: Pick | None
    reason: str
    plan: CorePlan
    is_forgotten: bool = False
    beside: tuple[Decided, ...] = ()
    live: LivePlan | None = None
    kept_as: LiveKey | None = None
    device: int = 0
    measured_us: tuple[float, float] | None = None

    @property
    def rivals(self) -> tuple[Decided, ...]:
        return self, *self.beside

    @property
    def served_by(self) -> tuple[str, int]:
        """The kernel and its splits; "" for torch's own."""
        return (self.pick.kernel_id, self.pick.split_k) if self.pick and not self.reason else ("", 1)

    @property
    def is_served(self) -> bool:
        return not self.reason

    @property
    def expected_us(self) -> float:
        """What a call is expected to take the GPU where this serves; 0 where that is not known."""
        of_kernel, of_torch = self.times_us
        return of_torch if self.reason else of_kernel

    def settled_choice(self) -> LiveChoice | None:
        """What its calls have settled, and is not kept yet."""
        if self.live is None or self.kept_as is None:
            return None
        state = self.live.state()
        served_by = self.rivals[state.winner].served_by
        settled = LiveChoice(self.kept_as, *served_by, state.limited_by, state.num_samples)
        return None if state.reason else settled

    def take_measured(self) -> None:
        """Times that have settled its calls replace what was predicted, of all of its rivals."""
        state = self.live.state() if self.live else None
        if state is None or not state.is_settled or state.limited_by != REGIMES[0]:
            return
        of_torch = next(us for one, (us, _) in zip(self.rivals, state.times_us, strict=True) if one.reason)
        for one, (gpu_us, _) in zip(self.rivals, state.times_us, strict=True):
            one.measured_us = (gpu_us, of_torch) if gpu_us and of_torch else None

    @property
    def num_calls(self) -> int:
        return self.plan.num_tensor_calls

    @property
    def times_us(self) -> tuple[float, float]:
        """What one call takes, and what it takes cuBLAS; 0 where that is not known."""
        if self.measured_us is not None:
            return self.measured_us
        return (0.0, 0.0) if self.pick is None else (self.pick.expected_us or 0.0, self.pick.cublas_us or 0.0)

    @property
    def saved_us(self) -> float:
        """What all of its calls are expected to have saved of the GPU's time."""
        kernel_us, cublas_us = self.times_us
        is_known = self.is_served and kernel_us and cublas_us
        return self.num_calls * (cublas_us - kernel_us) if is_known else 0.0


class AllSignatures(NamedTuple):
    """All call signatures: those that are remembered, and of those that are not any more the calls by reason,
    and what these saved in all. `live`: what is known of those that are settled on their own calls."""

    kinds: list[Decided]
    forgotten: Counter[str]
    saved_us: float
    live: list[LiveState]


class AsPicked(BlasProvider):
    """cuBLAS of another program: calls picked for it are left to that program."""

    def __init__(self) -> None:
        super().__init__(is_on=False)

    def served(self, pick: Pick, call: Call, device: int | None = None) -> Pick:
        return pick

    def with_epilogue(self, pick: Pick) -> Pick:
        return pick


class RoutedEngine(Engine):
    """An `Engine` that plans only calls that it expects to serve faster than cuBLAS, or all if its kernels
    sum in one order. `settles`: "live" lets others serve, too, until it is known what serves best.

    `has_bias`: a vector is added to each row, by the kernel's epilogue if the table has it. Else C begins as
    a copy of the vector, so C is written and read once more; cuBLAS adds it within the product."""

    def __init__(self, has_bias: bool, core: Core, settles: Settle, *arguments: Any) -> None:
        super().__init__(*arguments, core=core)
        self._has_bias, self._requested = has_bias, BIAS if has_bias else PLAIN
        if has_bias and adds_as_timed():
            self.adds_bias = adds_bias_within
        self._settles, self.is_live = settles, settles.startswith("live")
        self._epilogues = {kernel.variant.epilogue for kernel in self.table.kernels}
        self._lock = threading.Lock()
        self._new: tuple[Pick | None, str] = (None, "")  # of the plan that is being made
        self._new_beside: tuple[Decided, ...] = ()
        self._decided: dict[Key, Decided] = {}
        self._forgotten, self._saved_us = Counter[str](), 0.0  # calls of kinds that were, by reason

    def decide(self, key: Key) -> Decided:
        """The decision on such calls, from now on. Raises DispatchError for extents that no kernel counts."""
        (device, *_), forms, aligned, _, _, batch, *_ = key
        with self._lock:
            if key not in self._decided:
                self._plans.pop(key, None)
                try:
                    plan = self.plan(key)
                    why_not = "" if plan.core else _EMPTY
                except DispatchError:
                    why_not = _UNSUPPORTED
                if why_not:
                    products = max(batch.products, 1) if batch else 1
                    gemm = make_gemm(forms[0][0], forms[1][1], forms[0][1], False, False, products)
                    skipped = self._skipped(packed(gemm), device, aligned)
                    self._keep(key, Decided(gemm, None, why_not, skipped))
            found = self._decided[key]
            self.remember_in_core(key, (found.live or found.plan).address)  # it may have been forgotten there
            return found

    def plan_of(
        self, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple = (0, 0, 0), **_: int
    ) -> Plan:
        call = self._call_of(problem, addresses)
        pick = self._in_few_launches(pick, call, gpu)
        reason = self.why_not(problem.gemm, pick)
        self._new = pick, reason
        rivals = self._references(problem, gpu, pick, addresses) if self._is_live(pick, problem) else iter(())
        self._new_beside = tuple(islice(rivals, self.core.library.numbers.AT_MAX_RIVALS - 1))
        if not reason:
            return self._served(problem, gpu, pick, addresses)
        return Plan(problem, gpu, NO_LAUNCH, core=self._skipped(problem, gpu.device, addresses, gpu.context))

    def _served(self, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple) -> Plan:
        return super().plan_of(problem, gpu, replace(pick, provider="autotune"), addresses)

    def _is_live(self, pick: Pick, problem: Product) -> bool:
        """Whether a call signature that the model picks for is settled on its own calls: not one that adds up
        nothing. Ranks would each settle on what they measure, and replicated products would differ."""
        is_open = pick.how == "modelled"
        if problem.gemm.is_batched:
            is_open = (pick.is_looped or pick.how != "exact") and not self._has_bias
        may_be = self.is_live and self.table.order is None and problem.gemm.k > 0
        return may_be and is_open and not is_one_of_several()

    def _references(self, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple) -> Iterator[Decided]:
        """What serves in turn with a pick, which serves or is left alone: torch's own kernel, and the
        launches that are ranked first, those that sum in the same order unless others are asked for."""
        gemm, epilogue = problem.gemm, self._chooser.kernels[pick.kernel_id].variant.epilogue
        launches = [pick] if self._new[1] and not pick.is_looped else []
        if not self._new[1]:
            yield Decided(gemm, pick, _SETTLED, self._skipped(problem, gpu.device, addresses, gpu.context))
        call = self._call_of(problem, addresses)

        def sums(launch: Pick) -> tuple[Any, ...]:
            return sums_as(self._chooser.kernels[launch.kernel_id], launch)

        for one in self._ranked(call, self.allowed(call, gpu)):
            own = one if epilogue == PLAIN else self._chooser.with_epilogue(one, epilogue)
            is_like = self._settles == "live-any-order" or sums(own) == sums(pick)
            if is_like and (own.kernel_id, own.split_k) != (pick.kernel_id, pick.split_k):
                launches.append(own)
        for one in launches:
            core = self._served(problem, gpu, one, addresses).core
            assert core is not None
            yield Decided(gemm, one, "", core)

    def _call_of(self, problem: Product, addresses: Triple) -> Call:
        gemm = problem.gemm
        return Call(gemm, problem.lds, addresses, problem.batch, self.adds_bias(gemm))

    def _ranked(self, call: Call, allowed: Depths | None) -> Sequence[Pick]:
        if call.gemm.is_batched:
            return self._chooser.ranked_in_batch(call, NUM_RANKED)
        return self._chooser.ranked(call, NUM_RANKED, allowed)

    def _in_few_launches(self, pick: Pick, call: Call, gpu: OpenGpu) -> Pick:
        """The same, or a launch that is as good for a program, which waits for the GPU or the host."""
        products = call.gemm.batch if pick.is_looped else 1

        def period_us(one: Pick, products: int = 1) -> float:
            num_launches = products * self._chooser.kernels[one.kernel_id].spec.num_launches
            return max(one.expected_us or 0.0, num_launches * LAUNCH_HOST_US)

        least_us = max(pick.expected_us or 0.0, products * LAUNCH_HOST_US)
        if pick.how != "modelled" or period_us(pick, products) <= least_us:
            return pick
        ranked = self._ranked(call.single if pick.is_looped else call, self.allowed(call, gpu))
        other = min(ranked, key=period_us)
        epilogue = self._chooser.kernels[pick.kernel_id].variant.epilogue
        if epilogue != PLAIN:
            other = self._chooser.with_epilogue(other, epilogue)
        expected_us = other.expected_us and products * other.expected_us
        return replace(
            other, provider=pick.provider, expected_us=expected_us, cublas_us=pick.cublas_us,
            is_looped=pick.is_looped, margin=pick.margin,
        )  # fmt: skip

    def requested(self, pick: Pick) -> Epilogue:
        return self._requested  # also where C begins as a copy of it

    def _skipped(self, problem: Product, device: int, addresses: Triple, context: int = 0) -> CorePlan:
        """It launches nothing, and counts for the program's cuBLAS. `context`: in which calls are sampled."""
        gemm = problem.gemm
        depth = gemm.k if gemm.m and gemm.n else 0  # what has none is not counted
        return self.core_plan(
            problem, device, addresses, m=max(gemm.m, 1), n=max(gemm.n, 1), k=depth, is_cublas=True,
            is_left_alone=True, context=context, **numbered(self._requested),
        )  # fmt: skip

    def remember(self, key: Key, plan: Plan) -> None:
        if plan.core is not None:  # else there is nothing to launch
            beside, (pick, reason) = self._new_beside, self._new
            found = Decided(plan.problem.gemm, pick, reason, plan.core, beside=beside, device=plan.gpu.device)
            if beside:
                expected_us = [one.expected_us for one in found.rivals]
                signature = live_key(plan.problem, key[2], self._has_bias)
                kept = self._kept(found, signature, plan.gpu)
                found.kept_as = None if kept else signature
                found.live = LivePlan(self.core, [one.plan for one in found.rivals], expected_us, kept)
            self._keep(key, found)

    def _kept(self, found: Decided, signature: LiveKey, gpu: OpenGpu) -> tuple[int, str, int] | None:
        """Which of its rivals has won in an earlier process, what limited that, and by how many samples."""
        assert self._known is not None
        kept = self._known.live_on(gpu).find(signature)
        names = [one.served_by for one in found.rivals]
        if kept is None or (kept.kernel, kept.split_k) not in names:
            return None
        return names.index((kept.kernel, kept.split_k)), kept.limited_by, kept.num_samples

    def keep_settled(self) -> None:
        """Keep for the next process what was settled since."""
        found: dict[int, list[LiveChoice]] = {}
        with self._lock:
            for one in self._decided.values():
                if (choice := one.settled_choice()) is not None:
                    found.setdefault(one.device, []).append(choice)
                    one.kept_as = None
        for device, choices in found.items():
            assert self._known is not None
            self._known.live_on(self.devices.gpu(device)).add(*choices)

    def _keep(self, key: Key, decided: Decided) -> None:
        if len(self._decided) >= MAX_DECIDED:
            self.forget_plans()
            for one in self._all():
                one.is_forgotten = True
                self._forgotten[one.reason] += one.num_calls
                self._saved_us += one.saved_us
            self._decided.clear()
        self._decided[key] = decided

    def why_not(self, gemm: Gemm, pick: Pick) -> str:
        """Why such a product is left alone; "": it is served, as all is by a table of one order."""
        if self.table.order is not None:
            return ""
        if pick.is_looped:
            return _NOT_TUNED
        if pick.expected_us is None or pick.cublas_us is None:
            return _UNKNOWN
        is_copied = self._has_bias and self._chooser.kernels[pick.kernel_id].is_plain
        moved = 2 * FLOAT_BYTES * gemm.num_results
        copy_us = LAUNCH_APART_US + moved / (1e3 * self.table.limits.bandwidth_gbs)
        kernel_us = pick.expected_us + (copy_us if is_copied else 0)
        is_open = pick.provider == "autotune" or pick.how == "modelled"
        least_us = kernel_us * math.exp(ROUTED_SHARE * pick.margin)
        return "" if is_open and least_us < pick.cublas_us else _FASTER

    def has(self, epilogue: Epilogue) -> bool:
        """Whether its table has kernels with it."""
        return epilogue in self._epilogues

    def call_counts(self) -> AllSignatures:
        """All call signatures so far."""
        with self._lock:
            live = [one.live.state() for one in self._decided.values() if one.live]
            return AllSignatures([*self._all()], self._forgotten.copy(), self._saved_us, live)

    def _all(self) -> Iterator[Decided]:
        for one in self._decided.values():
            one.take_measured()
            yield from one.rivals


def sums_as(kernel: Kernel, pick: Pick) -> tuple[Any, ...]:
    """Equal for launches that sum in the same order."""
    config = kernel.config
    if not isinstance(config, Config):
        return kernel.spec.reduction, pick.split_k, "tensor", config.promote_k, config.flush_k, config.scheme
    lanes = threads_along_k(config)
    return kernel.spec.reduction, pick.split_k, config.slice_k, config.flush_k, lanes, config.bk


def live_key(problem: Product, addresses: Triple, has_bias: bool) -> LiveKey:
    gemm, batch = problem.gemm, problem.batch
    extents = gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b
    return LiveKey(*extents, (batch.products, *batch[1:]), problem.lds, offsets_of(addresses), has_bias)


class RoutedSignatures:
    """Decides by the table for the GPU that tensors are on. `make` returns the engine for a GPU, the same for
    all of a kind; for a GPU without a table it returns any engine, which leaves its calls alone. `first`: a
    GPU whose engine is made at once. `tables`: of all engines, for the router in C++. `is_live`: kinds of
    call are settled on their own calls."""

    def __init__(self, make: Callable[[int], RoutedEngine], first: int) -> None:
        self._make, self._calls, self.tables = make, CombinedCalls(), Tables()
        self._lock = threading.Lock()
        self._engines: dict[int, RoutedEngine] = {}
        self._former = list[RoutedEngine]()  # whose calls still count
        self._is_open = self._add(first)
        self.is_live = self._engines[first].is_live

    @property
    def orders(self) -> list[str]:
        """The summation orders of its tables that have one."""
        return sorted({engine.table.order for engine in self._engines.values() if engine.table.order})

    def tensor_calls(self) -> CombinedCalls | None:
        """What serves torch's tensors on all GPUs; None if this torch does not support it."""
        return self._calls if self._is_open else None

    def decide(self, key: Key) -> Decided:
        """What becomes of such calls, from now on."""
        return self._engine_of(max(key[0])).decide(key)

    def has(self, epilogue: Epilogue, device: int) -> bool:
        """Whether the table for a GPU has kernels with it."""
        return self._engine_of(device).has(epilogue)

    def call_counts(self) -> AllSignatures:
        """All call signatures so far."""
        kinds, forgotten, saved_us, live = list[Decided](), Counter[str](), 0.0, list[LiveState]()
        for engine in dict.fromkeys((*self._former, *self._engines.values())):
            counts = engine.call_counts()
            kinds += counts.kinds
            forgotten += counts.forgotten
            saved_us += counts.saved_us
            live += counts.live
        return AllSignatures(kinds, forgotten, saved_us, live)

    def keep_settled(self) -> None:
        """Keep for the next process what was settled on its calls since."""
        for engine in dict.fromkeys((*self._former, *self._engines.values())):
            engine.keep_settled()

    def exchange(self, make: Callable[[int], RoutedEngine]) -> None:
        """Decide by the engines that this makes from the next call on. Former ones stay: threads may be
        within them."""
        with self._lock:
            before, self._make = self._engines, make
            self._engines = {device: make(device) for device in before}
            pairs = dict.fromkeys((before[device], self._engines[device]) for device in before)
            calls = [new.tensor_calls(is_below_autograd=True) for _, new in pairs]
            self._calls.exchange([one for one in calls if one is not None])
            for old, new in pairs:
                self.tables.exchange(old.core, new.core, new.has(BIAS))
                self._former.append(old)

    def _engine_of(self, device: int) -> RoutedEngine:
        if device not in self._engines:
            self._add(device)
        return self._engines[device]

    def _add(self, device: int) -> bool:
        with self._lock:
            engine = self._make(device)
            is_new = engine not in self._engines.values()
            calls = engine.tensor_calls(is_below_autograd=True) if is_new else None
            if calls is not None:
                self._calls.add(calls)
                self.tables.add(engine.core, engine.has(BIAS))
            self._engines = {**self._engines, device: engine}
            return calls is not None
