"""One GPU model of an exported folder: its table, its chooser, the engine that launches its kernels here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..facts.accuracy_class import STRICT, serves
from ..facts.device import LIKE
from ..facts.gemm import FP32, Gemm
from ..files.errors import DispatchError
from .calls.product import Settle, packed
from .choose.blas_provider import BlasProvider, ProvenBlas
from .choose.chooser import Call, Chooser, Pick
from .table.gpu_models import CubinFiles, GpuModel, load_models, read_whole
from .table.table import Table

if TYPE_CHECKING:
    from .launch.cuda_driver import Driver
    from .launch.devices import OpenGpu
    from .launch.planner import Engine
    from .settle.choices import KnownChoices
    from .settle.settling import QuickCheck, Settler
    from .torch.routed_engine import RoutedEngine

MAX_PICKS = 4096  # shapes whose picks are remembered


class ServedModel:
    """Serves GPUs of one model. Threads may share it. The modules that launch are imported when it is opened.

    `settles`: how call signatures that the model picks for are settled. `is_deterministic`: the loaded cuBLAS
    decides nothing."""

    def __init__(
        self, table: Table, code: CubinFiles, blas: BlasProvider, settles: Settle, *, is_deterministic: bool
    ) -> None:
        self.table, self.gpu_model = table, GpuModel.of_table(table)
        self._given_blas = blas
        if table.order is not None:  # which nobody promises of cuBLAS
            blas = ProvenBlas(blas.is_on)
        self._code, self._blas, self._settles = code, blas, settles
        self._is_deterministic = is_deterministic
        self._is_first_use = settles == "first-use"
        # deterministic: processes differ in which cuBLAS they have loaded, and when
        self.chooser = Chooser(table, None if is_deterministic else blas.loaded_version)
        self._lock = threading.RLock()
        self._known: KnownChoices | None = None  # as long as nothing is pinned or settled
        self._picks: dict[tuple[int, int, int, bool, bool] | Gemm, Pick] = {}
        self._opened: tuple[Engine, Settler] | None = None

    @property
    def cublas_version(self) -> str | None:
        """Of the cuBLAS that this process has loaded, if it may serve."""
        return self._given_blas.loaded_version()

    def with_table(self, table: Table, code: CubinFiles) -> ServedModel:
        """With another table for such GPUs. Raises DispatchError if that does not serve its class."""
        table = table.for_class(self.table.accuracy)
        return ServedModel(table, code, self._given_blas, self._settles, is_deterministic=False)

    def cached_pick(self, key: tuple[int, int, int, bool, bool]) -> Pick | None:
        """The earlier pick for a shape: with exactly these types, as 1, True and 1.0 are one key."""
        return self._picks.get(key)

    def pick(self, gemm: Gemm) -> Pick:
        """What a product of packed, aligned matrices would run, on any GPU of the model."""
        key = (
            gemm
            if gemm.is_batched or not gemm.is_float
            else (gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)
        )
        picks = self._picks  # `settle` replaces them
        found = picks.get(key) or self.choose(gemm)
        if not (self._is_first_use and self._blas.is_wanted(found)):  # which may be settled at any time
            if len(picks) >= MAX_PICKS:
                picks.clear()
            picks[key] = found
        return found

    def choose(self, gemm: Gemm, device: int | None = None) -> Pick:
        """As `pick`, on one GPU, without the cache."""
        if gemm.m and gemm.n:
            problem = self.chooser.served_as(packed(gemm), (0, 0, 0))
            call = Call(problem.gemm, problem.lds, batch=problem.batch)
            if not gemm.is_float:
                if (reading := self.chooser.reading(call)) is not None:
                    return replace(
                        reading, tell_workspace=partial(self.chooser.workspace_bytes, reading, call)
                    )
                found = self.choose(replace(gemm, a_type=FP32), device)
                return replace(found, tell=partial(_describe_converted, found.tell))
            known = self._known and self._known.pick(call, device)
            found = self._blas.served(known or self.chooser.pick(call), call, device)
            if os.environ.get(LIKE) == self.gpu_model.name:
                found = replace(found, tell=partial(_describe_for_others, found.tell))
            return replace(found, tell_workspace=partial(self.chooser.workspace_bytes, found, call))
        text = partial(str, "the result has no elements: nothing is launched")
        return Pick(self.table.defaults[gemm.layout.partition(":")[0]], "default", text, 1)

    def choices(self, pinned: Path | None = None) -> KnownChoices:
        """Those settled, or pinned by a file. Raises DispatchError if that is damaged or of another table."""
        from .settle.choices import KnownChoices

        with self._lock:
            if self._known is None:
                # only plain kernels are ever chosen
                kernels = {name: kernel for name, kernel in self.chooser.kernels.items() if kernel.is_plain}
                is_first_use = self._is_first_use
                self._known = KnownChoices(self.table, kernels, pinned, is_first_use, self._blas)
            return self._known

    def open(self, driver: Driver) -> tuple[Engine, Settler]:
        """The engine and the settler for all GPUs of the model."""
        from .launch.planner import Engine
        from .settle.settling import Settler

        with self._lock:
            if self._opened is None:
                known = self.choices()
                engine = Engine(self.table, self._code, self.chooser, driver, known, self._blas)
                settler = Settler(self.table, engine, self.chooser, known)
                engine.settle = settler.at_first_use
                self._opened = engine, settler
            return self._opened

    def settle(self, gemms: Iterable[Gemm], driver: Driver, device: int) -> list[Pick]:
        """Time the model's launches for shapes, once; returns what then serves them. Batches are left as they
        are. Raises DispatchError under capture."""
        from .settle.settling import DEFAULT_STREAM

        engine, settler, gpu = self._free(driver, device, "shapes cannot be settled")
        self.choices().choices_on(gpu)
        requested = list(gemms)
        for gemm in requested:
            if gemm.m and gemm.n and not gemm.is_batched:
                settler.settle(packed(gemm), gpu, DEFAULT_STREAM)
        engine.forget_plans()
        self._picks = {}
        return [self.choose(gemm, device) for gemm in requested]

    def verify_quick(self, driver: Driver, device: int) -> QuickCheck:
        """One kernel's result, and its time against the recorded one. Raises DispatchError under capture."""
        from .settle.settling import check_kernel

        engine, _, gpu = self._free(driver, device, "nothing can be timed")
        return check_kernel(engine, gpu)

    def _free(self, driver: Driver, device: int, what_cannot: str) -> tuple[Engine, Settler, OpenGpu]:
        """What times on a GPU. Raises DispatchError under capture."""
        from .settle.settling import DEFAULT_STREAM

        engine, settler = self.open(driver)
        gpu = engine.devices.gpu(device)
        if settler.is_captured(gpu, DEFAULT_STREAM):
            raise DispatchError(f"{what_cannot} while a graph is captured; do so before")
        return engine, settler, gpu

    def routed_engine(self, driver: Driver, *, has_bias: bool) -> RoutedEngine:
        """What serves torch's own products; see routed_engine.py."""
        from .choose.blas_provider import CublasSums, loaded_library, loaded_lt
        from .native.core import core_of
        from .torch.routed_engine import AsPicked, RoutedEngine

        known = self.choices() if self._settles.startswith("live") else self._known
        rest: tuple[Any, ...] = self.table, self._code, self.chooser, driver, known, AsPicked()
        made = RoutedEngine(has_bias, core_of(self.table), self._settles, *rest)
        made.devices = self.open(driver)[0].devices  # what is loaded is loaded once
        if self._given_blas.is_on and not self._is_deterministic:
            sums = CublasSums(driver, made.devices, self.table, loaded_library, loaded_lt)
            made.allowed = sums.allowed
        return made


def _describe_converted(tell: Callable[[], str]) -> str:
    return f"A is converted to FP32 first; {tell()}"


def _describe_for_others(tell: Callable[[], str]) -> str:
    return f"{tell()}; {LIKE} accepts other GPUs as {os.environ.get(LIKE)}"


def open_models(
    folder: Path, blas: BlasProvider, settles: Settle, *, is_deterministic: bool, accuracy: str = STRICT
) -> tuple[ServedModel, ...]:
    """All models of a folder, read at once, as they serve a class of accuracy. Raises DispatchError where
    anything is missing or damaged, or if no table serves that class."""

    def read() -> tuple[ServedModel, ...]:
        found = load_models(folder)
        serving = [one for one in found if serves(accuracy, one[1].accuracy)] or found
        return tuple(
            ServedModel(
                table.for_class(accuracy),
                CubinFiles(path, table),
                blas,
                settles,
                is_deterministic=is_deterministic,
            )
            for path, table in serving
        )

    return read_whole(folder, read)
