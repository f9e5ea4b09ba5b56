"""Nobody's hands: a program's shape is searched, exported, verified, signed, published, and served tuned."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.cli import tables_follow
from autotune.cli.requests import FollowRequest
from autotune.cli.tables_follow import OVERLAP_S, _published_s, _tuned_s
from autotune.files.errors import AutotuneError
from autotune.runtime.service.table_server import _reason
from autotune.store import ChannelKey, RequestState, Store, Wanted, artifacts

from .conftest import ENVIRONMENT, SQUARE
from .runner import REPOSITORY, run
from .test_serve_command import serving

OTHER = "NVIDIA H100 80GB HBM3"
PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
from autotune.runtime.dispatcher import Dispatcher
from table_cases import FakeDriver, OnGpu, make_kernel, make_spec, make_table, write_table
program = Dispatcher(write_table(make_table(make_kernel("own", make_spec())), Path(sys.argv[1])))
program._driver = driver = FakeDriver(program.table)
a = np.ones((512, 512), np.float32)
deadline, hows = time.monotonic() + 250, []
while "exact" not in hows and time.monotonic() < deadline:
    driver.table = program.table  # whose kernels this driver computes
    out = np.zeros_like(a)
    try:
        program.sgemm(OnGpu(a), OnGpu(a), OnGpu(out))
    except Exception:
        if driver.table is program.table:  # else it was exchanged between the two
            raise
        continue
    assert (out == 512).all()
    kernel = driver.launches[-1].kernel_id
    hows.append("own" if kernel == "own" or "default" in kernel else program.pick(512, 512, 512).how)
    time.sleep(0.02)
print(hows[0], hows[-1])
"""


def test_what_was_tuned_since_an_export_began_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = datetime.now(UTC) + timedelta(days=1)  # on the machine that publishes
    monkeypatch.setattr(artifacts, "utc_now", lambda: fast)
    with Store.open(tmp_path / "team.db") as store, store.queue().join("gpu", OTHER) as worker:
        queue, channel = store.queue(), ChannelKey(OTHER, (9, 0), "580", "13.1")
        queue.submit([Wanted(SQUARE)])
        claimed = queue.claim(worker, [OTHER], 60.0)
        assert claimed and queue.finish(claimed, RequestState.TUNED, result={"gpu": OTHER})
        store.artifacts().publish("a" * 64, channel, (b"", b"", b""), {}, "me")  # exported before that end
        tuned_s, published_s = (look(store, OTHER) for look in (_tuned_s, _published_s))
    assert published_s < tuned_s < published_s + 2 * OVERLAP_S


def test_nothing_is_said_of_an_empty_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker with a key begins before anybody has asked for anything."""
    looks = iter([False, False, True])
    request = FollowRequest(tmp_path / "key", "none", gpu_name=OTHER, db=str(tmp_path / "a.db"), seconds=0.01)
    tables_follow._follow(request, is_json=False, is_over=lambda: next(looks, True))
    assert capsys.readouterr() == ("", "")
    with pytest.raises(AutotuneError, match="no kernel"):
        tables_follow.run(replace(request, is_once=True), is_json=False)


def test_what_a_server_gives_as_its_reason_can_be_printed() -> None:
    assert _reason(b'{"error": "too many\\u001b[2J requests"}') == "too many [2J requests"
    assert _reason(b"<html>\x1b\xff\n[1]") == "<html> \N{REPLACEMENT CHARACTER} [1]"
    assert _reason(b"[1]") == "[1]" and len(_reason(b"x" * 10_000)) == 300


@pytest.mark.stress  # some ten seconds: kernels are compiled
def test_a_shape_goes_from_a_program_to_a_search_and_back(recording: Path, tmp_path: Path) -> None:
    db, key = tmp_path / "team.db", tmp_path / "team.key"
    run("tables", "key", key)
    other = json.loads(gzip.decompress(recording.read_bytes()))
    other["environment"]["gpu_name"] = other["limits"]["name"] = OTHER
    (tmp_path / "other.json.gz").write_bytes(gzip.compress(json.dumps(other).encode()))
    gpus = f"replay:{recording},replay:{tmp_path / 'other.json.gz'}"
    run("requests", "add", "--shape", str(SQUARE), "--gpu-name", OTHER, "--db", db)
    with serving("--db", db, "--trust", f"{key}.pub") as (_, address):
        environment = os.environ | {
            "AUTOTUNE_SERVER": address, "AUTOTUNE_SERVER_KEY": f"{key}.pub", "AUTOTUNE_SERVER_SECONDS": "0.1",
            "AUTOTUNE_CACHE": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "tests/unit"))),
        }  # fmt: skip
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "sgemm_own")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            with Store.open(db) as store:
                while len(store.queue().requests()) < 2:
                    assert program.poll() is None, program.communicate()
                    time.sleep(0.05)
                work = ("worker", "--gpu", gpus, "--seconds", "5", "--effort", "quick", "--drain", "--db", db)
                run(*work, "--key", key, "--max-kernels", "0")
                for one in store.queue().requests():
                    assert (one.wanted.gemm, one.state) == (SQUARE, RequestState.TUNED), one.reason
                published = {one.channel.gpu_name for one in store.artifacts().all()}
                assert published == {ENVIRONMENT.gpu_name, OTHER}
            message, fault = program.communicate(timeout=250)
        finally:
            program.kill()
    assert message.split() == ["own", "exact"], fault
