"""A program is run with its products routed, as Python would run it, and told of at its end."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import DispatchError
from autotune.runtime.torch_program import main


class PlayedRouting:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.no_router, self.saved_us = "", 12.0

    def __enter__(self) -> PlayedRouting:
        self.log.append("on")
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append("off")

    def report(self) -> str:
        return "12 products served"

    def tally(self) -> Counter[str]:
        return Counter({"": 12, "why": 12})

    def measure_gain(self) -> Any:
        self.log.append("measured")
        return SimpleNamespace(told=lambda per_call_us: f"gained, {per_call_us} us predicted")


@pytest.fixture
def routing(monkeypatch: pytest.MonkeyPatch) -> PlayedRouting:
    made = PlayedRouting()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(routing=made))
    for name in ("path", "argv"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    return made


def run(routing: PlayedRouting, *arguments: str) -> int:
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


def test_without_a_program_or_torch_it_says_so(routing: Any, monkeypatch: Any, capsys: Any) -> None:
    assert run(routing) == run(routing, "-m") == run(routing, "--compare") == 2
    assert "say which program" in capsys.readouterr().err

    def refuse() -> Any:
        raise DispatchError("another table")

    assert main(refuse, ["t", "p.py"]) == 2
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(routing, "p.py") == 2
    told = capsys.readouterr().err
    assert "another table" in told and "install it" in told and not routing.log
