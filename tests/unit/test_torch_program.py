"""A program is run with its products routed, as Python would run it, and told of at its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.export.package import runtime_files
from autotune.files.errors import DispatchError
from autotune.runtime.torch.torch_program import main


class FakeRouting:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.no_router, self.saved_us = "", 12.0

    def __enter__(self) -> FakeRouting:
        self.log.append("on")
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append("off")

    def report(self) -> str:
        return "12 products served"

    def call_counts(self) -> Counter[str]:
        return Counter({"": 12, "why": 12})

    def measure_gain(self) -> Any:
        self.log.append("measured")
        return SimpleNamespace(describe=lambda per_call_us: f"gained, {per_call_us} us predicted")


@pytest.fixture
def routing(monkeypatch: pytest.MonkeyPatch) -> FakeRouting:
    made = FakeRouting()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(routing=made))
    for name in ("path", "argv"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    return made


def run(routing: FakeRouting, *arguments: str) -> int:
    return main(lambda: routing, ["python -m table", *arguments])  # type: ignore[arg-type, return-value]


PROGRAM = """
import sys, torch, beside
assert __name__ == "__main__" and torch.routing.log == ["on"], __name__
torch.routing.log.append(" ".join(sys.argv))
sys.exit(int(sys.argv[-1]))
"""


@pytest.mark.parametrize("is_module", [False, True])
def test_a_program_is_run_routed(
    routing: Any, tmp_path: Path, monkeypatch: Any, capsys: Any, is_module: bool
) -> None:
    (tmp_path / "beside.py").write_text("")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(routing, *(["-m", "program"] if is_module else [str(path)]), "--epochs", "3")
    assert ended.value.code == 3
    on, said, off = routing.log
    assert (on, off) == ("on", "off") and said == f"{path} --epochs 3"
    assert capsys.readouterr().err == "12 products served\n"
    sys.modules.pop("beside")


def test_what_a_program_gains_is_told_behind_the_report(routing: Any, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import sys, torch\nassert sys.argv[1:] == ['--compare'], torch.routing.log.append('runs')"
    )
    assert run(routing, "--compare", str(path), "--compare") == 0
    assert routing.log == ["on", "measured", "off"]
    assert capsys.readouterr().err == "12 products served\ngained, 0.5 us predicted\n"
    routing.no_router = "no compiler is here"
    assert run(routing, "--compare", str(path)) == 2
    assert capsys.readouterr().err == "error: --compare needs the router in C++: no compiler is here\n"


def test_help_needs_no_torch(routing: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(routing, "--help") == run(routing, "-h") == 0
    message = capsys.readouterr()
    assert message.out.count("usage: python -m") == 2 and not message.err
    assert run(routing, "--epochs", "3") == 2
    assert "--epochs is no option here" in capsys.readouterr().err


def test_without_a_program_or_torch_it_says_so(routing: Any, monkeypatch: Any, capsys: Any) -> None:
    assert run(routing) == run(routing, "-m") == run(routing, "--compare") == 2
    assert "say which program" in capsys.readouterr().err

    def refuse() -> Any:
        raise DispatchError("another table")

    assert main(refuse, ["t", __file__]) == 2
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(routing, __file__) == run(routing, "nowhere.py") == 2
    message = capsys.readouterr().err
    assert "another table" in message and "install it" in message and not routing.log
    assert "no program at nowhere.py; say which" in message


# Processes of a program

TORCH = """
from torch import cuda
"""
CUDA = """
_queued = []
_lazy_call = _queued.append
def start():
    for call in _queued:
        call()
"""
TABLE = """
class Routing:
    no_router = ""
    def __enter__(self): pass
    def __exit__(self, *_): pass
    def report(self): return "12 products served"
def torch():
    return Routing()
"""
WORK = """
import os, torch
def work():
    torch.cuda.start()
    print(os.getpid(), flush=True)
if __name__ == "__main__":
    work()
