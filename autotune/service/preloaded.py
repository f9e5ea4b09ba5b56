"""What the processes of several GPUs have in common, loaded once: they are forked from one that has it."""

from __future__ import annotations

from .. import target_finder, tuning

__all__ = ["tuning"]

target_finder.matrices()
