"""The command line: declares options and hands them to `commands`, which compose and print.

Nothing heavy is imported before a command runs, so `autotune --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from . import __version__, console
from .errors import AutotuneError, EnvironmentProblem
from .measurement import MAX_ERROR

app = typer.Typer(
    name="autotune",
    help="Finds the best FP32 matrix product kernel for this GPU and these shapes.",
    epilog="Exit codes: 0 done, 2 wrong usage, 3 something is missing here, 4 the GPU was lost, 5 database,"
    " 6 exported table.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
trials_app = typer.Typer(help="What the database holds.", no_args_is_help=True)
app.add_typer(trials_app, name="trials")

Gpu = Annotated[
    str, typer.Option(help="A GPU: its index, UUID or `auto`; or `replay:FILE`, a recorded space.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="SHAPE", help="4096, 4096x128x4096 (m, n, k) or 4096:NT; repeatable."),
]
Suite = Annotated[Path | None, typer.Option(help="A TOML file of [[shape]] tables with m, n, k [, layout].")]
Db = Annotated[str, typer.Option(help="Database: a SQLite file, or a URL (SQLite, PostgreSQL).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Policy = Annotated[
    str, typer.Option(help="`cold`: operands come from memory; `warm`: they stay in the L2 cache.")
]
MaxError = Annotated[
    float,
    typer.Option(help="Fail kernels whose error is more than so many times cuBLAS's; 0: no limit.", min=0.0),
]
Accurate = Annotated[
    float,
    typer.Option(
        "--max-error",
        help="Leave out kernels whose error is more than so many times cuBLAS's; 0: no limit.",
        min=0.0,
    ),
]
Limit = Annotated[int, typer.Option(help="Show at most so many.", min=1)]
Trial = Annotated[
    int,
    typer.Argument(metavar="ID", help="A trial, as `trials best`, `history` and `failures` list it.", min=1),
]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn at random.", min=0)]
Rounds = Annotated[int, typer.Option(help="Interleaved rounds: samples of each contender.", min=3)]

DB = "autotune.db"
TABLE = Path("sgemm_dispatch")
REPORT = Path("report.html")


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


@app.command()
def search(
    gpu: Gpu = "auto",
    shape: Shapes = None,
    suite: Suite = None,
    trials: Annotated[int | None, typer.Option(help="Stop after so many trials of each shape.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    seed: Seed = 0,
    sampler: Annotated[
        str,
        typer.Option(
            help="What proposes configs: `autotune`, `random`, Optuna's `tpe` as it is, or `tpe-snapped`."
        ),
    ] = "autotune",
    policy: Policy = "cold",
    max_error: MaxError = MAX_ERROR,
    db: Db = DB,
    has_dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard/--no-dashboard",
            help="Copy trials for `optuna-dashboard`, too: four fifths of the database's size.",
        ),
    ] = True,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Search the best kernels for shapes on a GPU.

    Ctrl-C keeps everything; the same command goes on.
    """
    from .commands import search as command

    limit = max_error or None
    request = command.Request(
        gpu, shape or (), suite, trials, seconds, seed, sampler, policy, db, limit, has_dashboard
    )
    command.run(request, is_json=is_json, is_quiet=is_quiet)


@app.command("export-table")
def export_table(
    db: Db = DB,
    out: Annotated[Path, typer.Option(help="The folder to write: what applications import.")] = TABLE,
    shape: Shapes = None,
    suite: Suite = None,
    policy: Policy = "cold",
    max_error: Accurate = MAX_ERROR,
    is_json: Json = False,
) -> None:
    """Write the winners as a folder to import."""
    from .commands import table as command

    command.export(db, out, shape or (), suite, policy, max_error or None, is_json=is_json)


