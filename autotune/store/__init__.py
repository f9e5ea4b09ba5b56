"""The store of every trial: `Store` and the records that it returns."""

from .artifacts import Artifact, Artifacts, Channel, ChannelKey, Usage
from .claims import Claimed, Claims, Known, News
from .connect import exists, shown, typed
from .follower import Follower, Newest
from .optuna_rows import Asked
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
    "Artifact",
    "Artifacts",
    "Asked",
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
    "Newest",
    "News",
    "RunRecord",
    "SearchRecord",
    "Store",
    "StudyRef",
    "StudySummary",
    "TrialRecord",
    "Usage",
    "exists",
    "shown",
    "typed",
]
