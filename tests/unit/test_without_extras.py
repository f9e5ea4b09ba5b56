"""Commands load without the packages that only some of them need, and these say what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Those of all extras in pyproject.toml, and what samplers and results need.
_WITHOUT = """
import importlib, pkgutil, sys
EXTRAS = {
    "cmaes", "cryptography", "jinja2", "matplotlib", "optuna_dashboard", "pandas", "prometheus_client",
    "psycopg", "ray", "scipy", "starlette", "torch", "uvicorn",
}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import autotune.cli as commands
for found in pkgutil.iter_modules(commands.__path__, "autotune.cli."):
    importlib.import_module(found.name)
from autotune.cli.app import _run
for command in sys.argv[1:]:
    sys.argv = ["autotune", *command.split()]
    print(command, _run(), file=sys.stderr)
"""
WORKING = ("requests add --shape 64", "requests list", "tables list")
LACKING = ("report", "view", "serve", "trials dashboard", "tables key a.key", "search --shape 64 --cluster x")


def test_commands_say_which_package_they_lack(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *WORKING, *LACKING],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    for command in WORKING:
        assert f"{command} 0\n" in done.stderr
    for command in LACKING:
        assert f"{command} 3\n" in done.stderr
    assert done.stderr.count("pip install") == len(LACKING)
