"""Defaults that commands and functions share. Copied into exported tables: standard library only."""

from __future__ import annotations

DEFAULT_DB = "autotune.db"  # of trials
MAX_ERROR = 1.5  # times cuBLAS's: the limit for winners, and for what settling chooses
MAX_KERNELS = 252  # of a table for shapes that nobody tuned; with a default of each layout 256
MAX_MEGABYTES = 5.0  # that the files of these take
