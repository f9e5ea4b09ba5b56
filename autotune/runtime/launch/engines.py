"""Which engine serves which GPU of this process: that of the table for its kind, or cuBLAS, or none.

Copied into exported tables.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence

from ...facts.gemm import Triple
from ...files.errors import DispatchError, DispatchWarning
from ..calls.product import Fallback, common_device
from ..cublas.blas_provider import BlasProvider
from ..one_kind import OneKind
from ..table.kinds import GpuModel, no_table
from ..torch.routed_engine import RoutedEngine, RoutedSignatures
from .cuda_driver import Driver
from .devices import first_served, gpu_model_here
from .engine import BlasEngine
from .planner import Planner


class Engines:
    """The engines of a dispatcher, each made when a GPU needs it; `on_new` receives it. Threads may share
    it."""

    def __init__(
        self,
        kinds: Sequence[OneKind],
        driver: Driver,
        fallback: Fallback,
        on_new: Callable[[Planner], None],
    ) -> None:
        self.driver = driver
        self._kinds, self._fallback, self._on_new = kinds, fallback, on_new
        self._lock = threading.RLock()
        self._by_devices: dict[Triple, Planner] = {}
        self._kind_of: dict[int, OneKind | None] = {}
        self._for_host: dict[int | None, int] = {}  # by the current GPU
        self._cublas: BlasEngine | None = None
        self._routed: list[RoutedEngine] = []
        self._warned: set[GpuModel] = set()

    @property
    def all(self) -> list[Planner]:
        """Those that were needed so far."""
        return [*dict.fromkeys(self._by_devices.values()), *self._routed]

    def serving(self, devices: Triple) -> Planner:
        """The engine for arrays on these GPUs. Raises DispatchError if they are on several, or if there is
        none for theirs."""
        found = self._by_devices.get(devices)
        if found is None:
            found = self.of(common_device(devices))
            self._by_devices[devices] = found
        return found

    def of(self, device: int) -> Planner:
        """The engine for a GPU. Raises DispatchError if there is none for it."""
        devices = (device, device, device)
        found = self._by_devices.get(devices)
        if found is None:
            with self._lock:
                found = self._by_devices.get(devices) or self._made(device)
                self._by_devices[devices] = found
        return found

    def kind(self, device: int) -> OneKind | None:
        """The kind whose table is for a GPU; None if cuBLAS serves it. Raises DispatchError if it is not
        served."""
        if device not in self._kind_of:
            here = gpu_model_here(self.driver, device)
            of = {kind.gpu_model: kind for kind in self._kinds}
            found = next((of[kind] for kind in here.accepted if kind in of), None)
            if found is None and self._fallback == "refuse":
                raise DispatchError(self._no_table(device, here))
            self._kind_of[device] = found
        return self._kind_of[device]

    def for_host(self) -> int:
        """The GPU for host arrays: the current one if there is a table for it, else the first with a table,
        else the one that cuBLAS serves."""
        current = self.driver.current_device()
        if current not in self._for_host:
            try:
                found = first_served(self.driver, self._fault)
            except DispatchError:
                if self._fallback == "refuse" or not self.driver.num_devices():
                    raise
                found = current or 0
            self._for_host[current] = found
        return self._for_host[current]

    def routed_kinds(self, has_bias: bool) -> RoutedSignatures:
        """What serves torch's own products, with or without a bias. The first kind's engine leaves alone
        calls on GPUs without a table."""
        try:
            first = self.for_host()
        except DispatchError:  # there is no table for any: all calls are left alone
            first = 0
        return RoutedSignatures(self.routed(has_bias), first)

    def routed(self, has_bias: bool) -> Callable[[int], RoutedEngine]:
        """Makes the engine for torch's own products on a GPU, one for each kind."""
        made: dict[OneKind, RoutedEngine] = {}

        def make(device: int) -> RoutedEngine:
            try:
                kind = self.kind(device) or self._kinds[0]
            except DispatchError:
                kind = self._kinds[0]
            if kind not in made:
                engine = made[kind] = kind.routed_engine(self.driver, has_bias=has_bias)
                with self._lock:
                    self._routed.append(engine)
                    self._on_new(engine)
            return made[kind]

        return make

    def _fault(self, device: int) -> str | None:
        here = gpu_model_here(self.driver, device)
        is_known = any(kind.gpu_model in here.accepted for kind in self._kinds)
        return None if is_known else self._no_table(device, here)

    def _no_table(self, device: int, here: GpuModel) -> str:
        return no_table([kind.table for kind in self._kinds], device, here)

    def _made(self, device: int) -> Planner:
        kind = self.kind(device)
        if kind is not None:
            made: Planner = kind.open(self.driver)[0]
        else:
            self._warn(device)
            self._cublas = made = self._cublas or BlasEngine(self.driver, BlasProvider(is_on=True))
        if made not in self._by_devices.values():
            self._on_new(made)
        return made

    def _warn(self, device: int) -> None:
        """Once for each GPU model."""
        here = gpu_model_here(self.driver, device)
        if here not in self._warned:
            self._warned.add(here)
            names = " and ".join(str(kind.gpu_model) for kind in self._kinds)
            warnings.warn(
                f"no table is for GPU {device}, {here}: cuBLAS serves its products (the folder is for "
                f"{names}); run `autotune search --gpu {device}` here and add its table with `autotune "
                "export-table --add`",
                DispatchWarning,
                stacklevel=2,
            )
