"""NVML: clocks, power, temperature, throttling and neighbours of one GPU, where it tells them.

Nothing here raises: what NVML does not tell (no library, no permission, a virtual GPU) is None, and
never costs a measurement. Field names and bits are those of nvml.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..measurement import GpuState

T = TypeVar("T")

_THROTTLE_BITS = {
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}  # bit 0, idle, is no throttling
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
_FIELD_POWER_INSTANT = 186  # mW now; device_get_power_usage is the mean of the last second


def throttle_names(bits: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's mask of clock events."""
    return tuple(name for bit, name in _THROTTLE_BITS.items() if bits & bit)


def _ask(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except Exception:  # NVML's errors have no common base with those of loading it
        return None


class Monitor:
    """Watches the GPU with this UUID (`GPU-...`). Without NVML, every answer is empty."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = _ask(self._open)
        self._handle: Any = None
        if self._nvml is not None:
            self._handle = _ask(lambda: self._nvml.device_get_handle_by_uuid(uuid))

    @staticmethod
    def _open() -> Any:
        from cuda.bindings import nvml

        nvml.init_v2()
        return nvml

    def driver_version(self) -> str:
        """`580.95.05`, or "" where NVML is absent."""
        return _ask(lambda: str(self._nvml.system_get_driver_version())) or ""

    def state(self) -> GpuState:
        """Clocks, power and throttling now: call it while the GPU is busy with what is measured."""
        if self._handle is None:
            return GpuState()
        nvml, handle = self._nvml, self._handle
        reasons = _ask(lambda: int(nvml.device_get_current_clocks_event_reasons(handle)))
        return GpuState(
            sm_clock_mhz=_ask(lambda: int(nvml.device_get_clock_info(handle, _CLOCK_SM))),
            memory_clock_mhz=_ask(lambda: int(nvml.device_get_clock_info(handle, _CLOCK_MEMORY))),
            power_w=self._power_w(),
            temperature_c=_ask(lambda: int(nvml.device_get_temperature_v(handle, _SENSOR_GPU))),
            throttle_reasons=throttle_names(reasons or 0),
        )

    def other_processes(self) -> int | None:
        """How many processes hold a compute context on this GPU; ask before opening one's own.

        In a container NVML tells the host's process ids, so they cannot be compared with os.getpid().
        """
        if self._handle is None:
            return None
        return _ask(lambda: len(self._nvml.device_get_compute_running_processes_v3(self._handle)))

    def _power_w(self) -> float | None:
        milliwatts = _ask(self._power_instant_mw) or _ask(
            lambda: int(self._nvml.device_get_power_usage(self._handle))
        )
        return None if milliwatts is None else milliwatts / 1000

    def _power_instant_mw(self) -> int | None:
        field = self._nvml.FieldValue(1)
        field.field_id = _FIELD_POWER_INSTANT
        self._nvml.device_get_field_values(self._handle, field)
        if int(field.nvml_return) != 0:
            return None
        return int(field.value["ui_val"].reshape(-1)[0])
