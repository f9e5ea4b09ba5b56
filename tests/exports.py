"""Tests that export share a process: what the first of them compiles, the others find in the run's cache, and
what it made of the matrices that ship (carried.py), they find in memory."""

from __future__ import annotations

import pytest

EXPORTS = pytest.mark.xdist_group("exports")  # the kernels of a table take 20 s to compile
CARRIED = pytest.mark.xdist_group("kernels for every GPU model")  # a second for each GPU and layout
