"""Holds what the docs say of the code to the code: rooms, files, constants, generators of points."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest
import typer

sys.path.insert(0, str(Path(__file__).parents[2] / "docs/tools"))

import numerics_page
import option_reference
from import_graph import rooms

from autotune.cli.app import app
from autotune.facts.fitted import FITTED
from autotune.search.propose import origins
from autotune.search_policy import SearchPolicy

ROOT = Path(__file__).parents[2]
SEARCH = (ROOT / "docs/search.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
DECISIONS = sorted((ROOT / "docs/decisions").glob("0*.md"))
NOTES = sorted((ROOT / "docs/notes").glob("0*.md"))
_SHELVED = re.compile(r"\b(decisions|notes)/(\d{4})\b")
_STEP = re.compile(r"^\d+\. ", re.MULTILINE)
_CONSTANT = re.compile(r"`(_?[A-Z][A-Z_]*[A-Z])`\s+=\s+([0-9.]*[0-9](?:e-?[0-9]+)?)")
_POLICY = re.compile(r"`([a-z_]+)`\s+=\s+([0-9.]*[0-9]|True)")
_FILE = re.compile(r"`([a-z_/0-9]+\.py)`")
_ROW = re.compile(r"^\| `([a-z_/]+)` \| (.+) \| ?(.*) ?\|$", re.MULTILINE)


def _steps() -> list[str]:
    return _STEP.split(SEARCH)[1:]


def _file(name: str, *folders: str) -> Path | None:
    """The file of this name in the first of these folders that holds it."""
    return next((path for folder in folders if (path := ROOT / folder / name).is_file()), None)


def _constants(path: Path) -> dict[str, float]:
    """Numbers that a module gives names to, one by one or several in a line."""
    found: dict[str, float] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]
            for name, number in pairs:
                if isinstance(number, ast.Constant) and isinstance(number.value, int | float):
                    found[ast.unparse(name)] = number.value
    return found


_DEFINED = re.compile(r"^#define (\w+) ([\d.]+)", re.MULTILINE)  # in C


@cache
def _all_constants() -> dict[str, set[float]]:
    """The values of each name, over all files of the package."""
    found = {name: {value} for name, value in FITTED.items()}
    for path in (ROOT / "autotune").rglob("*.py"):
        for name, value in _constants(path).items():
            found.setdefault(name, set()).add(value)
    for path in (ROOT / "autotune/core").glob("*.[ch]"):
        for name, number in _DEFINED.findall(path.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(float(number))
    return found


@pytest.mark.parametrize("step", _steps(), ids=lambda step: step.partition(".")[0][:40])
def test_the_search_is_told_with_the_constants_that_decide(step: str) -> None:
    paths = {name: _file(name, "autotune/search", ".") for name in _FILE.findall(step)}
    assert not [name for name, path in paths.items() if path is None]
    found = [_constants(path) for path in paths.values() if path is not None]
    wrong = {
        f"{name} = {value}"
        for name, value in _CONSTANT.findall(step)
        if not any(constants.get(name) == float(value) for constants in found)
    }
    assert not wrong, f"docs/search.md: not so in {', '.join(paths)}"


def test_decisions_tell_constants_as_they_are() -> None:
    """`NAME` = number in a decision holds today, in some file of the package or in the policy. Former values
    are told in other words."""
    policy = SearchPolicy().to_dict()
    known = _all_constants() | {name: {value} for name, value in policy.items()}
    for page in (*DECISIONS, *NOTES):
        text = page.read_text(encoding="utf-8")
        message = _CONSTANT.findall(text) + [pair for pair in _POLICY.findall(text) if pair[0] in policy]
        wrong = [
            (name, value) for name, value in message if ast.literal_eval(value) not in known.get(name, ())
        ]
        assert not wrong, f"{page.name}: not so in the code"


def test_decisions_are_short() -> None:
    """Context, choice, consequence, in 250 words; what is longer is the note of the same number."""
    long = {page.name: words for page in DECISIONS if (words := len(page.read_text("utf-8").split())) > 250}
    assert DECISIONS and not long


def test_every_decision_and_note_is_in_the_index_and_named_where_it_is() -> None:
    shelves = {"decisions": {page.name[:4] for page in DECISIONS}, "notes": {page.name[:4] for page in NOTES}}
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[(\d{4})\]", index, re.MULTILINE)) == shelves["decisions"] | shelves["notes"]
    kinds = {".py", ".h", ".c", ".cuh", ".cpp", ".md"}
    folders = ("autotune", "kernels", "docs", "studies", "tests", "benchmarks")
    pages = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in kinds]
    named = {(page.name, *message) for page in pages for message in _SHELVED.findall(page.read_text("utf-8"))}
    assert len(named) > 50 and not {message for message in named if message[2] not in shelves[message[1]]}


def test_the_policy_is_told_whole_with_its_values() -> None:
    message = {name: ast.literal_eval(value) for name, value in _POLICY.findall(SEARCH)}
    policy = SearchPolicy()
    assert message == {name: getattr(policy, name, None) for name in message}
    others = [name for name, value in vars(SearchPolicy).items() if isinstance(value, property | float | int)]
    assert message.keys() == {*policy.to_dict(), *others}


def test_every_step_of_the_search_names_its_file() -> None:
    assert len(_steps()) > 15 and not [step[:15] for step in _steps() if not _FILE.search(step)]


def test_every_generator_of_points_is_told() -> None:
    names = {value for name, value in vars(origins).items() if name.isupper() and isinstance(value, str)}
    assert len(names) > 10
    assert not [name for name in names if f"`{name}`" not in SEARCH]


def test_the_picture_of_the_rooms_is_the_code_s() -> None:
    message = {
        name: set(re.findall(r"`([a-z_/]+)`", others)) for name, _, others in _ROW.findall(ARCHITECTURE)
    }
    measured = {
        name: others - {"facts", "files", "__init__"}
        for name, others in rooms().items()
        if name not in ("__init__", "__main__")
    }
    assert message == measured, "docs/architecture.md; `python docs/tools/import_graph.py` prints what is"


def test_arrows_lead_down_the_picture() -> None:
    """But for those that the text below it names."""
    order = [name for name, *_ in _ROW.findall(ARCHITECTURE)]
    up = {
        (name, other)
        for name, others in rooms().items()
        if name in order
        for other in others
        if other in order and order.index(other) < order.index(name)
    }
    assert up == {("search/run", "search"), ("search/compare", "search")}


def test_every_file_on_the_way_of_a_config_is_there() -> None:
    folders = (
        "autotune",
        "autotune/facts",
        "autotune/search",
        "autotune/export",
        "autotune/gpu",
        *(
            str(room.relative_to(ROOT))
            for room in sorted((ROOT / "autotune/runtime").rglob("*"))
            if room.is_dir()
        ),
        "autotune/runtime",
    )
    named = sorted(set(_FILE.findall(ARCHITECTURE)))
    assert not [name for name in named if _file(name, *folders, "autotune/search/propose", ".") is None]


def test_the_page_of_options_is_what_the_command_line_declares() -> None:
    message = option_reference.PAGE.read_text(encoding="utf-8")
    assert message == option_reference.page(), "run python docs/tools/option_reference.py"


def test_the_page_on_numerics_is_what_the_raw_data_say() -> None:
    message = numerics_page.PAGE.read_text(encoding="utf-8")
    assert message == numerics_page.page(), "run python docs/tools/numerics_page.py"


def test_figures_of_others_are_told_over_sgemms() -> None:
    errors = {"normal": [1e-6, 2e-7], "wide": [2e-6, 4e-7]}
    twice = {kind: [2 * one for one in pair] for kind, pair in errors.items()}
    found = {
        "torch.mm": {"version": "2", "errors": errors, "time_us": 300.0},
        "CuPy": {"version": "14", "errors": twice, "time_us": 150.0},
        "JAX, default": {"reason": "No module named 'jax'"},
    }
    rows = {line.split(" | ")[0]: line for line in numerics_page._table(found)}
    assert rows["| CuPy"] == "| CuPy | 14 | default | 2.00x | 2 |"
    assert rows["| JAX, default"].endswith("| No module named 'jax' | - |")
    assert "not run" in rows["| Triton ieee"]


def test_the_page_of_options_has_every_option_of_every_command() -> None:
    """By Typer's own reading: what `--help` shows."""
    root = typer.main.get_command(app)
    groups = {name: one.commands for name, one in root.commands.items() if hasattr(one, "commands")}
    commands = {name: one for name, one in root.commands.items() if name not in groups}
    commands |= {f"{group} {name}": one for group, own in groups.items() for name, one in own.items()}
    page = option_reference.page()
    for name, command in commands.items():
        section = page.partition(f"## autotune {name}\n")[2].partition("\n## ")[0]
        flags = [p.opts[0] for p in command.params if p.opts[0].startswith("--")]
        assert section and not [flag for flag in flags if f"`{flag}" not in section], name
