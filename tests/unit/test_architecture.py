"""Holds the house rules: who may import whom, who may print, and what starting the CLI costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "autotune"
MODULES = sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))

PURE = frozenset(
    {
        "errors", "gemm", "device", "measurement", "launch", "config", "resources", "rules", "space", "stats",
        "kernel", "target", "disturbance", "bounds", "cuda_errors", "requirements", "suite", "entries",
        "user_file", "same_code", "identity",
    }
)  # fmt: skip
SHARED = PURE | {"__init__"}


@dataclass(frozen=True)
class Part:
    """What a module or a folder of modules may import: parts of autotune, and others' packages."""

    parts: frozenset[str]
    packages: frozenset[str] = frozenset()


def _part(*parts: str, packages: tuple[str, ...] = (), pure: bool = True) -> Part:
    return Part(frozenset(parts) | (SHARED if pure else {"__init__"}), frozenset(packages))


# The most specific entry counts: "dispatch/runtime" before "dispatch".
RULES: dict[str, Part] = {
    "__init__": _part(),
    **{name: _part(packages=("numpy",)) for name in PURE},
    "errors": _part(pure=False),
    "bounds": _part(pure=False),
    "cuda_errors": _part(pure=False),
    "gemm": _part("errors", pure=False),
    "launch": _part("gemm", pure=False),
    "nvrtc": _part(),
    "nvrtc_worker": _part("nvrtc", packages=("cuda.bindings.nvrtc",)),
    "compiler": _part("nvrtc", packages=("cuda.core", "cuda.bindings.nvrtc", "cuda.pathfinder")),
    "gpu": _part("gpu", "compiler", packages=("cuda", "numpy")),
    "recording": _part(packages=("numpy",)),
    "output_file": _part("errors", pure=False),
    "recording_file": _part("recording", "output_file", packages=("numpy",)),
    "recording_reader": _part("recording", "recording_file", "dispatch", packages=("numpy",)),
    "kernel_tuner": _part("recording"),
    "t4": _part(),
    "simulation": _part(),
    "replay": _part(
        "recording", "recording_file", "recording_reader", "kernel_tuner", "simulation", packages=("numpy",)
    ),
    "ladder": _part(),
    "chart": _part(pure=False),
    "store": _part("store", packages=("sqlalchemy", "alembic", "optuna")),
    "families": _part(),
    "search": _part("search", "store", "families", packages=("optuna", "numpy")),
    "dispatch": _part("dispatch", "store", "compiler", "output_file", packages=("numpy",)),
    "dispatch/general": _part("dispatch", "families"),
    "dispatch/table": _part("dispatch"),
    # what exported tables carry and run
    **{
        f"dispatch/{name}": _part("dispatch", packages=("numpy", "cuda"))
        for name in ("arrays", "conditions", "devices", "driver", "runtime", "select", "workspace")
    },
    "report": _part("report", "store", packages=("numpy", "plotly")),
}
# Free to compose everything: the command line and what draws for it.
COMPOSERS = {"cli", "commands", "console", "start", "__main__"}


def _tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what stands under `if TYPE_CHECKING` does not."""
    for node in ast.iter_child_nodes(tree):
        if not _is_type_checking(node):
            yield node
            yield from _nodes(node)


def _absolute(node: ast.ImportFrom, module: str) -> list[str]:
    """Dotted names that `from x import a, b` may load: x.a and x.b (which also tell x)."""
    base = ["autotune", *module.split("/")]
    prefix = ".".join(base[: len(base) - node.level]) if node.level else ""
    stem = ".".join(filter(None, (prefix, node.module)))
    return [f"{stem}.{alias.name}" for alias in node.names]


def imports(module: str) -> set[str]:
    """Dotted names that a module imports anywhere in its text, lazily too."""
    found: set[str] = set()
    for node in _nodes(_tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(_absolute(node, module))
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


def _own_part(name: str) -> str:
    """`autotune.store.models.Trial` -> `store`; names of the package itself -> `__init__`."""
    head = name.split(".")[1]
    is_module = (PACKAGE / head).is_dir() or (PACKAGE / f"{head}.py").is_file()
    return head if is_module else "__init__"


def _rule(module: str) -> Part:
    rule = RULES.get(module) or RULES.get(module.split("/")[0])
    assert rule is not None, f"autotune/{module}.py stands in no rule of {Path(__file__).name}: add its part"
    return rule


def _may_load(name: str, packages: frozenset[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("module", [m for m in MODULES if m.split("/")[0] not in COMPOSERS])
def test_imports_obey_the_design(module: str) -> None:
    rule = _rule(module)
    own = {_own_part(name) for name in imports(module) if name.startswith("autotune.")}
    foreign = {name for name in imports(module) if not name.startswith("autotune.")}
    assert own <= rule.parts, f"autotune/{module}.py may not import {own - rule.parts}"
    refused = {name for name in foreign if not _may_load(name, rule.packages)}
    assert not refused, f"autotune/{module}.py may not import {refused}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("store/")])
def test_optuna_is_met_in_one_file_of_the_store(module: str) -> None:
    if module != "store/optuna_mirror":
        assert not any(name.split(".")[0] == "optuna" for name in imports(module))


def test_nobody_imports_the_command_line() -> None:
    for module in (m for m in MODULES if m.split("/")[0] not in COMPOSERS):
        names = {_own_part(name) for name in imports(module) if name.startswith("autotune.")}
        assert not names & COMPOSERS, module


@pytest.mark.parametrize("module", [m for m in MODULES if m.split("/")[0] not in COMPOSERS])
def test_only_the_command_line_prints(module: str) -> None:
    calls = [n for n in ast.walk(_tree(module)) if isinstance(n, ast.Call)]
    assert not [n.lineno for n in calls if ast.unparse(n.func) in ("print", "sys.stdout.write")]


@pytest.mark.parametrize("module", MODULES)
def test_dunder_all_names_what_is_there(module: str) -> None:
    names = [
        node.value
        for node in _tree(module).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    if not names:
        assert module != "__init__" or not _public_imports(module), "public names need an __all__"
        return
    listed = ast.literal_eval(names[0])
    loaded = importlib.import_module(".".join(["autotune", *module.split("/")]).removesuffix(".__init__"))
    assert len(set(listed)) == len(listed)
    assert not [name for name in listed if not hasattr(loaded, name)]


def _public_imports(module: str) -> list[str]:
    return [n.names[0].name for n in _tree(module).body if isinstance(n, ast.ImportFrom) and n.level]


def _loaded_by(statement: str) -> set[str]:
    """Top-level packages in memory after a statement, in a process of its own."""
    code = f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\n"
    code += "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


HEAVY = {"cuda", "numpy", "optuna", "sqlalchemy", "alembic", "plotly", "rich"}


def test_help_loads_nothing_heavy() -> None:
    loaded = _loaded_by("sys.argv = ['autotune', '--help']; import autotune.cli as c; c.main()")
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert not _loaded_by("import autotune") & (HEAVY | {"typer"})


def test_the_runtime_loads_only_numpy_and_cuda() -> None:
    loaded = _loaded_by("import autotune.dispatch.runtime")
    assert not loaded & {"optuna", "sqlalchemy", "alembic", "typer", "plotly"}