"""
STARTER = """
import multiprocessing, subprocess, sys
from worker import work
def run(*command):
    subprocess.run([sys.executable, *command], check=True)
if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        one = multiprocessing.get_context(method).Process(target=work)
        one.start()
        one.join()
        assert not one.exitcode
    run("worker.py")
    run("-c", "import subprocess, sys; subprocess.run([sys.executable, 'worker.py'], check=True)")
"""
NOTHING = "products are not routed: this process did not use CUDA"
# A process that uses no CUDA, and has a sitecustomize of its own
AS_EVER = """
import os, sitecustomize, sys, torch
assert sitecustomize.is_own
assert not [path for path in sys.path if "startup" in path], sys.path
assert not [name for name in sys.modules if name.startswith("tables")]
"""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A simulated torch and a table of it in a folder, which Python finds."""
    files = {"torch/__init__.py": TORCH, "torch/cuda.py": CUDA, "tables/__init__.py": TABLE}
    own = {name: text for name, text in runtime_files().items() if name.endswith((".py", ".json"))}
    files |= {f"tables/_autotune/{name}": text.decode() for name, text in own.items()}
    main = "import sys; from . import torch; from ._autotune.runtime.torch.torch_program import main\n"
    files["tables/__main__.py"] = main + "sys.exit(main(torch, sys.argv))"
    files["worker.py"] = WORK
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run_in(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "tables", "program.py"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "", **environment}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_program_is_routed_from_its_first_use_of_cuda_on(beside: Path) -> None:
    done = run_in(beside, "import worker; worker.work()")
    assert (done.returncode, done.stderr) == (0, "12 products served\n")
    assert run_in(beside, "import torch").stderr == f"{NOTHING}\n"


def test_processes_that_it_starts_are_routed(beside: Path) -> None:
    done = run_in(beside, STARTER)
    workers = done.stdout.split()
    assert done.returncode == 0 and len(set(workers)) == 5, done.stderr
    expected = [f"process {worker}: 12 products served" for worker in workers]
    assert done.stderr.splitlines() == [*expected, NOTHING]


def test_processes_without_cuda_are_as_ever(beside: Path) -> None:
    (beside / "own").mkdir()
    (beside / "own" / "sitecustomize.py").write_text("is_own = True")
    (beside / "as_ever.py").write_text(AS_EVER)
    program = "import subprocess, sys; subprocess.run([sys.executable, 'as_ever.py'], check=True)"
    done = run_in(beside, program, PYTHONPATH=f"{beside}{os.pathsep}{beside / 'own'}")
    assert (done.returncode, done.stderr) == (0, f"{NOTHING}\n")


def test_a_process_that_cannot_be_routed_says_so_and_goes_on(beside: Path) -> None:
    fault = TABLE.replace("return Routing()", "raise DispatchError('no core')")
    (beside / "tables" / "__init__.py").write_text(
        f"from ._autotune.files.errors import DispatchError{fault}"
    )
    done = run_in(beside, "import subprocess, sys; subprocess.run([sys.executable, 'worker.py'], check=True)")
    (worker,) = done.stdout.split()
    assert done.stderr.splitlines() == [f"process {worker}: products are not routed: no core", NOTHING]
    done = run_in(beside, "import worker; worker.work()")
    assert done.returncode == 0 and done.stderr == 2 * "products are not routed: no core\n"


WITH_TORCH = """
import subprocess, sys, torch
for call, _ in torch.cuda._queued_calls:
    call()  # as if it started CUDA
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


def test_torch_itself_begins_the_routing(beside: Path) -> None:
    torch = pytest.importorskip("torch")
    shutil.rmtree(beside / "torch")
    done = run_in(beside, WITH_TORCH, PYTHONPATH=f"{beside}{os.pathsep}{Path(torch.__file__).parents[1]}")
    assert done.returncode == 0, done.stderr
    child, own = (line.rpartition("process")[2].partition(": ") for line in done.stderr.splitlines())
    assert child[2] == "12 products served" and own[0] == "12 products served"
