"""One GPU, one compiler and one worker for all GPU tests of a file."""

from __future__ import annotations

import pytest

from autotune.gpu import driver, protocol
from autotune.gpu.client import WorkerClient
from autotune.kernel import template
from autotune.kernel.compiler import Compiler


@pytest.fixture(scope="session")
def gpu():
    return driver.find_gpu("auto")


@pytest.fixture(scope="session")
def limits(gpu):
    return driver.device_limits(gpu.index)


@pytest.fixture(scope="session")
def compiler(limits):
    compiler = Compiler(limits.arch)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def client(gpu, limits, compiler):
    checks = compiler.compile_source(template.source("checks.cu"), entry="reference_tiles")
    client = WorkerClient(protocol.Start(gpu.uuid, limits, checks.code))
    yield client
    client.close()


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found
