"""Holds the house rules: who may import whom, who may print, and what starting the CLI costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs/tools"))

from import_graph import MODULES, imports, in_circles, own, tree

from autotune.export.package import runtime_files
from autotune.search_policy import SearchPolicy

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED_ONCE = ("autotune", "benchmarks", "docs/tools", "tests")  # no name is given twice within them
# What every room may use; and modules at the top that say what a search is of, and what it measures on.
FILES, FACTS = frozenset({"files", "__init__"}), frozenset({"facts", "files", "__init__"})
REQUESTED = frozenset({"search_policy", "suite", "target"})
MOST_AT_TOP = 8  # modules
MOST_OF_AN_EXPORT = 50  # modules that an exported folder copies: one for each of five templates


@dataclass(frozen=True)
class Room:
    """What a module, or all modules of a folder, may import: rooms of autotune, and others' packages."""

    rooms: frozenset[str]
    packages: frozenset[str]


def _room(*rooms: str, packages: tuple[str, ...] = ()) -> Room:
    return Room(frozenset(rooms) | FACTS | REQUESTED, frozenset(packages))


# The most specific entry counts: "kernel/nvrtc_worker" before "kernel", "search/propose" before "search".
RULES: dict[str, Room] = {
    "__init__": Room(FACTS | {"search_policy"}, frozenset()),
    "search_policy": Room(FACTS, frozenset()),
    "files": Room(FILES, frozenset()),
    "files/strict": Room(frozenset({"files/words", "files/errors"}), frozenset()),
    "files/wheel_libraries": Room(frozenset({"files/errors"}), frozenset({"cuda.pathfinder"})),
    "facts": Room(FACTS, frozenset({"numpy"})),
    "kernel": Room(FACTS | {"kernel"}, frozenset({"numpy"})),
    "kernel/launch": Room(FACTS, frozenset()),
    "target": Room(FACTS | {"kernel"}, frozenset()),
    "suite": Room(FACTS | {"kernel"}, frozenset()),
    "kernel/nvrtc_worker": _room("kernel", packages=("cuda.bindings.nvrtc",)),
    "kernel/compiler": _room("kernel", packages=("cuda.core",)),
    "perf_model": _room("perf_model", "kernel", packages=("numpy",)),
    "gpu": _room("gpu", "kernel", packages=("cuda", "numpy")),
    "store": _room("store", "kernel", packages=("sqlalchemy", "optuna")),
    "store/trial_rows": _room("store", "kernel", packages=("sqlalchemy", "numpy")),
    "recording": _room("recording", "kernel", packages=("numpy",)),
    "search": _room("search", "store", "perf_model", "kernel", packages=("numpy",)),
    "search/propose": _room("search/propose", "kernel", packages=("optuna", "numpy")),
    "search/run": _room("search", "kernel", packages=("numpy",)),
    "search/compare": _room("search", "store", "kernel", packages=("numpy",)),
    "core": Room(frozenset(), frozenset()),  # it runs before anything is installed
    "core/hatch_hook": Room(frozenset(), frozenset({"hatchling"})),
    "runtime": _room("runtime", "perf_model", "kernel", packages=("numpy", "cuda")),
    "runtime/service": _room("runtime", "perf_model", "kernel", packages=("numpy", "cuda", "cryptography")),
    "export": _room("export", "recording", "runtime", "perf_model", "kernel", packages=("numpy",)),
    "estimate": _room("estimate", "runtime", "kernel", packages=("torch",)),
    "export/from_store": _room("export", "store", "kernel"),
    "report": _room("report", "store", "recording", "runtime", "kernel", packages=("numpy", "jinja2")),
    "report/server": _room("report", packages=("starlette", "uvicorn")),
    "service": _room(
        "service",
        "store",
        "export",
        "runtime",
        "kernel",
        "report/page",
        packages=("cryptography", "prometheus_client", "starlette", "uvicorn"),
    ),
    "tiles": _room("tiles", "report/palette", "kernel", "core", packages=("numpy",)),
}
# Free to compose everything: the command line, what it stands on, and what starts it.
COMPOSERS = {
    "cli", "__main__", "tuning", "drawn_shapes", "shipped", "target_finder", "service/several_gpus",
    "service/preloaded", "service/queue_worker", "service/compile_worker", "service/ray_cluster",
}  # fmt: skip


def _is_in(module: str, rooms: Collection[str]) -> bool:
    return any(module == room or module.startswith(f"{room}/") for room in rooms)


BELOW = [module for module in MODULES if not _is_in(module, COMPOSERS)]


def _rule(module: str) -> Room:
    parts = module.split("/")
    names = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    rule = next((RULES[name] for name in names if name in RULES), None)
    assert rule is not None, f"autotune/{module}.py stands in no rule of {Path(__file__).name}: add its room"
    return rule


