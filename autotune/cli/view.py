"""`autotune view`: the pages of a database in the browser, while a search writes it."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from types import ModuleType

from ..errors import EnvironmentProblem, StoreError
from ..report import page
from ..report.feed import Feed
from ..report.ladder_steps import read_ladder
from ..report.table_maps import table_document
from ..requirements import STARLETTE, UVICORN, pip_install
from ..store import Follower, shown
from . import common, console
from .explain import trial_page
from .report import PagesRequest, describe

LATER = 15  # added to the process's niceness: a search on this machine comes first, its compilers too


def run(request: PagesRequest, port: int, *, is_json: bool) -> None:
    """Serve pages on this machine until Ctrl-C. Raises EnvironmentProblem where a package is missing,
    UsageError where the port is taken or a ladder cannot be read, StoreError without a database,
    DispatchError without a table."""
    page.jinja()
    server = _server()
    gemms = common.read_problems(request.shapes)
    ladders = [read_ladder(path) for path in request.ladders]
    with ExitStack() as at_end:
        with common.open_existing(request.db):  # brings an older one up to date, which a reader cannot
            pass
        at_end.callback(_tidy, request.db)
        follower = at_end.enter_context(Follower(request.db))
        listener = at_end.enter_context(server.listen(port))
        address = f"http://{server.HOST}:{listener.getsockname()[1]}/"
        if is_json:
            console.show_json({"address": address, "db": shown(request.db)})
        else:
            console.show(f"{shown(request.db)}: open {address} (Ctrl-C ends it)")
        os.nice(LATER)
        feed = Feed(follower, request.max_error, gemms)
        table = table_document(request.table, feed.studies(), describe) if request.table else None
        server.serve(server.Pages(feed, shown(request.db), describe, table, ladders, trial_page), listener)


def _tidy(db: str) -> None:
    """Have SQLite take away its files beside a database that nobody writes, which a reader cannot."""
    with suppress(StoreError), common.open_existing(db):
        pass


def _server() -> ModuleType:
    try:
        from ..report import server
    except ImportError as error:
        install = f"{pip_install(STARLETTE)} and {pip_install(UVICORN)}"
        raise EnvironmentProblem(f"pages cannot be served ({error}); install: {install}") from error
    return server
