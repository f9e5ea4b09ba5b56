"""What the store's tests have in common: records to store, and programs that other processes run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from autotune.facts.device import Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import GpuState, Measurement, Outcome
from autotune.files.errors import DuplicateTrial
from autotune.kernel.config import Config
from autotune.store import Requested, Store, StudyRef, merging

H200 = Environment("NVIDIA H200", "GPU-1", (9, 0), "580.1", "13.0", "13.4", "13.1")
SQUARE = Gemm(4096, 4096, 4096)
SOURCE = "5" * 64
COMPILER = "nvrtc 13.4"


def study_of(store: Store, gemm: Gemm = SQUARE) -> StudyRef:
    return store.study(H200, SOURCE, COMPILER, gemm)


def config(number: int) -> Config:
    """A different config for each number; nobody here minds that most are illegal."""
    return Config(split_k=number + 1)


def requested(*numbers: int) -> dict[str, Requested]:
    """These configs, as a search claims them."""
    return {config(number).key: Requested(config(number).to_dict(), "") for number in numbers}


def ok(time_us: float) -> Measurement:
    return Measurement(
        Outcome.OK,
        time_us=time_us,
        samples_us=(time_us, time_us + 0.125),
        error_ratio=0.25,
        registers=128,
        spill_bytes=0,
        smem_bytes=49152,
        compile_s=0.5,
        verify_s=0.03125,
        measure_s=0.0625,
        state=GpuState(1980, 3201, 612.5, 61, ("power_cap",)),
    )


def failed(outcome: Outcome = Outcome.FAULTED, reason: str = "illegal address") -> Measurement:
    return Measurement(outcome, reason=reason, registers=255)


def add(store: Store, study: StudyRef, number: int, measurement: Measurement, origin: str = "tpe") -> int:
    point = config(number)
    return store.add_trial(study, point.key, point.to_dict(), measurement, origin)


MEASUREMENTS = [ok(5.0), failed(), ok(3.0), failed(Outcome.SPILLED, "8 bytes"), ok(4.0)]


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.close()


# ---- other processes


def start(program: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Run a program of this file in another process, forked from a clean one that has imported all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["autotune.store.optuna_storage", "optuna"])
    process = context.Process(target=program, args=arguments, daemon=True)
    process.start()
    return process


def write_until_killed(path: Path, report: Path) -> None:
    """Add trials without end; name each in the report once it is committed."""
    out = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Store.open(path) as store:
        study = study_of(store)
        number = len(store.keys(study))
        while True:
            trial_id = add(store, study, number, ok(1.0 + number))
            os.write(out, f"{trial_id}\n".encode())
            number += 1


def add_all(path: Path, numbers: list[int], report: Path) -> None:
    """Add these trials; report those that nobody else had added."""
    added = []
    with Store.open(path) as store:
        study = study_of(store)
        for number in numbers:
            try:
                add(store, study, number, ok(1.0 + number))
            except DuplicateTrial:
                continue
            added.append(number)
    report.write_text(" ".join(map(str, added)), encoding="ascii")


def hold_write_lock(path: Path, is_held: Any, may_end: Any) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    is_held.set()
    may_end.wait(60)


def create(path: Path) -> None:
    Store.open(path).close()


def killed_before(statement: int, program: Callable[..., None], *arguments: Any) -> None:
    """Run a program that is killed when it is about to execute its n-th SQL statement that writes.

    Before a statement that reads, the database is as it is before the next one that writes.
    """
    left = statement

    @event.listens_for(Engine, "before_cursor_execute")
    def count(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        nonlocal left
        left -= not sql.lstrip().startswith(("SELECT", "PRAGMA"))
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    program(*arguments)


def merge_in_small_pages(other: str, mine: str) -> None:
    merging.PAGE = 5
    with Store.open(other) as source, Store.open(mine) as target:
        target.merge(source)


def forget_square(url: str) -> None:
    with Store.open(url) as store:
        store.forget(study_of(store))
