"""Copies of the kernel text with one safeguard taken out, each of which the tests must catch."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Operator:
    """Replaces one match of `pattern` (in the code of a line) by `replacement`, all else being kept.

    `tag` restricts it to lines with that comment. The pattern may look ahead into the next line.
    """

    name: str
    pattern: re.Pattern[str]
    replacement: str
    tag: str = ""


def _operator(name: str, pattern: str, replacement: str, tag: str = "") -> Operator:
    return Operator(name, re.compile(pattern), replacement, tag)


OPERATORS = (
    _operator("no barrier", r"\b(?:cluster_)?barrier\(\);", ";"),
    _operator("no wait", r"\bwait_copies<\w+>\(\);", ";"),
    _operator("wait one group too few", r"\bwait_copies<(\w+)>\(\);", r"wait_copies<\1 + 1>();"),
    _operator("no commit", r"\bcommit_copies\(\);", ";"),
    _operator("no fence", r"\bfence_global\(\);", ";"),
    _operator("no wait for kernels before", r"\bwait_for_kernels_before\(\);", ";"),
    _operator("counter not reset", r"(?:\bcounters\[\w+\]|\*counter) = 0;", ";"),
    _operator("no check of the edge", r" (<|>=) ", r" - (1 << 30) \1 ", "// edge:"),
    _operator("no check of the extent", r" < (ROWS|COLS|WORKERS|k_tiles)\b", r" - (1 << 30) < \1"),
    # storing a tile beyond the last needs no check: nobody reads it
    _operator("no check of the last tile", r"\bnum_copied < num_tiles(?!\) \{\n +copy_a\.store)", "true"),
    _operator(
        "no zeros behind the edge",
        r"\bcopy_async<VEC>\((.*), is_valid\);", r"if (is_valid) copy_async<VEC>(\1, true);",
    ),
    _operator(
        "no zeros in registers",
        r"(\bregisters\[.*\]) = (\w+) \? (.*) : Vec<VEC>\{\};", r"if (\2) \1 = \3;",
    ),
    _operator("operands read for alpha = 0", r"\balpha == 0", "false"),
    _operator("C read for beta = 0", r"\bif \(beta != 0\)", "if (true)"),
    _operator("not set to zero", r"(\b(?:sum|sums\[\w+\]\[\w+\]|totals\[\w+\])) = \{\};", r"\1;"),
    _operator("not set to zero", r"\b(sums\[[^]]+\]\[[^]]+\]) = 0;", ";"),
    _operator("not set to zero", r"\bFlushedSums::clear\(\);", ";"),
    _operator("flushed sums left where they are", r"\bFlushedSums::add_to\(sums\);", ";"),
    # batches: which product's what
    _operator("products mixed up", r"\bproduct \* ", "0 * "),
    _operator("only the first product", r"\bIS_BATCHED \? block_index_x\(\) / \w+ : 0", "0"),
    _operator("only the first product", r"\bIS_BATCHED \? schedule\.product\.\w+\(work\.tile\) : 0", "0"),
    _operator("tiles of one product counted", r"\bIS_BATCHED \? tiles \* batch\.products : tiles", "tiles"),
    _operator(
        "last group as wide as the others",
        r"\bgroup < schedule\.num_full \? schedule\.width : schedule\.last_width", "schedule.width",
    ),
    _operator("along the other side", r"\bschedule\.is_along_m \?", "!schedule.is_along_m ?"),
    # epilogues
    _operator("no epilogue", r"\bproduct, epilogue\);", "product, Epilogue{});"),
    _operator("no bias", r"\bif constexpr \(BIAS == \w+\) product\.v\[e\] \+= .*;", ";"),
    _operator("bias of the first", r"\bepilogue\.bias \+ (row|column \+ e)\b", "epilogue.bias"),
    _operator("bias of the neighbour", r"\b(epilogue\.bias \+ column) \+ e\b", r"\1"),
    _operator("bias along the other side", r"\bepilogue\.bias \+ row\b", "epilogue.bias + column"),
    _operator("bias along the other side", r"\bepilogue\.bias \+ column \+ e\b", "epilogue.bias + row"),
    _operator("not kept", r"\bif constexpr \(KEEPS\) store_global<VEC>\(.*\);", ";"),
    _operator("kept where C is", r"\bepilogue\.ld_kept\b", "ldc"),
    _operator(
        "kept behind the activation",
        r"\bif constexpr \(KEEPS\) (store_global<VEC>\(.*\);)",
        r"for (int e = 0; e < VEC; ++e) product.v[e] = activate(product.v[e]); if constexpr (KEEPS) \1",
    ),
    _operator("no activation", r"\bproduct\.v\[e\] = activate\(product\.v\[e\]\);", ";"),
    _operator("another activation", r"\b(SQRT_HALF|TWO_SQRT_2_OVER_PI|CUBIC) \* x\b", "x"),
    _operator("NaN lost", r"\bx < 0 \? 0 : x\b", "x > 0 ? x : 0"),
    # lanes that share out k
    _operator("every lane goes on", r"\bthread_index\(\) % LANES_K == 0", "true"),
    _operator("k of another lane", r"\bthread_index\(\) % LANES_K \* DOT_VEC", "0"),
    _operator("lanes not added", r"\+= of_lane_across\(", "+= 0 * of_lane_across("),
    # rows that are staged
    _operator("another row", r"\bStagedRows::row_of_tile\(first, ", "StagedRows::row_of_tile(0, "),
    _operator("another row", r"\bgroup (/|%) LANES_M\b", r"group \1 1"),
    _operator("another round", r"\bfirst \+ (i|at)\b", r"\1"),
    _operator("rows beyond the last", r"\b(rows\.row \+ )?at >= (StagedRows::)?COUNT\b", "false"),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One line of one kernel file, changed."""

    operator: str
    file: str
    line: int  # from 1
    text: str  # the whole file, changed
    before: str
    after: str

    @property
    def id(self) -> str:
        return f"{self.file}:{self.line} {self.operator}"

    def __str__(self) -> str:
        change = f"  - {self.before.strip()}\n  + {self.after.strip()}"
        return f"{self.file}:{self.line}: {self.operator}\n{change}"

    def write(self, kernels: Path, folder: Path) -> None:
        """A copy of the kernel folder with this file changed."""
        shutil.copytree(kernels, folder)
        (folder / self.file).write_text(self.text, encoding="utf-8")


def _code_and_comment(line: str) -> tuple[str, str]:
    code, slashes, comment = line.partition("//")
    return code, slashes + comment


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Every operator at every place of this file where it applies, one at a time."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        code, comment = _code_and_comment(line)
        following = lines[number + 1] if number + 1 < len(lines) else ""
        for operator in OPERATORS:
            if operator.tag not in comment:
                continue
            for match in operator.pattern.finditer(f"{code}\n{following}"):
                if match.end() > len(code):
                    continue
                new = match.expand(operator.replacement)
                changed = code[: match.start()] + new + code[match.end() :] + comment
                whole = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                yield Mutant(operator.name, file, number + 1, whole, line, changed)


def unmatched_tags(text: str) -> list[str]:
    """Lines with a tag that no operator knows how to take out."""
    tags = {operator.tag for operator in OPERATORS if operator.tag}
    mutated = {mutant.line for mutant in mutants_of("", text)}
    return [
        line.strip()
        for number, line in enumerate(text.split("\n"), 1)
        if number not in mutated and any(tag in line for tag in tags)
    ]
