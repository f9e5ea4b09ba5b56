"""The command line: declares options and hands them to the modules of this room, which compose and print.

Nothing heavy is imported before a command runs, so `autotune --help` answers at once.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .. import __version__
from ..facts.defaults import DEFAULT_DB, MAX_ERROR, MAX_KERNELS, MAX_MEGABYTES
from ..files.errors import AutotuneError, EnvironmentProblem, UsageError
from ..files.output_file import DISK_FULL
from ..files.shortage import shortage
from ..files.words import speak_as_command_line
from . import console, parsing
from .ctrl_c import SIGNALLED, interrupt_in_order, leave_at_once


def _examples(*lines: str) -> str:
    """What stands below the options of a command, line for line."""
    return "\n".join(["\b", "Examples:", *(f"  autotune {line}" for line in lines)])


app = typer.Typer(
    name="autotune",
    help="Finds the best FP32 matrix product kernel for this GPU and these shapes.",
    epilog=_examples("doctor", "search --shape 4096 --seconds 60", "export-table --out sgemm_dispatch")
    + "\n\nExit codes: 0 done, 2 wrong usage, 3 something is missing here, 4 the GPU was lost, 5 database,"
    " 6 exported table, 7 slower than recorded; where a signal ended it 128 + its number (Ctrl-C: 130).",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
trials_app = typer.Typer(help="What the database holds.", no_args_is_help=True)
app.add_typer(
    trials_app, name="trials", epilog=_examples("trials best", "trials failures --shape 4096 --limit 5")
)

# Each reads its options as parsing.py says.
_command, _trials_command = (partial(one.command, cls=parsing.Command) for one in (app, trials_app))


def _completing(*words: str) -> Callable[[str], list[str]]:
    """Offers these words to a shell."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _kinds(incomplete: str) -> Iterator[str]:
    """Offers the kinds of GPU that are known."""
    from ..facts.device import KNOWN

    return (name for name in ("auto", *KNOWN) if name.startswith(incomplete))


