"""The command line: hands options to the modules of this room, which compose and print.

Nothing heavy is imported before a command runs, so `autotune --help` answers at once."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from .. import __version__
from ..files.errors import AutotuneError, EnvironmentProblem, UsageError
from ..files.output_file import DISK_FULL
from ..files.shortage import shortage
from ..files.words import use_command_line_words
from . import console, parsing, requests
from .ctrl_c import SIGNALLED, leave_at_once

app = typer.Typer(
    name="autotune",
    help="Finds the best FP32 matrix product kernel for this GPU and these shapes.",
    epilog=parsing.examples_below(
        "doctor", "search --shape 4096 --seconds 60", "export-table --out sgemm_dispatch"
    )
    + "\n\nExit codes: 0 done, 2 wrong usage, 3 something is missing here, 4 the GPU was lost, 5 database,"
    " 6 exported table, 7 slower than recorded; where a signal ended it 128 + its number (Ctrl-C: 130).",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def _group(name: str, help: str, *examples: str) -> typer.Typer:
    """Commands behind a word of their own."""
    group = typer.Typer(help=help, no_args_is_help=True)
    app.add_typer(group, name=name, epilog=parsing.examples_below(*examples))
    return group


trials_app = _group(
    "trials", "What the database holds.", "trials best", "trials failures --shape 4096 --limit 5"
)
tables_app = _group(
    "tables", "Signed tables, for programs elsewhere.", "tables key team.key", "tables publish --key team.key"
)
tokens_app = _group("tokens", "Who may ask a server.", "tokens new laptop --role read")
requests_app = _group(
    "requests", "Shapes that a team wants tuned.", "requests add --shape 4096", "requests list"
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
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


parsing.declare(app, "search", requests.SearchRequest, "json quiet")
parsing.declare(app, "export_table", requests.ExportRequest, name="export-table")
parsing.declare(app, "space", requests.SpaceRequest)
parsing.declare(app, "trials:runs", requests.RunsRequest)
parsing.declare(app, "report", requests.ReportRequest)
parsing.declare(app, "view", requests.ViewRequest)
_OWN_OPTIONS_FIRST = {"allow_interspersed_args": False}  # the program's own follow it
parsing.declare(app, "serve", requests.ServeRequest)
parsing.declare(app, "estimate", requests.EstimateRequest, context_settings=_OWN_OPTIONS_FIRST)
parsing.declare(app, "coverage", requests.CoverageRequest)
parsing.declare(app, "explain", requests.ExplainRequest)
parsing.declare(app, "bench", requests.BenchRequest)
parsing.declare(app, "one_config:time_configs", requests.TimeRequest, name="time")
parsing.declare(app, "one_config:write_source", requests.SourceRequest, name="source")
parsing.declare(app, "ladder", requests.LadderRequest)
parsing.declare(app, "verify:either", requests.VerifyRequest, name="verify")
parsing.declare(app, "work", requests.WorkerRequest, "quiet", name="worker")
parsing.declare(app, "record", requests.RecordRequest, "json quiet")
parsing.declare(app, "contribute", requests.ContributeRequest, "json quiet")
parsing.declare(app, "doctor", requests.DoctorRequest)
parsing.declare(trials_app, "trials:best", requests.BestRequest, "json csv")
parsing.declare(trials_app, "trials:history", requests.HistoryRequest, "json csv")
parsing.declare(trials_app, "trials:failures", requests.FailuresRequest, "json csv")
parsing.declare(trials_app, "one_trial:show", requests.ShowRequest)
parsing.declare(trials_app, "one_trial:diff", requests.DiffRequest)
parsing.declare(trials_app, "trials_files:t4", requests.T4Request)
parsing.declare(trials_app, "trials_files:t1", requests.T1Request)
parsing.declare(trials_app, "view:show_dashboard", requests.DashboardRequest, name="dashboard")
parsing.declare(trials_app, "trials_merge:merge", requests.MergeRequest, "json quiet")
parsing.declare(trials_app, "trials_compare", requests.CompareRequest, name="compare")
parsing.declare(trials_app, "trials_merge:forget", requests.ForgetRequest)

parsing.declare(tables_app, "tables:make_key", requests.KeyRequest, name="key")
parsing.declare(tables_app, "tables:publish", requests.PublishRequest)
parsing.declare(tables_app, "tables_follow", requests.FollowRequest, name="follow")
parsing.declare(tables_app, "tables:show_all", requests.TablesRequest, name="list")
parsing.declare(tables_app, "tables:pull", requests.PullRequest)
parsing.declare(tables_app, "tables:pin", requests.PinRequest)
parsing.declare(tables_app, "tables:rollback", requests.RollbackRequest)
parsing.declare(tokens_app, "tokens:new", requests.NewTokenRequest)
parsing.declare(tokens_app, "tokens:show_all", requests.TokensRequest, name="list")
parsing.declare(tokens_app, "tokens:revoke", requests.RevokeRequest)

parsing.declare(requests_app, "asked_shapes:add", requests.AskRequest)
parsing.declare(requests_app, "asked_shapes:show_all", requests.QueueRequest, name="list")


def _shortage(error: Exception) -> EnvironmentProblem | None:
    """What this machine is short of, where an error that nobody explained says so."""
    short = shortage(error)
    if short is None:
        return None
    hint = "and run the same command again: what was stored stays"
    return EnvironmentProblem(f"{short.what} ({str(error) or type(error).__name__}); {short.advice} {hint}")


def _exit_code(error: AutotuneError) -> int:
    """A full disk is one thing, whatever was to be written: a report, a table, a recording."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return EnvironmentProblem.exit_code
        cause = cause.__cause__
    return error.exit_code


def _run(is_debug: bool = False) -> int:
    """Run the command. Returns the exit code; an error becomes one line, `is_debug` below its traceback."""
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
    except Exception as error:
        if is_debug:
            console.note(traceback.format_exc())
        if not isinstance(error, AutotuneError):
            return _other_end(error, "" if is_debug else "run again with --debug and ")
        console.fail(error)
        return _exit_code(error)


def _without_reader() -> int:
    """Whoever read the output has enough, as `head` has: no error, and nothing to say."""
    console.abandon(sys.__stdout__ or sys.stdout)
    return SIGNALLED + signal.SIGPIPE


def _other_end(error: Exception, hint: str) -> int:
    """Of what is no error of ours: wrong options, a machine short of something, a fault of autotune (`hint`:
    what to do first then)."""
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
    console.refuse(f"internal error: {error!r}; {hint}report the traceback")
    return AutotuneError.exit_code


def _num_own(arguments: list[str]) -> int:
    """How many of the arguments are autotune's: those behind `estimate` may be those of the program."""
    words = [at for at, one in enumerate(arguments) if not one.startswith("-")]
    is_program = bool(words) and arguments[words[0]] == "estimate"
    return words[0] + 1 if is_program else len(arguments)


def main() -> NoReturn:
    """Runs what the command line says, and exits. `--debug` shows where an error came from."""
    use_command_line_words()
    # Before numpy loads: its BLAS would spin on every core, which the compiler's threads need. The
    # search's small matrices take one thread a tenth of the time that they take two on busy cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    own = 1 + _num_own(sys.argv[1:])
    is_debug = "--debug" in sys.argv[1:own]
    sys.argv = [sys.argv[0], *(one for one in sys.argv[1:own] if one != "--debug"), *sys.argv[own:]]
    try:
        code = _run(is_debug)
        leave_at_once()  # nothing is left to be put in order
    except KeyboardInterrupt:  # between the two
        code = SIGNALLED + signal.SIGINT
    sys.exit(code)
