"""Figures of a codebase beside those of others: `python docs/tools/peers.py NAME=FOLDER [NAME=FOLDER ...]`.

Each folder holds one package. The last columns compare words in names that are defined: a word is a part of
such a name, and one's own if no other folder of the call has it, nor the standard library; `by use` counts it
for each definition that has it. Get the others with
`pip install --no-deps --target peers httpx==0.28.1 optuna==4.6.0 kernel_tuner==1.3.3 helion==1.5.1`, and
nvbench as a checkout. Files of tests and files that say that they are generated are left out.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

LONG = 60  # lines of a function
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NATIVE = {".c", ".h", ".cpp", ".cxx", ".cuh", ".cu"}
_Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Codebase:
    """The modules of a package, read once."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.root = name, root
        paths = (path for path in sorted(root.rglob("*.py")) if "test" not in str(path.relative_to(root)))
        self.trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}

    @property
    def lines(self) -> int:
        return sum(len(path.read_bytes().splitlines()) for path in self.trees)

    @property
    def native_lines(self) -> int:
        """Lines of C, C++ and CUDA."""
        paths = (path for path in self.root.rglob("*") if path.suffix in _NATIVE and path.is_file())
        return sum(len(path.read_bytes().splitlines()) for path in paths)

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        found = (node for tree in self.trees.values() for node in ast.walk(tree))
        return [node for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @property
    def long_share(self) -> float:
        """Functions of more than LONG lines, of all, in percent."""
        long = sum((node.end_lineno or 0) - node.lineno + 1 > LONG for node in self.functions)
        return _percent(long, len(self.functions))

    @property
    def docstring_share(self) -> float:
        """Public modules, classes and functions at module level, and public methods, with a docstring."""
        public = [node for tree in self.trees.values() for node in (tree, *_public(tree))]
        return _percent(sum(ast.get_docstring(node) is not None for node in public), len(public))

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        names = {_dotted(path, self.root): tree for path, tree in self.trees.items()}
        return {
            name: {found for found in _loaded(name, tree, self.root.name, self.root) if found in names}
            for name, tree in names.items()
        }

    @property
    def in_circles(self) -> int:
        """Modules that import themselves by way of others, at import time."""
        return sum(name in _reached(self._imports, name) for name in self._imports)

    @property
    def at_top(self) -> int:
        """Modules that lie loose in the package, without `__init__`."""
        return sum(path.parent == self.root and path.stem != "__init__" for path in self.trees)

    @cached_property
    def words(self) -> Counter[str]:
        """How many definitions have each word in their names."""
        return Counter(word for tree in self.trees.values() for word in _words(tree))


def _percent(part: int, whole: int) -> float:
    return 100 * part / max(whole, 1)


def _public(tree: ast.Module) -> Iterator[_Named]:
    for node in tree.body:
        if isinstance(node, _Named) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                inner = (one for one in node.body if isinstance(one, _Named))
                yield from (one for one in inner if not one.name.startswith("_"))


def _dotted(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _loaded(name: str, tree: ast.Module, package: str, root: Path) -> Iterator[str]:
    """What a module imports outside functions and `if TYPE_CHECKING`, by dotted name."""
    is_folder = root.joinpath(*name.split(".")[1:]).is_dir()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = name.split(".")[: len(name.split(".")) - node.level + is_folder] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            loaded = [f"{base}.{alias.name}" for alias in node.names]
            yield from loaded
            if base.startswith(package) and not all(_is_module(root, one) for one in loaded):
                yield base
        waiting.extend(ast.iter_child_nodes(node))


def _is_module(root: Path, dotted: str) -> bool:
    path = root.joinpath(*dotted.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def _reached(imports: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            waiting.extend(imports[name])
    return seen


def _words(tree: ast.Module) -> Iterator[str]:
    """The parts of names that a module defines: functions, classes, arguments, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, _Named):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        yield from (word.lower() for word in _WORD.findall(name) if len(word) > 2)


def _of_python() -> set[str]:
    """Words of the standard library's modules at the top of its folder."""
    found: set[str] = set()
    for path in Path(ast.__file__).parent.glob("*.py"):
        found.update(_words(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def rows(codebases: list[Codebase]) -> Iterator[list[str]]:
    """The cells of each codebase; the first row has their names."""
    yield ["", "Python lines", "C/CUDA lines", "functions", f"> {LONG} lines", "public docstrings",
           "modules in circles", "modules at top", "words", "own words",
           "own, by use"]  # fmt: skip
    python = _of_python()
    for one in codebases:
        others = python.union(*(other.words for other in codebases if other is not one))
        own = {word: count for word, count in one.words.items() if word not in others}
        yield [one.name, f"{one.lines:,}", f"{one.native_lines:,}", f"{len(one.functions):,}",
               f"{one.long_share:.1f} %", f"{one.docstring_share:.0f} %", str(one.in_circles),
               str(one.at_top), f"{len(one.words):,}", f"{_percent(len(own), len(one.words)):.0f} %",
               f"{_percent(sum(own.values()), one.words.total()):.0f} %"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="NAME=FOLDER")
    text = [one.partition("=") for one in parser.parse_args().folders]
    for cells in rows([Codebase(name, Path(folder).resolve()) for name, _, folder in text]):
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
