"""Every trial, kept: `Store` and the records that it hands out."""

from .connect import exists, shown
from .records import DuelRecord, Final, FinalEntry, StudyRef, StudySummary, TrialRecord
from .repository import Store

__all__ = [
    "DuelRecord",
    "Final",
    "FinalEntry",
    "Store",
    "StudyRef",
    "StudySummary",
    "TrialRecord",
    "exists",
    "shown",
]
