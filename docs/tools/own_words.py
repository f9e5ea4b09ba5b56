"""Which words of the package's names no other codebase of its field has: `python docs/tools/own_words.py`.

A name that a file defines (module, class, function, argument, variable) is split at underscores and capitals.
`field_words.txt.xz` has each word of three letters or more in such names of seventeen others: Ax, CLBlast,
CuPy, CUTLASS, DeepGEMM, distributed, FlashInfer, Helion, httpx, Kernel Tuner, nvbench, Optuna, SQLAlchemy,
torch, Triton, TVM, xarray, without their tests (decision 0089).
"""

from __future__ import annotations

import ast
import lzma
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from import_graph import MODULES, tree

_FILE = Path(__file__).with_name("field_words.txt.xz")
FIELD = frozenset(lzma.decompress(_FILE.read_bytes()).decode().split())
LEAST_LETTERS = 3
_WORD = re.compile("[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


def _names(module: str) -> Iterator[str]:
    yield module.rpartition("/")[2]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words() -> Counter[str]:
    """How many files' names hold each word."""
    found = (set(_WORD.findall(" ".join(set(_names(module))))) for module in MODULES)
    each = ({word.lower() for word in some if len(word) >= LEAST_LETTERS} for some in found)
    return Counter(word for some in each for word in some)


def own() -> Counter[str]:
    """Those of the words that the field does not have."""
    return Counter({word: num for word, num in words().items() if word not in FIELD})


def main() -> None:
    total, found = len(words()), own()
    text = ", ".join(f"{word} {num}" for word, num in found.most_common())
    sys.stdout.write(f"{len(found)} of {total:,} words, {len(found) / total:.1%}: {text}\n")


if __name__ == "__main__":
    main()
