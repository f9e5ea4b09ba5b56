"""Nodes of a Ray cluster, each in a network namespace of its own: its link to the others can be cut."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BRIDGE, NET = "chaos0", "10.77.77"
PORT = 6379  # of the head
RAY = {
    "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_health_check_initial_delay_ms": "2000", "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "8",
}  # fmt: skip
_RAY_FOLDER = Path("/tmp/ray")


def missing_namespaces() -> str:
    """Why there can be none here, or ""."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    done = subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], capture_output=True, text=True)
    if done.returncode == 0:
        _ip("link del", BRIDGE)
    return done.stderr


def _ip(text: str, *more: str) -> None:
    subprocess.run(["ip", *text.split(), *more], check=True, timeout=20)


class Node:
    """A node of the cluster, the first of which is its head. In it `at` is its folder `own`."""

    def __init__(self, number: int, own: Path, at: Path) -> None:
        self.name, self._link, self.own, self.at = f"chaos{number}", f"chaosv{number}", own, at
        self._ip, self.head = f"{NET}.{number + 2}", f"{NET}.2:{PORT}"
        (own / "ray").mkdir()
        _RAY_FOLDER.mkdir(exist_ok=True)
        at.mkdir(exist_ok=True)
        _ip(f"netns add {self.name}")
        _ip(f"link add {self._link} type veth peer name eth0 netns {self.name}")
        _ip(f"link set {self._link} master {BRIDGE} up")
        for text in ("link set lo up", f"addr add {self._ip}/24 dev eth0", "link set eth0 up"):
            _ip(f"-n {self.name} {text}")

    def within(self, command: list[str]) -> list[str]:
        """A command that runs in it."""
        binds = [(self.own, self.at), (self.own / "ray", _RAY_FOLDER)]
        mounts = "".join(f"mount --bind {one} {other} && " for one, other in binds)
        script = f'hostname {self.name} && {mounts}exec "$@"'
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", script, "sh", *command]

    def ray(self) -> list[str]:
        """The command that is a node of Ray until it ends."""
        kind = ["--head", f"--port={PORT}", "--include-dashboard=false", "--num-cpus=0"]
        if self._ip != f"{NET}.2":
            kind = [f"--address={self.head}", "--num-cpus=1"]
        kind += [f"--node-ip-address={self._ip}", "--object-store-memory=80000000"]
        return self.within([sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *kind])

    def processes(self) -> list[int]:
        """All that run in it."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, timeout=20)
        return [int(one) for one in done.stdout.split()]

    def kill_all(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """With its link, which would stay until the last process is gone."""
        self.kill_all()
        _ip(f"link del {self._link}")
        _ip(f"netns del {self.name}")

    def cut(self, *, breaks: bool) -> None:
        """Nothing comes through, as in a network that drops packets."""
        _ip(f"link set {self._link} down")

    def mend(self) -> None:
        _ip(f"link set {self._link} up")


@contextmanager
def network(folder: Path, number: int) -> Iterator[list[Node]]:
    """So many nodes; what ran in them is gone afterwards. `folder`/node is the folder of each's own."""
    _ip(f"link add {BRIDGE} type bridge")
    nodes = list[Node]()
    try:
        _ip(f"addr add {NET}.1/24 dev {BRIDGE}")
        _ip(f"link set {BRIDGE} up")
        for at in range(number):
            (own := folder / f"node{at}").mkdir()
            nodes.append(Node(at, own, folder / "node"))
        yield nodes
    finally:
        for node in nodes:
            node.remove()
        _ip(f"link del {BRIDGE}")
