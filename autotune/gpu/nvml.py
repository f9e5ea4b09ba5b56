"""NVML: clocks, power, temperature, throttling and neighbours of one GPU, as far as NVML reports them.

Nothing here raises: a value that NVML does not report (no library, no permission, a virtual GPU) is None, and
never prevents a measurement. Field names and bits are those of nvml.h.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..facts.measurement import GpuState

T = TypeVar("T")

_THROTTLES = (  # from bit 1 on: bit 0, idle, is no throttling
    "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake", "display_clocks",
)  # fmt: skip
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
_LISTED_WITHIN_S, _POLL_S = 0.5, 0.02  # a process that has opened the GPU
_FIELD_POWER_INSTANT = 186  # mW now; device_get_power_usage is the mean of the last second


def throttle_names(bits: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's mask of clock events."""
    return tuple(name for bit, name in enumerate(_THROTTLES, 1) if bits >> bit & 1)


def own_process(before: frozenset[int] | None, after: frozenset[int] | None) -> int | None:
    """The process that appeared, if it was exactly one."""
    appeared = (after or frozenset()) - (before or frozenset())
    return next(iter(appeared)) if before is not None and len(appeared) == 1 else None


def has_neighbour(busy: frozenset[int], own: int | None) -> bool:
    """Whether any of these processes is not this one, which is itself busy when it asks."""
    return bool(busy - {own}) if own is not None else len(busy) > 1


def _entries(found: Any) -> list[Any]:
    """NVML's arrays as lists: what the binding returns has a length and an index, and no iterator."""
    return [found[i] for i in range(len(found))]


def _ask(query: Callable[[], T]) -> T | None:
    try:
        return query()
    except Exception:  # NVML's errors have no common base with those of loading it
        return None


class Monitor:
    """Watches the GPU with this UUID (`GPU-...`). Without NVML, every answer is empty."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = _ask(self._open)
        self._handle: Any = None
        self.own_pid: int | None = None  # as NVML numbers processes, once `find_own_pid` has found it
        self.peers: frozenset[int] = frozenset()  # take turns with this one: not neighbours
        self._seen_us = 0  # NVML's time of the newest sample of utilisation that was read
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

    def power_limit_w(self) -> float | None:
        """Limit that the GPU is held to now."""
        milliwatts = _ask(lambda: int(self._nvml.device_get_enforced_power_limit(self._handle)))
        return None if milliwatts is None else milliwatts / 1000

    def state(self) -> GpuState:
        """Clocks, power and throttling now: call it while the GPU runs the measured work."""
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

    def processes(self) -> frozenset[int] | None:
        """Ids of the processes that hold a compute context on this GPU, as the host numbers them: in a
        container they cannot be compared with os.getpid()."""
        if self._handle is None:
            return None
        found = _ask(lambda: self._nvml.device_get_compute_running_processes_v3(self._handle))
        return None if found is None else frozenset(int(entry.pid) for entry in _entries(found))

    def find_own_pid(self, before: frozenset[int] | None) -> None:
        """Learn this process's id: the one that was not there before its context. It may be listed late."""
        latest_s = time.monotonic() + _LISTED_WITHIN_S
        while (listed := self.processes()) is not None:
            self.own_pid = own_process(before, listed)
            if self.own_pid is not None or time.monotonic() > latest_s:
                break
            time.sleep(_POLL_S)
        self._busy_processes()  # earlier samples do not matter

    def is_neighbour_busy(self) -> bool | None:
        """Whether another process, except partners, computed on this GPU since the last call; None if NVML
        does not report it, as on MIG instances. NVML samples from time to time, so it may miss a short
        activity."""
        busy = self._busy_processes()
        return None if busy is None else has_neighbour(busy - self.peers, self.own_pid)

    def _busy_processes(self) -> frozenset[int] | None:
        """Processes that computed in any sample that is newer than those seen."""
        if self._handle is None:
            return None
        try:
            found = _entries(self._nvml.device_get_process_utilization(self._handle, self._seen_us))
        except Exception as error:  # as in _ask; nothing new is an error to NVML
            return frozenset() if type(error).__name__ == "NotFoundError" else None
        new = [entry for entry in found if int(entry.time_stamp) > self._seen_us]  # its buffer keeps old ones
        self._seen_us = max([self._seen_us, *(int(entry.time_stamp) for entry in new)])
        return frozenset(int(entry.pid) for entry in new if int(entry.sm_util) > 0)

    def energy_j(self) -> float | None:
        """Energy used since the driver was loaded; it advances by steps, many times a second."""
        if self._handle is None:
            return None
        millijoules = _ask(lambda: int(self._nvml.device_get_total_energy_consumption(self._handle)))
        return None if millijoules is None else millijoules / 1000

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
