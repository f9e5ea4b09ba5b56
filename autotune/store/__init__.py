"""The store of every trial: `Store` and the records that it returns."""

from .artifacts import Artifact, Artifacts, Channel, ChannelKey, Usage
from .builds import Build, Builds
from .claims import Claimed, Claims, Known, News
from .connect import exists, shown, typed
from .follower import Follower, Newest
from .optuna_rows import Asked
from .queue import ANY_GPU, Member, Queue, QueuedRequest, RequestState, Wanted, WorkerStatus
from .records import (
    DuelRecord,
    Final,
    FinalEntry,
    Glimpse,
    RunRecord,
    SearchRecord,
    StudyRef,
    StudySummary,
    TrialRecord,
)
from .repository import Store

__all__ = [
    "ANY_GPU",
    "Artifact",
    "Artifacts",
    "Asked",
    "Build",
    "Builds",
    "Channel",
    "ChannelKey",
    "Claimed",
    "Claims",
    "DuelRecord",
    "Final",
    "FinalEntry",
    "Follower",
    "Glimpse",
    "Known",
    "Member",
    "Newest",
    "News",
    "Queue",
    "QueuedRequest",
    "RequestState",
    "RunRecord",
    "SearchRecord",
    "Store",
    "StudyRef",
    "StudySummary",
    "TrialRecord",
    "Usage",
    "Wanted",
    "WorkerStatus",
    "exists",
    "shown",
    "typed",
]
