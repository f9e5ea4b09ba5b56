"""The command line: hands options to the modules of this room, which compose and print.

Nothing heavy is imported before a command runs, so `autotune --help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .. import __version__
from ..facts.defaults import DEFAULT_DB, MAX_ERROR
from ..files.errors import AutotuneError, EnvironmentProblem, UsageError
from ..files.output_file import DISK_FULL
from ..files.shortage import shortage
from ..files.words import speak_as_command_line
from . import console, parsing, requests
from .ctrl_c import SIGNALLED, interrupt_in_order, leave_at_once
from .parsing import Json
from .requests import (
    SHOWN,
    TABLE,
    Accurate,
    Csv,
    Db,
    Host,
    LimitOrAll,
    Port,
    ShapesOrAll,
    Trial,
    completing,
)

app = typer.Typer(
    name="autotune",
    help="Finds the best FP32 matrix product kernel for this GPU and these shapes.",
    epilog=parsing.below("doctor", "search --shape 4096 --seconds 60", "export-table --out sgemm_dispatch")
    + "\n\nExit codes: 0 done, 2 wrong usage, 3 something is missing here, 4 the GPU was lost, 5 database,"
    " 6 exported table, 7 slower than recorded; where a signal ended it 128 + its number (Ctrl-C: 130).",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
trials_app = typer.Typer(help="What the database holds.", no_args_is_help=True)
app.add_typer(
    trials_app, name="trials", epilog=parsing.below("trials best", "trials failures --shape 4096 --limit 5")
)

# Each reads its options as parsing.py says.
_command, _trials_command = (partial(one.command, cls=parsing.Command) for one in (app, trials_app))


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


parsing.declare(
    app,
    "search",
    requests.SearchRequest,
    "search --shape 4096 --seconds 60",
    "search --shape 4096x128x4096:NT --shape 1024 --trials 300",
    "search --suite shapes.toml --db shapes.db",
    "search --any 80 --seconds 600 --db any.db",
    "search --suite calls.json --seconds 600 --db calls.db",
    "search --suite calls.json --any 80 --seconds 600 --db any.db",
    "search --shape 4096 --where 'pack_a=0,reduction!=two_pass'",
    "search --gpu replay:space.json.gz --trials 100",
    switches=("is_json", "is_quiet"),
)
parsing.declare(
    app,
    "export_table",
    requests.ExportRequest,
    "export-table",
    "export-table --db shapes.db --suite shapes.toml --out my_kernels",
    name="export-table",
)
parsing.declare(
    app,
    "space",
    requests.SpaceRequest,
    "space --gpu h200 --shape 4096x128x4096:NT",
    "space --gpu h200 --where 'pack_a=0,bm>=64'",
    "space --gpu rtx-3090 --explain bm=64,bn=128,stages=8",
)


@_trials_command(epilog=parsing.below("trials best", "trials best --db shapes.db --shape 4096 --json"))
def best(
    db: Db = DEFAULT_DB,
    shape: ShapesOrAll = None,
    max_error: Accurate = MAX_ERROR,
    is_json: Json = False,
    is_csv: Csv = False,
) -> None:
    """The winner of every study, against cuBLAS and the limit."""
    from . import trials as command

    interrupt_in_order()
    command.best(db, shape or (), max_error or None, is_json=is_json, is_csv=_only(is_csv, is_json))


@_trials_command(epilog=parsing.below("trials history --limit 50", "trials history --csv > trials.csv"))
def history(
    db: Db = DEFAULT_DB,
    shape: ShapesOrAll = None,
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


@_trials_command(epilog=parsing.below("trials failures", "trials failures --shape 4096 --limit 5"))
def failures(
    db: Db = DEFAULT_DB,
    shape: ShapesOrAll = None,
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


@_trials_command(epilog=parsing.below("trials show 312", "trials show 312 --json"))
def show(trial: Trial, db: Db = DEFAULT_DB, is_json: Json = False) -> None:
    """Everything that is known of one trial."""
    from . import one_trial as command

    interrupt_in_order()
    command.show(db, trial, is_json=is_json)


@_trials_command(epilog=parsing.below("trials diff 312 298", "trials diff 312 298 --json"))
def diff(trial: Trial, other: Trial, db: Db = DEFAULT_DB, is_json: Json = False) -> None:
    """What differs between two trials: parameters, times, registers, conditions."""
    from . import one_trial as command

    interrupt_in_order()
    command.diff(db, trial, other, is_json=is_json)


parsing.declare(
    trials_app,
    "trials_files:t4",
    requests.T4Request,
    "trials t4 --out 4096.json --shape 4096",
    "trials t4 --out 4096.json --recording space.json.gz",
    name="t4",
)


parsing.declare(
    trials_app,
    "trials_files:t1",
    requests.T1Request,
    "trials t1 --out 4096.json --shape 4096",
    "trials t1 --out 4096.json --recording space.json.gz",
    name="t1",
)


@_trials_command(epilog=parsing.below("trials dashboard", "trials dashboard --db shapes.db --port 8080"))
def dashboard(
    db: Db = DEFAULT_DB, port: Port = 8572, host: Host = "127.0.0.1", is_json: Json = False
) -> None:
    """Show all trials in Optuna's dashboard, those of a search that runs as they come."""
    from . import trials_dashboard as command

    interrupt_in_order()
    command.run(db, port, host, is_json=is_json)


