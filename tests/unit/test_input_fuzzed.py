"""Damaged suites, recordings and T1 caches: a UsageError, or something that can be used. Nothing else.

`AUTOTUNE_FUZZ=50000 pytest tests/unit/test_input_fuzzed.py` makes so many mutations of each.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import pytest

from autotune.facts.device import KNOWN, Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.files.errors import AutotuneError, UsageError
from autotune.kernel.config import Config
from autotune.recording.recording_file import write_recording
from autotune.recording.replay import ReplayTarget
from autotune.search import Options, tune
from autotune.store import Store
from autotune.suite import read_suite
from autotune.target import Baseline

NUM_SUITES = mutations.NUM or 200
NUM_RECORDINGS = mutations.NUM or 200
SEARCHED = 40  # one in so many of those that are read is searched, too
GEMMS = Gemm(64, 64, 64), Gemm(64, 128, 64, trans_b=True)
SUITE = {
    "name": "mine",
    "shape": [
        {"m": 64, "n": 64, "k": 64, "kind": "square", "cublas_us": 16.5, "count": 9},
        {"m": 1, "n": 4096, "k": 4096, "layout": "NT", "count": 10**12},
    ],
}


def _measurement(i: int) -> Measurement:
    if i == 3:
        return Measurement(Outcome.COMPILE_FAILED, "error: expected ';'", compile_s=0.5)
    samples = tuple(100.0 + i + j for j in range(4))
    marks = ("drift",) if i == 1 else ()
    facts = {"error_ratio": 0.25, "error_over_cublas": 1.25, "registers": 128, "marks": marks}
    times = {"compile_s": 0.8, "verify_s": 0.001, "measure_s": 0.02}
    return Measurement(Outcome.OK, time_us=100.0, samples_us=samples, **facts, **times)


def _recording(folder: Path, points: list[dict[str, Any]]) -> dict[str, Any]:
    trials = [(point, _measurement(i)) for i, point in enumerate(points)]
    write_recording(
        folder / "whole.gz",
        limits=KNOWN["h200"],
        environment=Environment("NVIDIA H200", "GPU-1", (9, 0), "580.1", "13.0", "13.4", "13.1"),
        policy=CachePolicy.COLD,
        source_hash="5" * 64,
        recorded_on="2026-11-21",
        problems={
            GEMMS[0]: (Baseline(50.0, (49.0, 50.0, 51.0)), trials),
            GEMMS[1]: (Baseline(None), trials[:5]),
        },
    )
    return json.loads(gzip.decompress((folder / "whole.gz").read_bytes()))


def _foreign(folder: Path) -> dict[str, Any]:
    """Of a kernel that is not ours."""
    return _recording(folder, [{"a": 2**i, "b": f"w{i % 2}"} for i in range(6)])


def _ours(folder: Path) -> dict[str, Any]:
    splits = (2, 3, 4, 6, 8, 12)
    return _recording(folder, [Config(split_k=num, reduction="two_pass").to_dict() for num in splits])


def _t1(folder: Path) -> dict[str, Any]:
    path = Path(__file__).parents[1] / "data" / "clblast_t1.json.gz"
    data = json.loads(gzip.decompress(path.read_bytes()))
    data["cache"] = dict(list(data["cache"].items())[:6])
    return data


def _toml(value: Any) -> str:
    """A value as TOML; what TOML lacks, as something that it does not know."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def _as_text(suite: Any) -> str:
    """Top keys as lines, tables of shapes inline."""
    if not isinstance(suite, dict):
        return _toml(suite)
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in suite.items())


def _spoiled(content: bytes, rng: random.Random) -> bytes:
    """With some bytes changed, left out, or repeated."""
    for _ in range(rng.choice((0, 0, 1, 3))):
        at, size = rng.randrange(len(content) + 1), rng.randrange(6)
        put = rng.choice((b"", b"\xff", b"[", b'"', b"9", content[:size]))
        content = content[:at] + put + content[at + size :]
    return content


def test_a_damaged_suite_is_refused_or_read(tmp_path: Path) -> None:
    rng, path, found = random.Random(mutations.SEED), tmp_path / "suite.toml", Counter[bool]()
    for _ in range(NUM_SUITES):
        text = _as_text(mutations.mutated(SUITE, rng))
        path.write_bytes(_spoiled(text.encode("utf-8", "surrogatepass"), rng))
        try:
            gemms = read_suite(path)
        except UsageError as error:
            assert "\n" not in str(error)
            found[False] += 1
        else:
            assert gemms and all(Gemm.parse(str(gemm)) == gemm for gemm in gemms)
            found[True] += 1
    assert min(found[True], found[False]) > NUM_SUITES // 20  # both ways are tried


def _use(path: Path, is_searched: bool) -> None:
    """Everything that a search asks of a recording."""
    target = ReplayTarget(path)
    for gemm in target.gemms:
        target.baseline(gemm)
        limit_us = gemm.limit_us(target.limits.fma_tflops, target.limits.bandwidth_gbs)
        assert math.isfinite(limit_us)
        space = target.space(gemm)
        found = [target.submit(gemm, space.point(i), 1.0).result() for i in range(min(3, len(space)))]
        fine = [space.point(i) for i, measured in enumerate(found) if measured.is_ok]
        assert all(np.isfinite(target.compare(gemm, fine, 3).samples_us).ravel())
        assert math.isfinite(target.now())
    if is_searched:
        with Store.open(path.with_suffix(".db")) as store:
            result = tune(target, store, target.gemms, Options(trials=4, seed=1))
            assert sum(shape.num_trials for shape in result.shapes) > 0
        path.with_suffix(".db").unlink()


@pytest.mark.parametrize("make", [_foreign, _ours, _t1])
@pytest.mark.timeout(3000)
def test_a_damaged_recording_is_refused_or_can_be_searched(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]]
) -> None:
    rng, path, found = random.Random(mutations.SEED), tmp_path / "recording.json", Counter[bool]()
    data = make(tmp_path)
    for number in range(NUM_RECORDINGS):
        text = json.dumps(mutations.mutated(data, rng))
        path.write_bytes(_spoiled(text.encode(), rng) if number % 4 == 0 else text.encode())
        try:
            _use(path, found[True] % SEARCHED == 0)
        except AutotuneError as error:
            assert isinstance(error, UsageError), repr(error)
            found[False] += 1
        except Exception as error:
            raise AssertionError(f"mutation {number} of {make.__name__}, left in {path}") from error
        else:
            found[True] += 1
    assert min(found[True], found[False]) > NUM_RECORDINGS // 50
