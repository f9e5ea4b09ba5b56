"""What the command line reads: options that several commands share, and records of commands, whose fields are
their options and whose docstring is their help.

Nothing heavy is imported here, so that `autotune --help` answers at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..facts.defaults import DEFAULT_DB, MAX_ERROR, MAX_KERNELS, MAX_MEGABYTES
from . import parsing


def completing(*words: str) -> Callable[[str], list[str]]:
    """Offers these words to a shell."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def kinds(incomplete: str) -> Iterator[str]:
    """Offers the kinds of GPU that are known."""
    from ..facts.device import KNOWN

    return (name for name in ("auto", *KNOWN) if name.startswith(incomplete))


Gpu = Annotated[
    str,
    typer.Option(
        help="A GPU: its index, UUID or `auto`; or `replay:FILE`, a recorded space.",
        autocompletion=completing("auto", "replay:"),
    ),
]
RealGpu = Annotated[
    str, typer.Option(help="A GPU: its index, UUID or `auto`.", autocompletion=completing("auto"))
]
Like = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        help="Accept this GPU as another of the same compute capability, an H200 NVL as h200: trials and "
        "times of that are lent to it. AUTOTUNE_LIKE does so for all commands, and for tables.",
        autocompletion=kinds,
    ),
]
_SHAPES: Any = typer.Option(
    "--shape",
    metavar="SHAPE",
    help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32 (a batch of 32); repeatable.",
)
Shapes = Annotated[list[str], _SHAPES]
ShapesOrAll = Annotated[list[str] | None, _SHAPES]
Suites = Annotated[
    list[Path],
    typer.Option(
        "--suite",
        metavar="FILE",
        help="A TOML file of [[shape]] tables with m, n, k [, layout, batch, shared, epilogue, ld, align, "
        "count]; what programs recorded (AUTOTUNE_RECORD); or a list: a CSV of m,n,k, JSON, or PyTorch's "
        "TunableOp CSV. Repeatable: their calls add up.",
    ),
]
Where = Annotated[
    list[str],
    typer.Option(
        metavar="CONDITIONS",
        help="Only configs that obey: `pack_a=0,reduction!=two_pass` (=, !=, <, <=, >, >=); repeatable.",
    ),
]
MaxWorkspace = Annotated[
    float | None,
    typer.Option(
        help="Only kernels whose launches take at most so much workspace.",
        **parsing.number("--max-workspace", unit="MIB"),
    ),
]
Order = Annotated[
    str | None,
    typer.Option(
        metavar="ORDER", help="Only kernels that sum in one order, bit by bit: `chain`, `chunks:512`, ..."
    ),
]
Db = Annotated[str, typer.Option(help="Database: a SQLite file, or a URL (SQLite, PostgreSQL).")]
Csv = Annotated[bool, typer.Option("--csv", help="Print a table for spreadsheets: comma-separated values.")]
Cache = Annotated[
    str,
    typer.Option(
        help="`cold`: operands come from memory; `warm`: they stay in the L2 cache.",
        autocompletion=completing("cold", "warm"),
    ),
]
MaxError = Annotated[
    float | None,
    typer.Option(
        help="Fail kernels whose error is more than so many times cuBLAS's; 0: no limit.",
        **parsing.limit("--max-error"),
    ),
]
Accurate = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        help="Leave out kernels whose error is more than so many times cuBLAS's; 0: no limit.",
        **parsing.limit("--max-error"),
    ),
]
Limit = Annotated[int, typer.Option(help="Show at most so many.", **parsing.whole("--limit", 1))]
LimitOrAll = Annotated[
    int | None,
    typer.Option(help="Show at most so many: 20, or with --csv all.", **parsing.whole("--limit", 1)),
]
Trial = Annotated[
    int,
    typer.Argument(
        help="A trial, as `trials best`, `history` and `failures` list it.",
        **parsing.whole("ID, as `autotune trials history` lists it,", 1, metavar="ID"),
    ),
]
Port = Annotated[
    int, typer.Option(help="Of this machine; 0: any that is free.", **parsing.whole("--port", 0, 65535))
]
Host = Annotated[
    str, typer.Option(help="Its address: this machine alone by default; 0.0.0.0: all of its network's.")
]
Seed = Annotated[
    int, typer.Option(help="Seed of everything that is drawn at random.", **parsing.whole("--seed"))
]
Out = Annotated[Path, typer.Option(help="The JSON file to write.")]
Recording = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A recorded space, in the place of the database.")
]
OneShape = Annotated[str | None, typer.Option(help="Which problem, where there are several.")]
MappedTable = Annotated[
    Path | None,
    typer.Option(
        "--table", metavar="DIR", help="An exported folder: maps of what it serves, and how certain that is."
    ),
]
Ladders = Annotated[
    list[Path],
    typer.Option(
        "--ladder",
        metavar="FILE",
        help="What `autotune ladder --json` printed: shown with its shape; repeatable.",
    ),
]
Configs = Annotated[
    list[str],
    typer.Argument(metavar="CONFIG...", help="bm=64,bn=128,... or JSON; what is not named has its default."),
]
Rounds = Annotated[
    int,
    typer.Option(help="Interleaved rounds: samples of each kernel.", **parsing.whole("--rounds", 3, 10_000)),
]