Gpu = Annotated[
    str,
    typer.Option(
        help="A GPU: its index, UUID or `auto`; or `replay:FILE`, a recorded space.",
        autocompletion=_completing("auto", "replay:"),
    ),
]
RealGpu = Annotated[
    str, typer.Option(help="A GPU: its index, UUID or `auto`.", autocompletion=_completing("auto"))
]
Like = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        help="Accept this GPU as another of the same compute capability, an H200 NVL as h200: trials and "
        "times of that are lent to it. AUTOTUNE_LIKE does so for all commands, and for tables.",
        autocompletion=_kinds,
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="SHAPE",
        help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32 (a batch of 32); repeatable.",
    ),
]
Suites = Annotated[
    list[Path] | None,
    typer.Option(
        "--suite",
        metavar="FILE",
        help="A TOML file of [[shape]] tables with m, n, k [, layout, batch, shared, epilogue, ld, align, "
        "count]; what programs recorded (AUTOTUNE_RECORD); or a list: a CSV of m,n,k, JSON, or PyTorch's "
        "TunableOp CSV. Repeatable: their calls add up.",
    ),
]
Where = Annotated[
    list[str] | None,
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
Db = Annotated[str, typer.Option(help="Database: a SQLite file, or a URL (SQLite, PostgreSQL).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print a table for spreadsheets: comma-separated values.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Cache = Annotated[
    str,
    typer.Option(
        help="`cold`: operands come from memory; `warm`: they stay in the L2 cache.",
        autocompletion=_completing("cold", "warm"),
    ),
]
MaxError = Annotated[
    float,
    typer.Option(
        help="Fail kernels whose error is more than so many times cuBLAS's; 0: no limit.",
        **parsing.number("--max-error"),
    ),
]
Accurate = Annotated[
    float,
    typer.Option(
        "--max-error",
        help="Leave out kernels whose error is more than so many times cuBLAS's; 0: no limit.",
        **parsing.number("--max-error"),
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
    list[Path] | None,
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


def _only(is_csv: bool, is_json: bool) -> bool:
    """Whether a table is wanted. Raises UsageError if JSON is, too."""
    if is_csv and is_json:
        raise UsageError("--csv and --json: ask for one of them")
    return is_csv


def _print_version(is_asked: bool) -> None:
    if is_asked:
        console.show(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    is_debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """`--debug` is taken out by `main`, wherever it stands; it is declared for `--help` only."""


@_command(
    epilog=_examples(
        "search --shape 4096 --seconds 60",
        "search --shape 4096x128x4096:NT --shape 1024 --trials 300",
        "search --suite shapes.toml --db shapes.db",
        "search --any 80 --seconds 600 --db any.db",
        "search --suite calls.json --seconds 600 --db calls.db",
        "search --suite calls.json --any 80 --seconds 600 --db any.db",
        "search --shape 4096 --where 'pack_a=0,reduction!=two_pass'",
        "search --gpu replay:space.json.gz --trials 100",
    )
)
def search(
    gpu: Gpu = "auto",
    like: Like = None,
    shape: Shapes = None,
    suite: Suites = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Stop after so many trials of each shape.", **parsing.whole("--trials", 1)),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Stop after so many seconds. Without --seconds and --trials it ends by itself, when nothing "
            "better is likely.",
            **parsing.number("--seconds", is_above=True),
        ),
    ] = None,
    num_drawn: Annotated[
        int,
        typer.Option(
            "--any",
            help="So many more shapes, drawn at random (of a suite: by its counts), and kernels timed across "
            "them: for any shape.",
            **parsing.whole("--any", metavar="NUMBER"),
        ),
    ] = 0,
    seed: Seed = 0,
    sampler: Annotated[
        str,
        typer.Option(
            help="What proposes configs: `autotune`, `random`, or Optuna's `tpe`, `gp` (needs torch, scipy) "
            "or `cmaes` (needs cmaes): the nearest feasible config to what it asks for.",
            autocompletion=_completing("autotune", "random", "tpe", "gp", "cmaes"),
        ),
    ] = "autotune",
    seeds: Annotated[
        str,
        typer.Option(
            help="What a shape starts with: `shipped` kernels that are expected to do well on it, or `none`.",
            autocompletion=_completing("shipped", "none"),
        ),
    ] = "shipped",
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Only shapes measured under another driver, cuBLAS, compiler or kernel than what is here, "
            "and only their finalists: seconds per shape.",
        ),
    ] = False,
    insists: Annotated[
        bool,
        typer.Option("--insist", help="On a recording: take all --seconds, although no gain is likely."),
    ] = False,
    effort: Annotated[
        str,
        typer.Option(
            help="`quick`, `standard` or `thorough`: how much is tried for one decision, and how soon "
            "a shape ends without --seconds and --trials.",
            autocompletion=_completing("quick", "standard", "thorough"),
        ),
    ] = "standard",
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file of values that are to differ (autotune/search_policy.py)."
        ),
    ] = None,
    cache: Cache = "cold",
    max_error: MaxError = MAX_ERROR,
    where: Where = None,
    max_workspace: MaxWorkspace = None,
    db: Db = DEFAULT_DB,
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append what happens, one JSON object a line; -: to stdout."),
    ] = None,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Search the best kernels for shapes on a GPU.

    It ends by itself when nothing better is likely, or after --seconds or --trials. Ctrl-C keeps everything;
    run the same command again to resume. Of a suite that counts calls, as programs record it,
    the shapes that take most time come first, and what the program gains is told.
    """
    from . import common
    from . import search as command

    interrupt_in_order()
    common.accept(like)
    limit = max_error or None
    request = command.SearchRequest(
        gpu, shape or (), suite or (), trials, seconds, seed, sampler, cache, db, limit,
        num_drawn, policy, seeds, where or (), max_workspace, insists, events, effort, stale,
    )  # fmt: skip
    command.run(request, is_json=is_json, is_quiet=is_quiet)


@_command(
    "export-table",
    epilog=_examples("export-table", "export-table --db shapes.db --suite shapes.toml --out my_kernels"),
)
def export_table(
    db: Db = DEFAULT_DB,
    out: Annotated[Path, typer.Option(help="The folder to write: what applications import.")] = TABLE,
    shape: Shapes = None,
    suite: Suites = None,
    cache: Cache = "cold",
    max_error: Accurate = MAX_ERROR,
    where: Where = None,
    max_workspace: MaxWorkspace = None,
    max_kernels: Annotated[
        int,
        typer.Option(
            help="For shapes that were not tuned, beside those that won.", **parsing.whole("--max-kernels")
        ),
    ] = MAX_KERNELS,
    max_megabytes: Annotated[
        float,
        typer.Option(
            help="What these kernels, packed, take at most.",
            **parsing.number("--max-megabytes", most=math.inf),
        ),
    ] = MAX_MEGABYTES,
    epilogue: Annotated[
        list[str] | None,
        typer.Option(help="Have each kernel with it, too: bias, relu, gelu, gelu-tanh, bias-relu, ..."),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="c: with sources for programs in C and C++, in its folder c.",
            **parsing.one_of("--format", ("python", "c")),
        ),
    ] = "python",
    adds: Annotated[
        bool, typer.Option("--add", help="Keep the tables of other kinds of GPU that the folder holds.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Write the winners as a folder to import.

    A suite names the shapes to write. One that counts calls (count) says instead what kernels for shapes that
    were not tuned are chosen for.
    """
    from . import export_table as command

    interrupt_in_order()
    limits, with_c = (max_error or None, max_kernels, max_megabytes), form == "c"
    command.export(
        *(db, out, shape or (), suite or (), cache, *limits, epilogue or ()),
        where=where or (),
        max_workspace=max_workspace,
        with_c=with_c,
        adds=adds,
        is_json=is_json,
    )


