"""In every process of a chaos run, as it starts: leases of two seconds, and a database clock that can be set.
Compilers and Ray's own, which know no database, are left alone."""

from __future__ import annotations

from pathlib import Path


def _inject() -> None:
    from sqlalchemy.ext.compiler import compiles

    from autotune.store import database, leases, queue

    leases.LEASE_S, leases.HEARTBEAT_S = 2.0, 0.5
    database.RECONNECT_S, queue.RETRY_S = 20.0, 0.5

    @compiles(leases.now_s, "postgresql")
    def _jumping(_element: object, _compiler: object, **_: object) -> str:
        clock = "extract(epoch FROM clock_timestamp())::double precision"
        return f"({clock} + (SELECT offset_s FROM chaos_clock))"


_OTHERS = (b"nvrtc_worker", b"agent.py", b"agent/main.py", b"monitor.py", b"ray.scripts.scripts")
_command = Path("/proc/self/cmdline").read_bytes()
if not any(one in _command for one in _OTHERS):
    _inject()
