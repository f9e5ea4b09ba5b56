"""The store of every trial: `Store` and the records that it returns."""

from .artifacts import Artifacts, Channel, ChannelKey, Usage
from .builds import Build, Builds
from .claims import Claims, Known, NewTrials
from .connect import exists, shown, typed
from .follower import Follower, Latest
from .optuna_rows import Requested
from .queue import Member, Queue, QueuedRequest, RequestState, Wanted
from .records import (
    EVER,
    ComparisonRecord,
    Final,
    FinalEntry,
    Period,
    RunRecord,
    SearchRecord,
    StudyRef,
    StudySummary,
    TrialColumns,
    TrialRecord,
    TriedPoint,
)
from .repository import Store, by_problem

__all__ = [
    "EVER",
    "Artifacts",
    "Build",
    "Builds",
    "Channel",
    "ChannelKey",
    "Claims",
    "ComparisonRecord",
    "Final",
    "FinalEntry",
    "Follower",
    "Known",
    "Latest",
    "Member",
    "NewTrials",
    "Period",
    "Queue",
    "QueuedRequest",
    "RequestState",
    "Requested",
    "RunRecord",
    "SearchRecord",
    "Store",
    "StudyRef",
    "StudySummary",
    "TrialColumns",
    "TrialRecord",
    "TriedPoint",
    "Usage",
    "Wanted",
    "by_problem",
    "exists",
    "shown",
    "typed",
]