def _may_load(name: str, packages: frozenset[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_imports_obey_the_design() -> None:
    def rejected(module: str) -> set[str]:
        rule = _rule(module)
        foreign = {name for name in imports(module) if not name.startswith("autotune.")}
        return {name for name in own(module) if not _is_in(name, rule.rooms)} | {
            name for name in foreign if not _may_load(name, rule.packages)
        }

    found = {f"autotune/{module}.py": rejected(module) for module in BELOW}
    assert not {module: names for module, names in found.items() if names}, "these may not be imported there"


def test_few_modules_stand_at_the_top() -> None:
    assert len([module for module in MODULES if "/" not in module]) <= MOST_AT_TOP


def test_an_export_copies_few_modules_and_none_is_long() -> None:
    copied = {name: text for name, text in runtime_files().items() if name.endswith(".py")}
    assert sum(not name.endswith("__init__.py") for name in copied) <= MOST_OF_AN_EXPORT
    assert {name for name, text in copied.items() if text.count(b"\n") > 500} <= {"runtime/dispatcher.py"}


def test_no_import_leads_back() -> None:
    """Modules load in one order: none needs, however indirectly, what needs it."""
    circles = in_circles({module: own(module) for module in MODULES})
    assert not circles, f"these import each other: {circles}"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def test_file_and_class_names_mean_one_thing() -> None:
    """In the whole checkout; classes of test modules are met in their own file alone and may repeat."""
    paths = [path for folder in NAMED_ONCE for path in (REPOSITORY / folder).rglob("*.py")]
    files = [path.name for path in paths if path.name not in ("__init__.py", "conftest.py")]
    assert not _repeated(files)
    read = [ast.parse(p.read_text(encoding="utf-8")) for p in paths if not p.name.startswith("test_")]
    assert not _repeated(n.name for module in read for n in ast.walk(module) if isinstance(n, ast.ClassDef))


def test_optuna_is_met_in_one_file_of_the_store() -> None:
    of_store = [module for module in MODULES if module.startswith("store/")]
    meeting = [m for m in of_store if any(name.split(".")[0] == "optuna" for name in imports(m))]
    assert meeting == ["store/optuna_storage"]


def test_nobody_imports_the_command_line() -> None:
    for module in BELOW:
        assert not [name for name in own(module) if _is_in(name, COMPOSERS)], module


def test_only_the_command_line_knows_the_service() -> None:
    knowing = {m.partition("/")[0] for m in MODULES if any(_is_in(name, {"service"}) for name in own(m))}
    assert knowing <= {"cli", "service"}
    assert [m for m in MODULES if "ray" in imports(m)] == ["service/ray_cluster"]


def test_only_the_command_line_serves_pages() -> None:
    assert {m.partition("/")[0] for m in MODULES if "report/server" in own(m)} == {"cli"}


def test_only_the_command_line_prints() -> None:
    calls = ((m, n) for m in BELOW for n in ast.walk(tree(m)) if isinstance(n, ast.Call))
    printing = [(m, n.lineno) for m, n in calls if ast.unparse(n.func) in ("print", "sys.stdout.write")]
    assert not printing


def test_dunder_all_names_what_is_there() -> None:
    for module in MODULES:
        _need_listed_names(module)


def _need_listed_names(module: str) -> None:
    names = [
        node.value
        for node in tree(module).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    if not names:
        assert module != "__init__" or not _public_imports(module), "public names need an __all__"
        return
    listed = ast.literal_eval(names[0])
    loaded = importlib.import_module(".".join(["autotune", *module.split("/")]).removesuffix(".__init__"))
    assert len(set(listed)) == len(listed), module
    assert not [name for name in listed if not hasattr(loaded, name)], module


def _public_imports(module: str) -> list[str]:
    return [n.names[0].name for n in tree(module).body if isinstance(n, ast.ImportFrom) and n.level]


def _loaded_by(statement: str) -> set[str]:
    """Top-level packages in memory after a statement, in a process of its own."""
    code = f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\n"
    code += "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


HEAVY = {
    "cuda",
    "numpy",
    "optuna",
    "sqlalchemy",
    "alembic",
    "jinja2",
    "starlette",
    "uvicorn",
    "rich",
    "cryptography",
    "ray",
}


def test_what_decides_a_search_stands_in_its_policy() -> None:
    """Numbers of modules of `search/` beside it belong to a method or to the machine, and are few (0046)."""
    numbers = [
        (path.name, value.value)
        for path in sorted((REPOSITORY / "autotune/search").rglob("*.py"))
        for assigned in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(assigned, ast.Assign | ast.AnnAssign) and assigned.value is not None
        for value in ast.walk(assigned.value)
        if isinstance(value, ast.Constant) and type(value.value) in (int, float)
    ]
    assert 10 < len(numbers) <= 17, numbers
    assert len(fields(SearchPolicy)) <= 15


def test_help_loads_nothing_heavy() -> None:
    loaded = _loaded_by("sys.argv = ['autotune', '--help']; import autotune.cli.app as c; c.main()")
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert not _loaded_by("import autotune") & (HEAVY | {"typer"})


def test_the_runtime_loads_only_numpy_and_cuda() -> None:
    loaded = _loaded_by("import autotune.runtime.dispatcher")
    assert not loaded & {"optuna", "sqlalchemy", "alembic", "typer", "jinja2", "cryptography", "http"}