SHOWN = 20  # trials
TABLE = Path("sgemm_dispatch")
CALLS = Path("calls.json")
REPORT = Path("report.html")
TILES = Path("tiles.html")


@dataclass(frozen=True)
class SearchRequest:
    """Search the best kernels for shapes on a GPU.

    It ends by itself when nothing better is likely, or after --seconds or --trials. Ctrl-C keeps everything;
    run the same command again to resume. Of a suite that counts calls, as programs record it,
    the shapes that take most time come first, and what the program gains is told.
    """

    gpu: Gpu = "auto"
    like: Like = None
    shapes: Shapes = field(default_factory=list)
    suites: Suites = field(default_factory=list)
    trials: Annotated[
        int | None,
        typer.Option(help="Stop after so many trials of each shape.", **parsing.whole("--trials", 1)),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Stop after so many seconds. Without --seconds and --trials it ends by itself, when nothing "
            "better is likely.",
            **parsing.number("--seconds", is_above=True),
        ),
    ] = None
    num_drawn: Annotated[
        int,
        typer.Option(
            "--any",
            help="So many more shapes, drawn at random (of a suite: by its counts), and kernels timed across "
            "them: for any shape.",
            **parsing.whole("--any", metavar="NUMBER"),
        ),
    ] = 0
    seed: Seed = 0
    sampler: Annotated[
        str,
        typer.Option(
            help="What proposes configs: `autotune`, `random`, or Optuna's `tpe`, `gp` (needs torch, scipy) "
            "or `cmaes` (needs cmaes): the nearest feasible config to what it asks for.",
            autocompletion=completing("autotune", "random", "tpe", "gp", "cmaes"),
        ),
    ] = "autotune"
    seeds: Annotated[
        str,
        typer.Option(
            help="What a shape starts with: `shipped` kernels that are expected to do well on it, or `none`.",
            autocompletion=completing("shipped", "none"),
        ),
    ] = "shipped"
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Only shapes measured under another driver, cuBLAS, compiler or kernel than what is here, "
            "and only their finalists: seconds per shape.",
        ),
    ] = False
    insists: Annotated[
        bool,
        typer.Option("--insist", help="On a recording: take all --seconds, although no gain is likely."),
    ] = False
    effort: Annotated[
        str,
        typer.Option(
            help="`quick`, `standard` or `thorough`: how much is tried for one decision, and how soon "
            "a shape ends without --seconds and --trials.",
            autocompletion=completing("quick", "standard", "thorough"),
        ),
    ] = "standard"
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file of values that are to differ (autotune/search_policy.py)."
        ),
    ] = None
    cache: Cache = "cold"
    max_error: MaxError = MAX_ERROR
    where: Where = field(default_factory=list)
    max_workspace: MaxWorkspace = None
    order: Order = None
    db: Db = DEFAULT_DB
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append what happens, one JSON object a line; -: to stdout."),
    ] = None


@dataclass(frozen=True)
class ExportRequest:
    """Write the winners as a folder to import.

    A suite names the shapes to write. One that counts calls (count) says instead what kernels for shapes that
    were not tuned are chosen for.
    """

    db: Db = DEFAULT_DB
    out: Annotated[Path, typer.Option(help="The folder to write: what applications import.")] = TABLE
    shapes: Shapes = field(default_factory=list)
    suites: Suites = field(default_factory=list)
    cache: Cache = "cold"
    max_error: Accurate = MAX_ERROR
    where: Where = field(default_factory=list)
    max_workspace: MaxWorkspace = None
    order: Order = None
    max_kernels: Annotated[
        int,
        typer.Option(
            help="For shapes that were not tuned, beside those that won.", **parsing.whole("--max-kernels")
        ),
    ] = MAX_KERNELS
    max_megabytes: Annotated[
        float,
        typer.Option(
            help="What these kernels, packed, take at most.",
            **parsing.number("--max-megabytes", most=math.inf),
        ),
    ] = MAX_MEGABYTES
    epilogues: Annotated[
        list[str],
        typer.Option(
            "--epilogue", help="Have each kernel with it, too: bias, relu, gelu, gelu-tanh, bias-relu, ..."
        ),
    ] = field(default_factory=list)
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="c: with sources for programs in C and C++, in its folder c.",
            **parsing.one_of("--format", ("python", "c")),
        ),
    ] = "python"
    adds: Annotated[
        bool, typer.Option("--add", help="Keep the tables of other kinds of GPU that the folder holds.")
    ] = False


