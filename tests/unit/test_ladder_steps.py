"""Reading a ladder that was printed: what is no ladder is refused with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.files.errors import UsageError
from autotune.report.ladder_steps import read_ladder

STEP = {
    "name": "naive", "adds": "a thread for each element", "reason": "", "time_us": 1200.0, "gflops": 223.7,
    "share_of_limit": 0.004, "speedup": 0.01, "samples_us": [1200.0], "kernel": "sgemm_naive",
}  # fmt: skip
ABSENT = {**STEP, "name": "async", "time_us": None, "gflops": None, "share_of_limit": None, "speedup": None}
LADDER = {
    "shape": "512x512x512:NN",
    "environment": {"gpu_name": "NVIDIA H200"},
    "num_rounds": 15,
    "limit_us": 4.5,
    "steps": [STEP, {**ABSENT, "reason": "needs sm_80"}],
}


def written(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_a_ladder_is_read_with_what_could_not_run(tmp_path: Path) -> None:
    found = read_ladder(written(tmp_path / "a.json", LADDER))
    assert (found.shape, found.gpu, found.num_rounds) == ("512x512x512:NN", "NVIDIA H200", 15)
    assert [(step.name, step.time_us, step.reason) for step in found.steps] == [
        ("naive", 1200.0, ""),
        ("async", None, "needs sm_80"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        {**LADDER, "steps": 3},
        {**LADDER, "steps": [{**STEP, "time_us": "long"}]},
        {**LADDER, "steps": [{**STEP, "time_us": -1.0}]},
        {**LADDER, "steps": [{"name": "naive"}]},
        {**LADDER, "environment": None},
        {**LADDER, "num_rounds": 0},
    ],
)
def test_what_is_no_ladder_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(UsageError, match=r"a\.json is no ladder.*autotune ladder --json"):
        read_ladder(written(tmp_path / "a.json", data))


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.json is no ladder: the key 'steps' is missing; name"):
        read_ladder(written(tmp_path / "a.json", {}))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_of_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.json"):
        read_ladder(tmp_path / "a.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json"):
        read_ladder(tmp_path / "none.json")
