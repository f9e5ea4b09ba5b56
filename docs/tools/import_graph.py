"""Who imports whom in `autotune/`, read from the text of each file: `python docs/tools/import_graph.py`.

Prints, for each room, its files and the rooms that it imports, and below how many arrows there are between
files, and which files stand in a circle. `tests/unit/test_architecture.py` holds the rules by what is read
here, `tests/unit/test_docs.py` the picture in docs/architecture.md.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "autotune"
MODULES = sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))


def tree(module: str) -> ast.Module:
    """The syntax of a module, named as a path: `store/models`."""
    return ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _nodes(syntax: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what stands under `if TYPE_CHECKING` does not."""
    for node in ast.iter_child_nodes(syntax):
        if not _is_type_checking(node):
            yield node
            yield from _nodes(node)


def _absolute(node: ast.ImportFrom, module: str) -> list[str]:
    """Dotted names that `from x import a, b` may load: x.a and x.b (which also tell x)."""
    base = ["autotune", *module.split("/")]
    prefix = ".".join(base[: len(base) - node.level]) if node.level else ""
    stem = ".".join(filter(None, (prefix, node.module)))
    return [f"{stem}.{alias.name}" for alias in node.names]


@cache
def imports(module: str) -> set[str]:
    """Dotted names that a module imports anywhere in its text, lazily too; none of the standard library."""
    found: set[str] = set()
    for node in _nodes(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(_absolute(node, module))
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


@cache
def own(module: str) -> set[str]:
    """Modules and folders of this package that a module imports, as paths: `store/models`, `store`."""
    found = set()
    for name in (n.split(".")[1:] for n in imports(module) if n.startswith("autotune.")):
        while name and not (
            PACKAGE.joinpath(*name).is_dir() or PACKAGE.joinpath(*name).with_suffix(".py").is_file()
        ):
            name = name[:-1]
        found.add("/".join(name) or "__init__")
    return found


def room(path: str) -> str:
    """The room of a module or folder: `search/run`, `store`; or a module at the top."""
    parts = path.split("/")
    if parts[0] == "search" and (PACKAGE.joinpath(*parts[:2])).is_dir():
        return "/".join(parts[:2])
    return parts[0]


def rooms() -> dict[str, set[str]]:
    """Each room, with the others that it imports."""
    found: dict[str, set[str]] = {room(module): set() for module in MODULES}
    for module in MODULES:
        found[room(module)] |= {room(other) for other in own(module)} - {room(module)}
    return found


def in_circles(arrows: Mapping[str, set[str]]) -> list[str]:
    """What is left after taking away, again and again, all that imports nothing which is still there."""
    waiting = {name: others & arrows.keys() - {name} for name, others in arrows.items()}
    while ready := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in ready:
            del waiting[name]
    return sorted(waiting)


def main() -> None:
    files = Counter(map(room, MODULES))
    for name, others in sorted(rooms().items()):
        print(f"{name:15} {files[name]:3} files  imports {', '.join(sorted(others)) or 'nothing'}")
    arrows = {module: own(module) & set(MODULES) - {module} for module in MODULES}
    num_arrows, circles = sum(map(len, arrows.values())), in_circles(arrows)
    print(
        f"{len(MODULES)} files, {num_arrows} arrows between them; in circles: {', '.join(circles) or 'none'}"
    )


if __name__ == "__main__":
    main()
