"""Keywords of `tune`, `export_table` and `space`, which are options of the commands that call these: each is
declared here once, by its name, type, default and help. Light: neither Typer nor a search is imported for it.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict, TypeVar

from .fitted import DEFAULT_DB, MAX_ERROR, MAX_KERNELS, MAX_MEGABYTES

if TYPE_CHECKING:
    from ..search.propose.samplers import Sampler

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OF_CUBLAS = "kernels whose error is more than so many times cuBLAS's; {none}: no limit."


class Keyword(NamedTuple):
    """`help` names other keywords in braces, and {none} for no value; `more` is for callers in Python."""

    default: Any
    help: str
    more: str = ""

    def shown(self, names: Mapping[str, str]) -> str:
        return self.help.format_map(names)


class ConditionKeywords(TypedDict, total=False):
    """Of what chooses among configs."""

    where: Annotated[
        str | Iterable[str],
        Keyword(
            (),
            "Only configs that obey: `pack_a=0,reduction!=two_pass` (=, !=, <, <=, >, >=).",
            "An export's default kernel of a layout need not, nor the splits of shapes that were not tuned.",
        ),
    ]
    max_workspace: Annotated[
        float | None,
        Keyword(
            None,
            "Only kernels whose launches take at most so much workspace.",
            "In MiB, for packed copies and partial sums; None: 1 GiB of each.",
        ),
    ]
    order: Annotated[
        str | None,
        Keyword(
            None,
            "Only kernels that sum in one order, bit by bit: `chain`, `chunks:512`, ...",
            "They err alike, so that `max_error` does not count (docs/manual/bits.md); None: any order.",
        ),
    ]


class TrialKeywords(ConditionKeywords, total=False):
    """Of what stores trials, or reads them."""

    db: Annotated[str | Path, Keyword(DEFAULT_DB, "Database: a SQLite file, or a URL (SQLite, PostgreSQL).")]
    cache: Annotated[
        str, Keyword("cold", "`cold`: operands come from memory; `warm`: they stay in the L2 cache.")
    ]
    accuracy: Annotated[
        str,
        Keyword(
            "strict",
            "`strict`: FMAs in FP32; `fp32`: what errs no more than SGEMM, on tensor cores too (compute "
            "capability 8.0 and later); `fp32-range`: that of scaled operands (7.5 and later).",
            "Studies of a class are its own: search for both, and an export for `fp32` takes whichever is "
            "faster, for calls that ask for that class (docs/manual/numerics.md).",
        ),
    ]


class SearchKeywords(TrialKeywords, total=False):
    """Of `tune`."""

    gpu: Annotated[
        str | int | None,
        Keyword(
            "auto",
            "A GPU: its index, UUID or `auto`; or `replay:FILE`, a recorded space.",
            "`auto` or None: the first GPU, or a shipped recording if there is none.",
        ),
    ]
    seconds: Annotated[
        float | None,
        Keyword(
            None,
            "Stop after so many seconds. Without {seconds} and {trials} it ends by itself, when nothing "
            "better is likely.",
        ),
    ]
    trials: Annotated[
        int | None, Keyword(None, "Stop after so many trials of each shape.", "Those of earlier runs count.")
    ]
    num_drawn: Annotated[
        int,
        Keyword(
            0,
            "So many more shapes, drawn at random (of a suite: by its counts), and kernels timed across "
            "them: for any shape.",
            "Kernels that ship, and those that are found, are timed on all shapes of a layout, so that an "
            "export can choose among them. Drawn shapes have no final (distribution.py).",
        ),
    ]
    a_type: Annotated[
        str,
        Keyword(
            "fp32",
            "Of A's elements: `fp32`; `bf16` or `fp16` beside a B in FP32, with {accuracy} `fp32`.",
            "Results are those of A converted to FP32, which is exact.",
        ),
    ]
    seed: Annotated[
        int,
        Keyword(
            0,
            "Seed of everything that is drawn at random.",
            "Times differ from run to run, so the same seed does not repeat a search on a GPU.",
        ),
    ]
    sampler: Annotated[
        "Sampler",
        Keyword(
            "autotune",
            "What proposes configs: `autotune`, `random`, or Optuna's `tpe`, `gp` (needs torch, scipy) or "
            "`cmaes` (needs cmaes): the nearest feasible config to what it asks for.",
            "Or any sampler of Optuna.",
        ),
    ]
    stale: Annotated[
        bool,
        Keyword(
            False,
            "Only shapes measured under another driver, cuBLAS, compiler or kernel than what is here, and "
            "only their finalists: seconds per shape.",
        ),
    ]
    insists: Annotated[
        bool, Keyword(False, "On a recording: take all {seconds}, although no gain is likely.")
    ]
    effort: Annotated[
        str,
        Keyword(
            "standard",
            "`quick`, `standard` or `thorough`: how much is tried for one decision, and how soon a shape "
            "ends without {seconds} and {trials}.",
        ),
    ]
    max_error: Annotated[float | None, Keyword(MAX_ERROR, f"Fail {_OF_CUBLAS}")]


class ExportKeywords(TrialKeywords, total=False):
    """Of `export_table`."""

    max_error: Annotated[float | None, Keyword(MAX_ERROR, f"Leave out {_OF_CUBLAS}")]
    max_kernels: Annotated[
        int, Keyword(MAX_KERNELS, "For shapes that were not tuned, beside those that won.")
    ]
    max_megabytes: Annotated[float, Keyword(MAX_MEGABYTES, "What these kernels, packed, take at most.")]
    epilogues: Annotated[
        str | Iterable[str],
        Keyword((), "Have each kernel with it, too: bias, relu, gelu, gelu-tanh, bias-relu, ..."),
    ]
    adds: Annotated[
        bool,
        Keyword(False, "Keep the tables of other GPU models that the folder holds.", "Its own is replaced."),
    ]


def keywords_of(kind: Any) -> dict[str, Keyword]:
    """What is declared, by name."""
    return {name: declared.__metadata__[0] for name, declared in _declared(kind).items()}


def with_defaults(kind: Any, given: Mapping[str, Any]) -> Any:
    """What a caller passed, and the defaults of the rest. Raises TypeError for another keyword."""
    found = {name: keyword.default for name, keyword in keywords_of(kind).items()}
    if unknown := given.keys() - found.keys():
        raise TypeError(f"got an unexpected keyword argument {min(unknown)!r}")
    return {**found, **given}


def takes(kind: Any) -> Callable[[_Function], _Function]:
    """A function with these keywords, as `help` and `inspect` show it: behind its own, in the signature and
    in the place of {keywords} in its docstring."""

    def shown(function: _Function) -> _Function:
        found, more, lines = signature(function), [], []
        own = [one for one in found.parameters.values() if one.kind is not one.VAR_KEYWORD]
        names = {name: f"`{name}`" for name in _declared(kind)} | {"none": "None"}
        for name, declared in _declared(kind).items():
            one: Keyword = declared.__metadata__[0]
            known = {"default": one.default, "annotation": declared.__origin__}
            more.append(Parameter(name, Parameter.KEYWORD_ONLY, **known))
            text = f"{name:16}{one.shown(names)} {one.more}"
            lines.append(fill(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 24))
        function.__signature__ = found.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        function.__doc__ = (function.__doc__ or "").replace(" " * 8 + "{keywords}", "\n".join(lines))
        return function

    return shown


def _declared(kind: Any) -> dict[str, Any]:
    """Those of a class, of its bases first."""
    return dict(kind.__annotations__)