@dataclass(frozen=True)
class SpaceRequest:
    """Count the kernels for a GPU and a shape, explain rules."""

    gpu: Annotated[
        str,
        typer.Option(
            help="A GPU here (index, UUID, `auto`) or the name of a known kind, as h200 or rtx-3090.",
            autocompletion=kinds,
        ),
    ] = "auto"
    shape: Annotated[str, typer.Option(help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32.")] = "4096"
    explain: Annotated[
        str | None, typer.Option(metavar="CONFIG", help="Tell why this config is refused: bm=64,bn=128,...")
    ] = None
    where: Where = field(default_factory=list)
    max_workspace: MaxWorkspace = None
    order: Order = None
    is_wide: Annotated[bool, typer.Option("--all", help="Count what is legal but known not to pay, too.")] = (
        False
    )


@dataclass(frozen=True)
class ReportRequest:
    """Draw what the database holds into one HTML file."""

    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = REPORT
    shapes: Shapes = field(default_factory=list)
    table: MappedTable = None
    ladders: Ladders = field(default_factory=list)
    db: Db = DEFAULT_DB
    max_error: Accurate = MAX_ERROR


@dataclass(frozen=True)
class ViewRequest:
    """Show the same in the browser, and follow a search that runs."""

    shapes: Shapes = field(default_factory=list)
    table: MappedTable = None
    ladders: Ladders = field(default_factory=list)
    db: Db = DEFAULT_DB
    port: Port = 8571
    host: Host = "127.0.0.1"
    max_error: Accurate = MAX_ERROR


@dataclass(frozen=True)
class EstimateRequest:
    """Run a program of torch, count its products, and predict what it gains.

    No table is needed, and no GPU: without one it runs on the CPU. Ends as the program does.
    """

    program: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM [ARGUMENTS]...", help="A Python file, as it is, and its arguments."),
    ]
    is_module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module's name.")] = False
    out: Annotated[Path, typer.Option(help="The file to write its calls into: a suite for `search`.")] = CALLS
    seconds: Annotated[
        float,
        typer.Option(
            help="End the program after so many seconds; 0: let it end.",
            **parsing.number("--seconds", 0, 1e6),
        ),
    ] = 0.0
    limit: Limit = 10


@dataclass(frozen=True)
class BenchRequest:
    """Time the best known kernels against cuBLAS."""

    gpu: Gpu = "auto"
    shapes: Shapes = field(default_factory=list)
    suites: Suites = field(default_factory=list)
    rounds: Rounds = 15
    cache: Cache = "cold"
    max_error: Accurate = MAX_ERROR
    db: Db = DEFAULT_DB


@dataclass(frozen=True)
class TimeRequest:
    """Verify and time configs by hand, against cuBLAS. Nothing is stored."""

    config: Configs
    gpu: Gpu = "auto"
    shape: Annotated[str, typer.Option(help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32.")] = "4096"
    rounds: Rounds = 15
    cache: Cache = "cold"
    max_error: MaxError = MAX_ERROR


@dataclass(frozen=True)
class LadderRequest:
    """Time the classic steps beside the tuned kernel and cuBLAS."""

    gpu: RealGpu = "auto"
    shape: Annotated[str, typer.Option(help="4096 or 4096x128x4096 (m, n, k); NN only.")] = "4096"
    rounds: Rounds = 9
    cache: Cache = "cold"
    max_error: Accurate = MAX_ERROR
    db: Db = DEFAULT_DB
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the climb into this file.")] = None


@dataclass(frozen=True)
class RecordRequest:
    """Time configs on shapes into a file for --gpu replay:FILE."""

    out: Annotated[Path, typer.Option(help="The recording to write; asked again, it goes on.")]
    gpu: RealGpu = "auto"
    shapes: Shapes = field(default_factory=list)
    suites: Suites = field(default_factory=list)
    configs: Annotated[
        int | None,
        typer.Option(
            help="A sample of so many configs, the same for all shapes; all without it.",
            **parsing.whole("--configs", 1, 10**6),
        ),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Begin no other config after so many seconds.", **parsing.number("--seconds", 0, 1e9)
        ),
    ] = None
    seed: Seed = 0
    cache: Cache = "cold"
    max_error: MaxError = MAX_ERROR
    db: Annotated[
        str | None,
        typer.Option(help="Database of its trials, and of searches to sample from; OUT.db without it."),
    ] = None


@dataclass(frozen=True)
class ContributeRequest:
    """Measure a card for those who have none: one run of ten minutes, one file to give away.

    Cards wanted most: RTX 3090, RTX 4090 and Quadro RTX (4000 to 8000). It says what the file holds before it
    writes: names of users and hosts, paths and UUIDs never. Ctrl-C keeps all; asked again, it goes on.
    """

    gpu: RealGpu = "auto"
    shapes: Shapes = field(default_factory=list)
    suites: Suites = field(default_factory=list)
    seconds: Annotated[
        float, typer.Option(help="Of the whole run.", **parsing.number("--seconds", 0, 1e9, is_above=True))
    ] = 600.0
    out: Annotated[
        Path | None, typer.Option(help="The file to write; without it, it is named as the GPU.")
    ] = None


@dataclass(frozen=True)
class MergeRequest:
    """Copy all of another database, or of a recording, into this one.

    Nothing is doubled. Killed, or repeated, it goes on.
    """

    other: Annotated[
        str, typer.Argument(help="The database to read: a SQLite file, or a URL; or a recording.")
    ]
    db: Db = DEFAULT_DB


@dataclass(frozen=True)
class CompareRequest:
    """Compare the best of two databases or tables, shape by shape."""

    first: Annotated[str, typer.Argument(help="A database, a study of it (a.db#3), or an exported folder.")]
    second: Annotated[str, typer.Argument(help="Another one.")]
    shapes: Shapes = field(default_factory=list)
    max_error: Accurate = MAX_ERROR


@dataclass(frozen=True)
class ForgetRequest:
    """Delete all trials of shapes or studies."""

    db: Db = DEFAULT_DB
    shapes: Shapes = field(default_factory=list)
    studies: Annotated[
        list[int],
        typer.Option(
            "--study", help="A study, by its id; repeatable.", **parsing.whole("--study", 1, metavar="ID")
        ),
    ] = field(default_factory=list)
    is_sure: Annotated[bool, typer.Option("--yes", help="Do it, and do not only tell.")] = False


@dataclass(frozen=True)
class RunsRequest:
    """Who searched what: host, GPU, command, driver, versions."""

    db: Db = DEFAULT_DB
    shapes: Shapes = field(default_factory=list)
    limit: Limit = 20


@dataclass(frozen=True)
class CoverageRequest:
    """Tell what of a program's calls a table serves tuned, modelled, by cuBLAS, or not well.

    By number and by time. No GPU is needed.
    """

    calls: Annotated[
        Path,
        typer.Argument(
            metavar="CALLS", help="What programs recorded (AUTOTUNE_RECORD=FILE, record_calls), or a suite."
        ),
    ]
    table: Annotated[Path, typer.Argument(help="An exported folder.")] = TABLE
    limit: Limit = 20


@dataclass(frozen=True)
class ExplainRequest:
    """Draw what kernels do with memory: blocks, warps, stages, banks, bytes. No GPU is needed.

    The ladder from the naive kernel to a tuned one, winners that ship, and any config, in one HTML file.
    """

    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = TILES
    gpu: Annotated[
        str,
        typer.Option(help="A known kind of GPU, as h200 or rtx-3090.", autocompletion=kinds),
    ] = "h200"
    shape: Annotated[str, typer.Option(help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32.")] = "4096"
    configs: Annotated[
        list[str],
        typer.Option(
            "--config", metavar="CONFIG", help="A config to draw first: bm=64,bn=128,... or JSON; repeatable."
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True)
class SourceRequest:
    """Write what a config is compiled from, and the command that compiles it."""

    config: Annotated[str, typer.Argument(metavar="CONFIG", help="bm=64,bn=128,... or JSON.")]
    gpu: Annotated[
        str,
        typer.Option(
            help="A known kind of GPU, as h200 or rtx-3090, or one here (index, UUID, `auto`).",
            autocompletion=kinds,
        ),
    ] = "h200"
    shape: Annotated[str, typer.Option(help="Its layout counts, and whether it is a batch.")] = "4096"
    out: Annotated[Path | None, typer.Option(help="The .cu file to write; without it, it is printed.")] = None


@dataclass(frozen=True)
class T4Request:
    """Write the trials of a problem as T4, Kernel Tuner's results format."""

    out: Out
    db: Db = DEFAULT_DB
    recording: Recording = None
    shape: OneShape = None


@dataclass(frozen=True)
class T1Request(T4Request):
    """Write the trials of a problem as T1, a cache that Kernel Tuner searches in simulation."""
