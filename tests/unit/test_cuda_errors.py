"""One list of the CUDA errors that end a process, held against what the bindings say of each."""

from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda

from autotune.files.errors import STICKY, is_sticky
from autotune.gpu.driver import CudaError
from autotune.runtime.launch.cuda_driver import CudaFault

FINAL = ("inconsistent state", "process must be terminated", "context cannot be used anymore")
KNOWN = {int(result): result for result in cuda.CUresult}


def test_names_are_the_bindings_own() -> None:
    for code, (name, reason) in STICKY.items():
        assert reason
        assert code not in KNOWN or KNOWN[code].name == name


def test_every_error_that_is_said_to_end_the_process_is_listed() -> None:
    said = {code: " ".join((error.__doc__ or "").split()) for code, error in KNOWN.items()}
    ending = {code for code, text in said.items() if any(words in text for words in FINAL)}
    assert not {code for code in ending if not is_sticky(code)}


@pytest.mark.parametrize("code", [*STICKY, 1, 2, 201, 209, 701, 912])
def test_tuner_and_runtime_agree(code: int) -> None:
    is_final = "start the process again" in str(CudaFault("launching a kernel", code, "X"))
    assert CudaError(code, "X", "cuLaunchKernel").is_sticky == is_final == (code in STICKY)
