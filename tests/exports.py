"""Tests that export share a process: what the first of them compiles, the others find in the run's cache."""

from __future__ import annotations

import pytest

EXPORTS = pytest.mark.xdist_group("exports")  # the kernels of a table take 100 s to compile
