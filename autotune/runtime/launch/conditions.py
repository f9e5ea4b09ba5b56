"""What a table's times hold for besides the GPU model: number of SMs, driver, power limit, a MIG slice.

None of it makes a result wrong, so a table is never refused for it. But another kernel may be the fastest, so
the user is warned, once per process and table, at the first product on such a GPU. Later calls cost nothing.
Copied into exported tables.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from ...files.errors import DispatchWarning

if TYPE_CHECKING:
    from ..table.table import Table

MIG = " MIG "  # stands in the name of a slice, between those of the GPU and of the slice's size
_SAME_W = 0.5  # limits closer than this are one


class Conditions(NamedTuple):
    """What a GPU runs under. Values that it does not report are empty or None."""

    gpu_name: str
    num_sms: int
    cuda_version: str  # newest that the driver knows: `13.0`
    driver_version: str = ""  # `580.95.05`
    power_limit_w: float | None = None


def without_slice(gpu_name: str) -> str:
    """The name of the GPU, given its own name or that of a MIG slice of it."""
    return gpu_name.partition(MIG)[0]


def ask_nvml(uuid: str) -> tuple[str, float | None]:
    """Version of the driver, and power limit in W of the GPU of this UUID, as far as NVML reports them."""
    try:
        from cuda.bindings import nvml

        nvml.init_v2()
        version = str(nvml.system_get_driver_version())
    except Exception:  # not installed, no permission: its errors have no base in common
        return "", None
    try:
        milliwatts = int(nvml.device_get_enforced_power_limit(nvml.device_get_handle_by_uuid(uuid)))
    except Exception:  # a slice, a virtual GPU
        return version, None
    return version, milliwatts / 1000


def differences(table: Table, here: Conditions) -> list[str]:
    """How a GPU differs from the one that a table was measured on, as far as both are known."""
    there = table.environment
    pairs: list[tuple[str, Any, Any]] = [
        ("name", here.gpu_name, there.gpu_name),
        ("number of SMs", here.num_sms, table.limits.num_sms),
    ]
    if here.driver_version and there.driver_version:
        pairs.append(("driver", here.driver_version, there.driver_version))
    elif there.cuda_version:
        pairs.append(("CUDA version of the driver", here.cuda_version, there.cuda_version))
    found = [
        f"its {what} is {current}, not {expected}" for what, current, expected in pairs if current != expected
    ]
    limit_w = table.power_limit_w
    if limit_w and here.power_limit_w and abs(limit_w - here.power_limit_w) > _SAME_W:
        found.append(f"its power limit is {here.power_limit_w:g} W, not {limit_w:g} W")
    return found


_warned: set[tuple[str, str, str]] = set()  # tables of this process
_lock = threading.Lock()


def warn(table: Table, device: int, here: Conditions) -> None:
    """Warn that a GPU differs from the one that the table was measured on: once per process and table."""
    found = differences(table, here)
    identity = (table.created_at, table.source_hash, table.environment.gpu_uuid)
    with _lock:
        if not found or identity in _warned:
            return
        _warned.add(identity)
    warnings.warn(
        f"GPU {device} is not quite the one that this table was measured on ({table.environment.gpu_name}, "
        f"exported {table.created_at}): {'; '.join(found)}. Results are right, but other kernels may be "
        f"faster: run `autotune search --gpu {device}` here and export again",
        DispatchWarning,
        stacklevel=2,
    )