@app.command()
def space(
    gpu: Annotated[
        str,
        typer.Option(
            help="A GPU here (index, UUID, `auto`) or the name of a known kind, as h200 or rtx-3090."
        ),
    ] = "auto",
    shape: Annotated[str, typer.Option(help="4096, 4096x128x4096 (m, n, k) or 4096:NT.")] = "4096",
    explain: Annotated[
        str | None, typer.Option(metavar="CONFIG", help="Tell why this config is refused: bm=64,bn=128,...")
    ] = None,
    is_wide: Annotated[
        bool, typer.Option("--all", help="Count what is legal but known not to pay, too.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Count the kernels for a GPU and a shape, explain rules."""
    from .commands import space as command

    command.run(gpu, shape, explain, is_wide=is_wide, is_json=is_json)


@trials_app.command()
def best(db: Db = DB, shape: Shapes = None, max_error: Accurate = MAX_ERROR, is_json: Json = False) -> None:
    """The winner of every study, against cuBLAS and the limit."""
    from .commands import trials as command

    command.best(db, shape or (), max_error or None, is_json=is_json)


@trials_app.command()
def history(db: Db = DB, shape: Shapes = None, limit: Limit = 20, is_json: Json = False) -> None:
    """The newest trials, in the order in which they were made."""
    from .commands import trials as command

    command.history(db, shape or (), limit, is_json=is_json)


@trials_app.command()
def failures(db: Db = DB, shape: Shapes = None, limit: Limit = 20, is_json: Json = False) -> None:
    """What failed and why."""
    from .commands import trials as command

    command.failures(db, shape or (), limit, is_json=is_json)


@trials_app.command()
def show(trial: Trial, db: Db = DB, is_json: Json = False) -> None:
    """Everything that is known of one trial."""
    from .commands import one_trial as command

    command.show(db, trial, is_json=is_json)


@trials_app.command()
def diff(trial: Trial, other: Trial, db: Db = DB, is_json: Json = False) -> None:
    """What differs between two trials: parameters, times, registers, conditions."""
    from .commands import one_trial as command

    command.diff(db, trial, other, is_json=is_json)


@trials_app.command()
def t4(
    out: Annotated[Path, typer.Option(help="The JSON file to write.")],
    db: Db = DB,
    recording: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recorded space, in the place of the database.")
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Which problem, where there are several.")] = None,
    is_json: Json = False,
) -> None:
    """Write the trials of a problem as T4, Kernel Tuner's results format."""
    from .commands import t4 as command

    command.run(out, db, recording, shape, is_json=is_json)


@app.command()
def report(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = REPORT,
    shape: Shapes = None,
    db: Db = DB,
    max_error: Accurate = MAX_ERROR,
    is_json: Json = False,
) -> None:
    """Draw what the database holds into one HTML file."""
    from .commands import report as command

    command.run(db, out, shape or (), max_error or None, is_json=is_json)


@app.command()
def bench(
    gpu: Gpu = "auto",
    shape: Shapes = None,
    suite: Suite = None,
    rounds: Rounds = 15,
    policy: Policy = "cold",
    max_error: Accurate = MAX_ERROR,
    db: Db = DB,
    is_json: Json = False,
) -> None:
    """Time the best known kernels against cuBLAS."""
    from .commands import bench as command

    command.run(gpu, shape or (), suite, rounds, policy, max_error or None, db, is_json=is_json)


@app.command()
def ladder(
    gpu: Annotated[str, typer.Option(help="A GPU: its index, UUID or `auto`.")] = "auto",
    shape: Annotated[str, typer.Option(help="4096 or 4096x128x4096 (m, n, k); NN only.")] = "4096",
    rounds: Rounds = 9,
    policy: Policy = "cold",
    max_error: Accurate = MAX_ERROR,
    db: Db = DB,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the climb into this file.")] = None,
    is_json: Json = False,
) -> None:
    """Time the classic steps beside the tuned kernel and cuBLAS."""
    from .commands import ladder as command

    limit = max_error or None
    command.run(command.Request(gpu, shape, rounds, policy, db, svg, limit), is_json=is_json)


@app.command()
def verify(
    table: Annotated[Path, typer.Argument(help="An exported folder.")] = TABLE,
    gpu: Annotated[
        str, typer.Option(help="A GPU: its index, UUID or `auto`; `none` checks the files alone.")
    ] = "auto",
    is_json: Json = False,
) -> None:
    """Check an exported folder on this GPU."""
    from .commands import verify as command

    command.run(table, gpu, is_json=is_json)


@app.command()
def record(
    out: Annotated[Path, typer.Option(help="The recording to write; asked again, it goes on.")],
    gpu: Annotated[str, typer.Option(help="A GPU: its index, UUID or `auto`.")] = "auto",
    shape: Shapes = None,
    suite: Suite = None,
    configs: Annotated[
        int | None,
        typer.Option(help="A sample of so many configs, the same for all shapes; all without it.", min=1),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Begin no other config after so many seconds.", min=0.0)
    ] = None,
    seed: Seed = 0,
    policy: Policy = "cold",
    max_error: MaxError = MAX_ERROR,
    db: Annotated[
        str | None,
        typer.Option(help="Database of its trials, and of searches to sample from; OUT.db without it."),
    ] = None,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Time configs on shapes into a file for --gpu replay:FILE."""
    from .commands import record as command

    limit = max_error or None
    request = command.Request(out, gpu, shape or (), suite, configs, seconds, seed, policy, db, limit)
    command.run(request, is_json=is_json, is_quiet=is_quiet)


@app.command()
def doctor(db: Db = DB, is_json: Json = False) -> None:
    """Tell what is here, what is missing, what to do."""
    from .commands import doctor as command

    command.run(db, is_json=is_json)


def _shortage(error: Exception) -> EnvironmentProblem | None:
    """What this machine is short of, where an error that nobody explained says so."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        what = "out of memory"
    elif number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = "the disk is full"
    else:
        return None
    again = "free some and run the same command again: what was stored stays"
    return EnvironmentProblem(f"{what} ({str(error) or type(error).__name__}); {again}")


def main() -> NoReturn:
    """Entry point. Errors become one line and an exit code; `--debug` shows where they came from."""
    # Before numpy loads: its BLAS would spin on every core, which the compiler's threads need. The
    # search's small matrices take one thread a tenth of the time that they take two on busy cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    is_debug = "--debug" in sys.argv[1:]
    sys.argv = [sys.argv[0], *(argument for argument in sys.argv[1:] if argument != "--debug")]
    try:
        app()
    except AutotuneError as error:
        if is_debug:
            raise
        console.fail(error)
        sys.exit(error.exit_code)
    except Exception as error:
        if is_debug:
            raise
        if (problem := _shortage(error)) is not None:
            console.fail(problem)
            sys.exit(problem.exit_code)
        console.note(f"autotune: internal error: {error!r}; run again with --debug and report the traceback")
        sys.exit(1)
    sys.exit(0)