parsing.declare(
    trials_app,
    "trials_merge:merge",
    requests.MergeRequest,
    "trials merge other.db",
    "trials merge other.db --db postgresql://me@host/autotune",
    name="merge",
    switches=("is_json", "is_quiet"),
)


parsing.declare(
    trials_app,
    "trials_compare",
    requests.CompareRequest,
    "trials compare before.db after.db",
    "trials compare a.db#3 sgemm_dispatch",
    name="compare",
)


parsing.declare(
    trials_app,
    "trials_merge:forget",
    requests.ForgetRequest,
    "trials forget --shape 4096",
    "trials forget --study 3 --yes",
    name="forget",
)


parsing.declare(app, "runs", requests.RunsRequest, "runs", "runs --db shapes.db --shape 4096 --json")


parsing.declare(
    app, "report", requests.ReportRequest, "report", "report --db shapes.db --shape 4096 --out 4096.html"
)
parsing.declare(
    app, "view", requests.ViewRequest, "view", "view --db shapes.db --table sgemm_dispatch --port 8600"
)
parsing.declare(
    app,
    "estimate",
    requests.EstimateRequest,
    "estimate train.py --epochs 1",
    "estimate --seconds 60 train.py",
    "estimate -m package.train --lr 0.1",
    context_settings={"allow_interspersed_args": False},
)


parsing.declare(
    app,
    "coverage",
    requests.CoverageRequest,
    "coverage calls.json",
    "coverage calls.json sgemm_dispatch --limit 50",
    "coverage calls.json --json",
)


parsing.declare(
    app,
    "explain",
    requests.ExplainRequest,
    "explain --shape 4096",
    "explain --gpu rtx-4090 --shape 4096 --config bm=64,min_blocks=1",
    "explain --shape 4096:NT --config vec_b=1 --out mine.html",
)


parsing.declare(app, "bench", requests.BenchRequest, "bench", "bench --db shapes.db --shape 4096 --rounds 50")
parsing.declare(
    app,
    "one_config:time_configs",
    requests.TimeRequest,
    "time bm=128,bn=128,tm=8,tn=8 --shape 4096",
    "time bm=64 bm=128 --shape 4096:NT --rounds 30",
    name="time",
)


parsing.declare(
    app,
    "one_config:write_source",
    requests.SourceRequest,
    "source bm=128,bn=128 --gpu rtx-4090 --out sgemm.cu",
    "source bm=64",
    name="source",
)


parsing.declare(
    app, "ladder", requests.LadderRequest, "ladder --shape 4096", "ladder --shape 4096 --svg climb.svg"
)


@_command(epilog=parsing.below("verify", "verify my_kernels --gpu 1", "verify --quick"))
def verify(
    table: Annotated[Path, typer.Argument(help="An exported folder.")] = TABLE,
    gpu: Annotated[
        str,
        typer.Option(
            help="A GPU: its index, UUID or `auto`; `none` checks the files alone.",
            autocompletion=completing("auto", "none"),
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


parsing.declare(
    app,
    "record",
    requests.RecordRequest,
    "record --shape 4096 --configs 3000 --out space.json.gz",
    "record --suite shapes.toml --seconds 200 --out space.json.gz",
    switches=("is_json", "is_quiet"),
)
parsing.declare(
    app,
    "contribute",
    requests.ContributeRequest,
    "contribute",
    "contribute --gpu 1 --seconds 1200 --out rtx-3090.json.gz",
    switches=("is_json", "is_quiet"),
)


@_command(epilog=parsing.below("doctor", "doctor --db shapes.db --json"))
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
