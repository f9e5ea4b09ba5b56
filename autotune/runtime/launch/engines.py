"""Which engine serves which GPU of this process: that of the table for its model, or cuBLAS, or none."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence

from ...facts.gemm import Triple
from ...files.errors import DispatchError, DispatchWarning
from ..calls.product import Fallback, common_device
from ..choose.blas_provider import BlasProvider
from ..served_model import ServedModel
from ..table.gpu_models import GpuModel, no_table
from ..torch.routed_engine import RoutedEngine, RoutedSignatures
from .cuda_driver import Driver
from .devices import first_served, gpu_model_here
from .planner import BlasEngine, Planner


class Engines:
    """The engines of a dispatcher, each made when needed, and given to `on_new`. Threads may share it."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        driver: Driver,
        fallback: Fallback,
        on_new: Callable[[Planner], None],
    ) -> None:
        self.driver = driver
        self._models, self._fallback, self._on_new = models, fallback, on_new
        self._lock = threading.RLock()
        self._by_devices: dict[Triple, Planner] = {}
        self._model_of: dict[int, ServedModel | None] = {}
        self._for_host: dict[int | None, int] = {}  # by the current GPU
        self._cublas: BlasEngine | None = None
        self._routed: list[RoutedEngine] = []
        self._warned: set[GpuModel] = set()

    @property
    def all(self) -> list[Planner]:
        """Those that were needed so far."""
        return [*dict.fromkeys(self._by_devices.values()), *self._routed]

    def serving(self, devices: Triple) -> Planner:
        """The engine for arrays on these GPUs. Raises DispatchError if they are on several, or without."""
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

    def model(self, device: int) -> ServedModel | None:
        """The model whose table is for a GPU; None if cuBLAS serves. Raises DispatchError if nothing does."""
        if device not in self._model_of:
            found, fault = self._found(device)
            if found is None and self._fallback == "refuse":
                raise DispatchError(fault)
            self._model_of[device] = found
        return self._model_of[device]

    def for_host(self) -> int:
        """The GPU for host arrays: the current one if there is a table for it, else the first with a table,
        else the one that cuBLAS serves."""
        current = self.driver.current_device()
        if current not in self._for_host:
            try:
                found = first_served(self.driver, lambda one: self._found(one)[1] or None)
            except DispatchError:
                if self._fallback == "refuse" or not self.driver.num_devices():
                    raise
                found = current or 0
            self._for_host[current] = found
        return self._for_host[current]

    def routed_signatures(self, has_bias: bool) -> RoutedSignatures:
        """What serves torch's own products, with or without a bias. The first model's engine leaves alone
        calls on GPUs without a table."""
        try:
            first = self.for_host()
        except DispatchError:  # there is no table for any: all calls are left alone
            first = 0
        return RoutedSignatures(self.routed(has_bias), first)

    def routed(self, has_bias: bool) -> Callable[[int], RoutedEngine]:
        """Makes the engine for torch's own products on a GPU, one for each model."""
        made: dict[ServedModel, RoutedEngine] = {}

        def make(device: int) -> RoutedEngine:
            try:
                model = self.model(device) or self._models[0]
            except DispatchError:
                model = self._models[0]
            if model not in made:
                engine = made[model] = model.routed_engine(self.driver, has_bias=has_bias)
                with self._lock:
                    self._routed.append(engine)
                    self._on_new(engine)
            return made[model]

        return make

    def _found(self, device: int) -> tuple[ServedModel | None, str]:
        """The model for a GPU, or None and why."""
        here = gpu_model_here(self.driver, device)
        of = {model.gpu_model: model for model in self._models}
        found = next((of[model] for model in here.accepted if model in of), None)
        return found, "" if found else no_table([model.table for model in self._models], device, here)

    def _made(self, device: int) -> Planner:
        model = self.model(device)
        if model is not None:
            made: Planner = model.open(self.driver)[0]
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
            names = " and ".join(str(model.gpu_model) for model in self._models)
            warnings.warn(
                f"no table is for GPU {device}, {here}: cuBLAS serves its products (the folder is for "
                f"{names}); run `autotune search --gpu {device}` here and add its table with `autotune "
                "export-table --add`",
                DispatchWarning,
                stacklevel=2,
            )
