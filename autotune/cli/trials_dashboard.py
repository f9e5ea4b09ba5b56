"""`autotune trials dashboard`: copies trials to where Optuna's dashboard finds them."""

from __future__ import annotations

from collections.abc import Sequence

from ..files.words import counted
from ..store import shown, typed
from ..store.optuna_mirror import publish
from . import common, console


def run(db: str, shapes: Sequence[str], *, is_json: bool) -> None:
    """Copy what was not copied yet, of these shapes or of all, into the same database. Raises UsageError
    without trials, StoreError."""
    with common.open_existing(db) as store:
        summaries = common.studies_of(store, common.read_problems(shapes))
        num_new = publish(store, [summary.study for summary in summaries])
    if is_json:
        console.show_json({"db": shown(db), "num_studies": len(summaries), "num_new": num_new})
        return
    studies = counted(len(summaries), "study", "studies")
    url, password = typed(db if "://" in db else f"sqlite:///{db}")
    copied = counted(num_new, "trial was", "trials were")
    console.show(f"{copied} copied, of {studies}\nNext: optuna-dashboard {url}{password}")
