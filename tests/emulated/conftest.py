"""The builder of host executables, shared by all tests of this folder and kept between runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulator import Builder, remove_oldest

NUM_KEPT = 400  # files of about 1 MB
LONGEST_RUN_S = 3600.0


@pytest.fixture(scope="session")
def builder(pytestconfig: pytest.Config) -> Iterator[Builder]:
    folder = pytestconfig.cache.mkdir("emulated")
    builder = Builder(folder)
    yield builder
    builder.close()
    remove_oldest(folder, NUM_KEPT, LONGEST_RUN_S)