@_command(
    epilog=_examples(
        "space --gpu h200 --shape 4096x128x4096:NT",
        "space --gpu h200 --where 'pack_a=0,bm>=64'",
        "space --gpu rtx-3090 --explain bm=64,bn=128,stages=8",
    )
)
def space(
    gpu: Annotated[
        str,
        typer.Option(
            help="A GPU here (index, UUID, `auto`) or the name of a known kind, as h200 or rtx-3090.",
            autocompletion=_kinds,
        ),
    ] = "auto",
    shape: Annotated[str, typer.Option(help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32.")] = "4096",
    explain: Annotated[
        str | None, typer.Option(metavar="CONFIG", help="Tell why this config is refused: bm=64,bn=128,...")
    ] = None,
    where: Where = None,
    max_workspace: MaxWorkspace = None,
    is_wide: Annotated[
        bool, typer.Option("--all", help="Count what is legal but known not to pay, too.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Count the kernels for a GPU and a shape, explain rules."""
    from . import space as command

    interrupt_in_order()
    command.run(gpu, shape, explain, where or (), max_workspace, is_wide=is_wide, is_json=is_json)


@_trials_command(epilog=_examples("trials best", "trials best --db shapes.db --shape 4096 --json"))
def best(
    db: Db = DEFAULT_DB,
    shape: Shapes = None,
    max_error: Accurate = MAX_ERROR,
    is_json: Json = False,
    is_csv: Csv = False,
) -> None:
    """The winner of every study, against cuBLAS and the limit."""
    from . import trials as command

    interrupt_in_order()
    command.best(db, shape or (), max_error or None, is_json=is_json, is_csv=_only(is_csv, is_json))


@_trials_command(epilog=_examples("trials history --limit 50", "trials history --csv > trials.csv"))
def history(
    db: Db = DEFAULT_DB,
    shape: Shapes = None,
    limit: LimitOrAll = None,
    is_json: Json = False,
    is_csv: Csv = False,
) -> None:
    """The newest trials, in the order in which they were made."""
    from . import trials, trials_csv

    interrupt_in_order()
    if _only(is_csv, is_json):
        trials_csv.run(db, shape or (), limit)
    else:
        trials.history(db, shape or (), limit or SHOWN, is_json=is_json)


@_trials_command(epilog=_examples("trials failures", "trials failures --shape 4096 --limit 5"))
def failures(
    db: Db = DEFAULT_DB,
    shape: Shapes = None,
    limit: LimitOrAll = None,
    is_json: Json = False,
    is_csv: Csv = False,
) -> None:
    """What failed and why."""
    from . import trials, trials_csv

    interrupt_in_order()
    if _only(is_csv, is_json):
        trials_csv.run(db, shape or (), limit, is_failed=True)
    else:
        trials.failures(db, shape or (), limit or SHOWN, is_json=is_json)


@_trials_command(epilog=_examples("trials show 312", "trials show 312 --json"))
def show(trial: Trial, db: Db = DEFAULT_DB, is_json: Json = False) -> None:
    """Everything that is known of one trial."""
    from . import one_trial as command

    interrupt_in_order()
    command.show(db, trial, is_json=is_json)


@_trials_command(epilog=_examples("trials diff 312 298", "trials diff 312 298 --json"))
def diff(trial: Trial, other: Trial, db: Db = DEFAULT_DB, is_json: Json = False) -> None:
    """What differs between two trials: parameters, times, registers, conditions."""
    from . import one_trial as command

    interrupt_in_order()
    command.diff(db, trial, other, is_json=is_json)


@_trials_command(
    epilog=_examples(
        "trials t4 --out 4096.json --shape 4096", "trials t4 --out 4096.json --recording space.json.gz"
    )
)
def t4(
    out: Out,
    db: Db = DEFAULT_DB,
    recording: Recording = None,
    shape: OneShape = None,
    is_json: Json = False,
) -> None:
    """Write the trials of a problem as T4, Kernel Tuner's results format."""
    from . import trials_files as command

    interrupt_in_order()
    command.run(out, db, recording, shape, "t4", is_json=is_json)


@_trials_command(
    epilog=_examples(
        "trials t1 --out 4096.json --shape 4096", "trials t1 --out 4096.json --recording space.json.gz"
    )
)
def t1(
    out: Out,
    db: Db = DEFAULT_DB,
    recording: Recording = None,
    shape: OneShape = None,
    is_json: Json = False,
) -> None:
    """Write the trials of a problem as T1, a cache that Kernel Tuner searches in simulation."""
    from . import trials_files as command

    interrupt_in_order()
    command.run(out, db, recording, shape, "t1", is_json=is_json)


@_trials_command(epilog=_examples("trials dashboard", "trials dashboard --db shapes.db --port 8080"))
def dashboard(
    db: Db = DEFAULT_DB, port: Port = 8572, host: Host = "127.0.0.1", is_json: Json = False
) -> None:
    """Show all trials in Optuna's dashboard, those of a search that runs as they come."""
    from . import trials_dashboard as command

    interrupt_in_order()
    command.run(db, port, host, is_json=is_json)


@_trials_command(
    epilog=_examples("trials merge other.db", "trials merge other.db --db postgresql://me@host/autotune")
)
def merge(
    other: Annotated[
        str, typer.Argument(help="The database to read: a SQLite file, or a URL; or a recording.")
    ],
    db: Db = DEFAULT_DB,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Copy all of another database, or of a recording, into this one.

    Nothing is doubled. Killed, or repeated, it goes on.
    """
    from . import trials_merge as command

    interrupt_in_order()
    command.merge(other, db, is_json=is_json, is_quiet=is_quiet)


@_trials_command(
    epilog=_examples("trials compare before.db after.db", "trials compare a.db#3 sgemm_dispatch")
)
def compare(
    first: Annotated[str, typer.Argument(help="A database, a study of it (a.db#3), or an exported folder.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    shape: Shapes = None,
    max_error: Accurate = MAX_ERROR,
    is_json: Json = False,
) -> None:
    """Compare the best of two databases or tables, shape by shape."""
    from . import trials_compare as command

    interrupt_in_order()
    command.run(first, second, shape or (), max_error or None, is_json=is_json)


@_trials_command(epilog=_examples("trials forget --shape 4096", "trials forget --study 3 --yes"))
def forget(
    db: Db = DEFAULT_DB,
    shape: Shapes = None,
    study: Annotated[
        list[int] | None,
        typer.Option(help="A study, by its id; repeatable.", **parsing.whole("--study", 1, metavar="ID")),
    ] = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do it, and do not only tell.")] = False,
    is_json: Json = False,
) -> None:
    """Delete all trials of shapes or studies."""
    from . import trials_merge as command

    interrupt_in_order()
    command.forget(db, shape or (), study or (), is_sure=is_sure, is_json=is_json)


@_command(epilog=_examples("runs", "runs --db shapes.db --shape 4096 --json"))
def runs(db: Db = DEFAULT_DB, shape: Shapes = None, limit: Limit = 20, is_json: Json = False) -> None:
    """Who searched what: host, GPU, command, driver, versions."""
    from . import runs as command

    interrupt_in_order()
    command.run(db, shape or (), limit, is_json=is_json)


@_command(epilog=_examples("report", "report --db shapes.db --shape 4096 --out 4096.html"))
def report(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = REPORT,
    shape: Shapes = None,
    table: MappedTable = None,
    ladder: Ladders = None,
    db: Db = DEFAULT_DB,
    max_error: Accurate = MAX_ERROR,
    is_json: Json = False,
) -> None:
    """Draw what the database holds into one HTML file."""
    from . import report as command

    interrupt_in_order()
    request = command.PagesRequest(db, shape or (), table, ladder or (), max_error or None)
    command.run(request, out, is_json=is_json)


@_command(epilog=_examples("view", "view --db shapes.db --table sgemm_dispatch --port 8600"))
def view(
    shape: Shapes = None,
    table: MappedTable = None,
    ladder: Ladders = None,
    db: Db = DEFAULT_DB,
    port: Port = 8571,
    host: Host = "127.0.0.1",
    max_error: Accurate = MAX_ERROR,
    is_json: Json = False,
) -> None:
    """Show the same in the browser, and follow a search that runs."""
    from . import view as command
    from .report import PagesRequest

    interrupt_in_order()
    request = PagesRequest(db, shape or (), table, ladder or (), max_error or None)
    command.run(request, port, host, is_json=is_json)


@_command(
    context_settings={"allow_interspersed_args": False},
    epilog=_examples(
        "estimate train.py --epochs 1", "estimate --seconds 60 train.py", "estimate -m package.train --lr 0.1"
    ),
)
def estimate(
    program: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM [ARGUMENTS]...", help="A Python file, as it is, and its arguments."),
    ],
    is_module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module's name.")] = False,
    out: Annotated[
        Path, typer.Option(help="The file to write its calls into: a suite for `search`.")
    ] = CALLS,
    seconds: Annotated[
        float,
        typer.Option(
            help="End the program after so many seconds; 0: let it end.",
            **parsing.number("--seconds", 0, 1e6),
        ),
    ] = 0.0,
    limit: Limit = 10,
    is_json: Json = False,
) -> None:
    """Run a program of torch, count its products, and predict what it gains.

    No table is needed, and no GPU: without one it runs on the CPU. Ends as the program does.
    """
    from . import estimate as command

    interrupt_in_order()
    request = command.EstimateRequest(program, is_module, out, seconds, limit)
    command.run(request, is_json=is_json)


@_command(
    epilog=_examples(
        "coverage calls.json", "coverage calls.json sgemm_dispatch --limit 50", "coverage calls.json --json"
    )
)
def coverage(
    calls: Annotated[
        Path,
        typer.Argument(
            metavar="CALLS", help="What programs recorded (AUTOTUNE_RECORD=FILE, record_calls), or a suite."
        ),
    ],
    table: Annotated[Path, typer.Argument(help="An exported folder.")] = TABLE,
    limit: Limit = 20,
    is_json: Json = False,
) -> None:
    """Tell what of a program's calls a table serves tuned, modelled, by cuBLAS, or not well.

    By number and by time. No GPU is needed.
    """
    from . import coverage as command

    interrupt_in_order()
    command.run(calls, table, limit, is_json=is_json)


@_command(
    epilog=_examples(
        "explain --shape 4096",
        "explain --gpu rtx-4090 --shape 4096 --config bm=64,min_blocks=1",
        "explain --shape 4096:NT --config vec_b=1 --out mine.html",
    )
)
def explain(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = TILES,
    gpu: Annotated[
        str,
        typer.Option(help="A known kind of GPU, as h200 or rtx-3090.", autocompletion=_kinds),
    ] = "h200",
    shape: Annotated[str, typer.Option(help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32.")] = "4096",
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="CONFIG", help="A config to draw first: bm=64,bn=128,... or JSON; repeatable."),
    ] = None,
    is_json: Json = False,
) -> None:
    """Draw what kernels do with memory: blocks, warps, stages, banks, bytes. No GPU is needed.

    The ladder from the naive kernel to a tuned one, winners that ship, and any config, in one HTML file.
    """
    from . import explain as command

    interrupt_in_order()
    command.run(out, gpu, shape, config or (), is_json=is_json)


@_command(epilog=_examples("bench", "bench --db shapes.db --shape 4096 --rounds 50"))
def bench(
    gpu: Gpu = "auto",
    shape: Shapes = None,
    suite: Suites = None,
    rounds: Rounds = 15,
    cache: Cache = "cold",
    max_error: Accurate = MAX_ERROR,
    db: Db = DEFAULT_DB,
    is_json: Json = False,
) -> None:
    """Time the best known kernels against cuBLAS."""
    from . import bench as command

    interrupt_in_order()
    command.run(gpu, shape or (), suite or (), rounds, cache, max_error or None, db, is_json=is_json)


@_command(
    epilog=_examples(
        "time bm=128,bn=128,tm=8,tn=8 --shape 4096", "time bm=64 bm=128 --shape 4096:NT --rounds 30"
    )
)
def time(
    config: Configs,
    gpu: Gpu = "auto",
    shape: Annotated[str, typer.Option(help="4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32.")] = "4096",
    rounds: Rounds = 15,
    cache: Cache = "cold",
    max_error: MaxError = MAX_ERROR,
    is_json: Json = False,
) -> None:
    """Verify and time configs by hand, against cuBLAS. Nothing is stored."""
    from . import one_config as command

    interrupt_in_order()
    command.time_configs(config, gpu, shape, rounds, cache, max_error or None, is_json=is_json)


@_command(epilog=_examples("source bm=128,bn=128 --gpu rtx-4090 --out sgemm.cu", "source bm=64"))
def source(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="bm=64,bn=128,... or JSON.")],
    gpu: Annotated[
        str,
        typer.Option(
            help="A known kind of GPU, as h200 or rtx-3090, or one here (index, UUID, `auto`).",
            autocompletion=_kinds,
        ),
    ] = "h200",
    shape: Annotated[str, typer.Option(help="Its layout counts, and whether it is a batch.")] = "4096",
    out: Annotated[
        Path | None, typer.Option(help="The .cu file to write; without it, it is printed.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Write what a config is compiled from, and the command that compiles it."""
    from . import one_config as command

    interrupt_in_order()
    command.write_source(config, gpu, shape, out, is_json=is_json)


@_command(epilog=_examples("ladder --shape 4096", "ladder --shape 4096 --svg climb.svg"))
def ladder(
    gpu: RealGpu = "auto",
    shape: Annotated[str, typer.Option(help="4096 or 4096x128x4096 (m, n, k); NN only.")] = "4096",
    rounds: Rounds = 9,
    cache: Cache = "cold",
    max_error: Accurate = MAX_ERROR,
    db: Db = DEFAULT_DB,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the climb into this file.")] = None,
    is_json: Json = False,
) -> None:
    """Time the classic steps beside the tuned kernel and cuBLAS."""
    from . import ladder as command

    interrupt_in_order()
    limit = max_error or None
    command.run(command.LadderRequest(gpu, shape, rounds, cache, db, svg, limit), is_json=is_json)


@_command(epilog=_examples("verify", "verify my_kernels --gpu 1", "verify --quick"))
def verify(
    table: Annotated[Path, typer.Argument(help="An exported folder.")] = TABLE,
    gpu: Annotated[
        str,
        typer.Option(
            help="A GPU: its index, UUID or `auto`; `none` checks the files alone.",
            autocompletion=_completing("auto", "none"),
        ),
    ] = "auto",
    is_quick: Annotated[
        bool,
        typer.Option("--quick", help="One kernel alone: its result, and its time against the recorded one."),
    ] = False,
    is_json: Json = False,
) -> None:
    """Check an exported folder on this GPU."""
    interrupt_in_order()
    if is_quick:
        from . import verify_quick

        verify_quick.run(table, gpu, is_json=is_json)
        return
    from . import verify as command

    command.run(table, gpu, is_json=is_json)


@_command(
    epilog=_examples(
        "record --shape 4096 --configs 3000 --out space.json.gz",
        "record --suite shapes.toml --seconds 200 --out space.json.gz",
    )
)
def record(
    out: Annotated[Path, typer.Option(help="The recording to write; asked again, it goes on.")],
    gpu: RealGpu = "auto",
    shape: Shapes = None,
    suite: Suites = None,
    configs: Annotated[
        int | None,
        typer.Option(
            help="A sample of so many configs, the same for all shapes; all without it.",
            **parsing.whole("--configs", 1, 10**6),
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Begin no other config after so many seconds.", **parsing.number("--seconds", 0, 1e9)
        ),
    ] = None,
    seed: Seed = 0,
    cache: Cache = "cold",
    max_error: MaxError = MAX_ERROR,
    db: Annotated[
        str | None,
        typer.Option(help="Database of its trials, and of searches to sample from; OUT.db without it."),
    ] = None,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Time configs on shapes into a file for --gpu replay:FILE."""
    from . import record as command

    interrupt_in_order()
    request = command.RecordRequest(
        out, gpu, shape or (), suite or (), configs, seconds, seed, cache, db, max_error or None
    )
    command.run(request, is_json=is_json, is_quiet=is_quiet)


@_command(epilog=_examples("contribute", "contribute --gpu 1 --seconds 1200 --out rtx-3090.json.gz"))
def contribute(
    gpu: RealGpu = "auto",
    shape: Shapes = None,
    suite: Suites = None,
    seconds: Annotated[
        float, typer.Option(help="Of the whole run.", **parsing.number("--seconds", 0, 1e9, is_above=True))
    ] = 600.0,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; without it, it is named as the GPU.")
    ] = None,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Measure a card for those who have none: one run of ten minutes, one file to give away.

    Cards wanted most: RTX 3090, RTX 4090 and Quadro RTX (4000 to 8000). It says what the file holds before it
    writes: names of users and hosts, paths and UUIDs never. Ctrl-C keeps all; asked again, it goes on.
    """
    from . import contribute as command

    interrupt_in_order()
    request = command.ContributeRequest(gpu, shape or (), suite or (), seconds, out)
    command.run(request, is_json=is_json, is_quiet=is_quiet)


@_command(epilog=_examples("doctor", "doctor --db shapes.db --json"))
def doctor(db: Db = DEFAULT_DB, is_json: Json = False) -> None:
    """Tell what is here, what is missing, what to do."""
    from . import doctor as command

    interrupt_in_order()
    command.run(db, is_json=is_json)


def _shortage(error: Exception) -> EnvironmentProblem | None:
    """What this machine is short of, where an error that nobody explained says so."""
    short = shortage(error)
    if short is None:
        return None
    again = "and run the same command again: what was stored stays"
    return EnvironmentProblem(f"{short.what} ({str(error) or type(error).__name__}); {short.remedy} {again}")


def _exit_code(error: AutotuneError) -> int:
    """A full disk is one thing, whatever was to be written: a report, a table, a recording."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return EnvironmentProblem.exit_code
        cause = cause.__cause__
    return error.exit_code


def _run() -> int:
    """Run the command. Returns the exit code; an error becomes one line."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _without_reader()
    except SystemExit as end:  # what typer makes of a broken pipe
        if isinstance(end.__context__, BrokenPipeError):
            return _without_reader()
        raise
    except (KeyboardInterrupt, typer.Abort):
        return SIGNALLED + signal.SIGINT
    except AutotuneError as error:
        console.fail(error)
        return _exit_code(error)
    except Exception as error:
        return _other_end(error)


def _without_reader() -> int:
    """Whoever read the output has enough, as `head` has: no error, and nothing to say."""
    console.abandon(sys.__stdout__ or sys.stdout)
    return SIGNALLED + signal.SIGPIPE


def _other_end(error: Exception) -> int:
    """Of what is no error of ours: wrong options, a machine short of something, a fault of autotune."""
    tell = getattr(error, "format_message", None)  # typer's own, of several versions
    if tell is not None and "\n" not in tell():
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "autotune"
        console.refuse(f"{tell().rstrip('.')}; see `{command} --help`")
        return UsageError.exit_code
    if tell is not None:  # a command without its arguments: its help
        error.show()  # type: ignore[attr-defined]
        return UsageError.exit_code
    if (problem := _shortage(error)) is not None:
        console.fail(problem)
        return problem.exit_code
    console.refuse(f"internal error: {error!r}; run again with --debug and report the traceback")
    return AutotuneError.exit_code


def _num_own(arguments: list[str]) -> int:
    """How many of the arguments are autotune's: those behind `estimate` may be those of the program."""
    words = [at for at, one in enumerate(arguments) if not one.startswith("-")]
    is_program = bool(words) and arguments[words[0]] == "estimate"
    return words[0] + 1 if is_program else len(arguments)


def main() -> NoReturn:
    """Runs what the command line says, and exits. `--debug` shows where an error came from."""
    speak_as_command_line()
    # Before numpy loads: its BLAS would spin on every core, which the compiler's threads need. The
    # search's small matrices take one thread a tenth of the time that they take two on busy cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    own = 1 + _num_own(sys.argv[1:])
    is_debug = "--debug" in sys.argv[1:own]
    sys.argv = [sys.argv[0], *(one for one in sys.argv[1:own] if one != "--debug"), *sys.argv[own:]]
    if is_debug:
        app()
    try:
        code = _run()
        leave_at_once()  # nothing is left to be put in order
    except KeyboardInterrupt:  # between the two
        code = SIGNALLED + signal.SIGINT
    sys.exit(code)
