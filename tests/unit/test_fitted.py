"""Holds fitted numbers to one place, with where they come from: facts/fitted.json."""

import ast
import json
import re
from collections import Counter
from datetime import date
from pathlib import Path

from autotune.export.package import runtime_files
from autotune.facts.fitted import FILE, number, numbers

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "autotune"
GROUPS = json.loads(FILE.read_text(encoding="utf-8"))
NAMES = [name for group in GROUPS for name in group["values"]]
# Modules of which each number at the top is fitted, but for counts
MODELS = tuple((PACKAGE / "perf_model").glob("*.py"))
_FITTED = re.compile(r"unmeasured|measured (?:on|by)|learned|fitted|assumed|\bH[12]00\b", re.IGNORECASE)


def _literals(text: str, only_floats: bool = False) -> list[tuple[str, str]]:
    """Names of a module that are numbers written there, each with the comments above it and beside it."""
    lines, found = text.splitlines(), []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(
            node.value, ast.Constant | ast.Tuple | ast.BinOp
        ):
            continue
        held = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
        if not any(type(one) is float or (type(one) is int and not only_floats) for one in held):
            continue
        above = node.lineno - 1
        while above and lines[above - 1].startswith("#"):
            above -= 1
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        found.append((ast.unparse(target), "\n".join(lines[above : node.end_lineno])))
    return found


def test_each_group_tells_where_its_numbers_come_from() -> None:
    for group in GROUPS:
        assert set(group) == {"what", "gpu", "date", "source", "command", "values"} and all(group.values())
        date.fromisoformat(group["date"])
        if "/" in group["source"]:
            assert list(ROOT.glob(group["source"])), group["source"]
        assert all(type(value) in (int, float) for value in group["values"].values())
    assert len(NAMES) == len(set(NAMES))


def test_each_number_is_read_in_one_place() -> None:
    """By the module of Python that names it, or by the core, whose text has the same number."""
    requested: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for names in re.findall(r"\bnumbers?\(\s*\"([\w ]+)\"\s*\)", path.read_text(encoding="utf-8")):
            requested.update(names.split())
    for name, value in re.findall(r"#define (\w+) ([\d.]+)", (PACKAGE / "core/choice.c").read_text("utf-8")):
        if name in NAMES:
            assert float(value) == number(name), f"core/choice.c: {name}"
            requested[name] += 1
    assert requested == Counter(NAMES)


def test_no_module_holds_a_fitted_number() -> None:
    for path in MODELS:
        assert not _literals(path.read_text(encoding="utf-8"), only_floats=True), path
    message = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name, text in _literals(path.read_text(encoding="utf-8"))
        if _FITTED.search(text)
    }
    assert not message, "move these to facts/fitted.json, or say what they are"


def test_a_folder_holds_the_numbers() -> None:
    assert runtime_files()["facts/fitted.json"] == FILE.read_bytes()
    assert numbers("LAUNCH_US LAUNCH_APART_US") == [1.0, 1.6]
