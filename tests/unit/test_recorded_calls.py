"""What a program calls is counted and recorded; nothing is lost, whoever else records, or is killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import (
    STICKY_CODE,
    OnGpu,
    make_kernel,
    make_spec,
    make_table,
)

from autotune.estimate.counts import rendered
from autotune.facts.gemm import FLOAT_BYTES, Gemm
from autotune.files.errors import DispatchError, UsageError
from autotune.kernel.launch import EPILOGUES, PLAIN
from autotune.runtime.choose.chooser import OTHERS, Counted
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.native import core
from autotune.suite import CallSignature, Suite, by_shape, merged, read_calls, read_suite

PROCESS = Path(__file__).parents[1] / "recording_process.py"
NUM_PROCESSES = 8
NUM_KILLS = 6
LOST_S = 1.0  # of calls, at most
EVERY_S = 0.25  # between two writes


def _table() -> Any:
    return make_table(make_kernel("plain", make_spec()), make_kernel("vector", make_spec(vec_a=4)))


def matrix(rows: int, columns: int, ld: int = 0, offset: int = 0) -> Any:
    """On the GPU, rows `ld` apart, so many floats behind an address of 256 bytes."""
    ld = ld or columns
    space = np.ones(rows * ld + 128, np.float32)
    start = (-space.ctypes.data // FLOAT_BYTES) % 64 + offset
    return OnGpu(space[start : start + rows * ld].reshape(rows, ld)[:, :columns])


def call(runtime: Dispatcher, kind: CallSignature) -> None:
    gemm, lds, alignment, _ = kind
    offsets = {4: 1, 8: 2, 16: 4}
    shapes = ((gemm.m, gemm.k), (gemm.k, gemm.n), (gemm.m, gemm.n))
    flags = (gemm.trans_a, gemm.trans_b, False)
    stored = [shape[::-1] if is_t else shape for shape, is_t in zip(shapes, flags, strict=True)]
    a, b, c = (matrix(*shape, ld, offsets[at]) for shape, ld, at in zip(stored, lds, alignment, strict=True))
    runtime.sgemm(a, b, c, trans_a=gemm.trans_a, trans_b=gemm.trans_b)


def drawn_kind(rng: random.Random) -> CallSignature:
    gemm = Gemm(*(rng.randrange(2, 9) for _ in range(3)), rng.random() < 0.5, rng.random() < 0.5)
    wider = rng.choice([0, 0, 3])
    lds = (gemm.lda + wider, gemm.ldb + rng.choice([0, 5]), gemm.ldc + wider)
    return CallSignature(gemm, lds, (rng.choice((4, 8, 16)), rng.choice((4, 16)), rng.choice((8, 16))))


def kinds_of(counts: list[Counted]) -> dict[CallSignature, int]:
    found: Counter[CallSignature] = Counter()
    for counted in counts:
        assert counted.gemm is not None and counted.kernel_id and counted.provider == "autotune"
        found[CallSignature(*counted[:4])] += counted.calls
    return dict(found)


# Counting


def test_every_call_is_counted_by_its_kind_whatever_becomes_of_plans(runtime):
    rng, expected = random.Random(5), Counter()
    kinds = [drawn_kind(rng) for _ in range(60)]
    for number in range(600):
        kind = rng.choice(kinds)
        call(runtime, kind)
        expected[kind] += 1
        if number % 150 == 99:
            runtime._opened[0].of(0).forget_plans()
    assert kinds_of(runtime.counts()) == expected


def test_calls_of_threads_are_counted(runtime):
    kinds = [drawn_kind(random.Random(seed)) for seed in range(4)]

    def work() -> None:
        for _ in range(100):
            for kind in kinds:
                call(runtime, kind)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):  # meanwhile no count goes down
        before = sum(counted.calls for counted in runtime.counts())
        assert sum(counted.calls for counted in runtime.counts()) >= before
    for thread in threads:
        thread.join()
    assert kinds_of(runtime.counts()) == dict.fromkeys(kinds, 400)


def test_what_is_not_served_is_not_counted(runtime, driver):
    a, b, c = matrix(4, 4), matrix(4, 4), matrix(4, 4)
    assert runtime.counts() == []
    runtime.sgemm(a, b, c)
    runtime.sgemm(matrix(4, 0), matrix(0, 4), c)  # it is: C becomes zero
    runtime.sgemm(matrix(0, 4), b, matrix(0, 4))  # nothing to do
    for wrong in ((a, b, a), (a, matrix(5, 4), c)):
        with pytest.raises(DispatchError):
            runtime.sgemm(*wrong)
    driver.launch_error = STICKY_CODE
    with pytest.raises(DispatchError):
        runtime.sgemm(a, b, c)
    assert sorted((str(x.gemm), x.calls) for x in runtime.counts()) == [("4x4x0:NN", 1), ("4x4x4:NN", 1)]


def test_kinds_that_are_too_many_are_counted_together(folder, driver, monkeypatch, tmp_path):
    monkeypatch.setattr(core, "MAX_TALLIES", 3)
    runtime = Dispatcher(folder, driver=driver)
    runtime.record_calls(tmp_path / "calls.json")
    for m in (1, 2, 3, 4, 5, 4, 1):
        runtime.sgemm(matrix(m, 4), matrix(4, 4), matrix(m, 4))
    *known, others = runtime.counts()
    assert (others.gemm, others.calls, sum(counted.calls for counted in known)) == (None, 3, 4)
    until_recorded(tmp_path / "calls.json", 7)
    assert read_calls(tmp_path / "calls.json").others == 3


# Recording


def calls_in(suite: Suite) -> int:
    return suite.others + sum(count or 0 for count in suite.calls.values())


def until_recorded(file: Path, calls: int, seconds: float = LOST_S) -> None:
    """Raises where so many calls are not on the disk within a second (of a machine that may be busy)."""
    end = time.monotonic() + 20 * seconds
    while time.monotonic() < end:
        folder = file.with_name(f"{file.name}.d")
        if folder.is_dir() and list(folder.glob("[!.]*.json")):  # what is half written has a dot
            found = calls_in(read_calls(file))
            assert found <= calls
            if found == calls:
                return
        time.sleep(0.05)
    raise AssertionError(f"of {calls} calls not all are recorded")


def test_what_was_called_before_and_after_is_recorded(runtime, tmp_path):
    file, rng = tmp_path / "calls.json", random.Random(6)
    kinds = [drawn_kind(rng) for _ in range(40)]
    for number, kind in enumerate(kinds):
        call(runtime, kind)
        if number == 20:
            runtime.record_calls(file)
    until_recorded(file, 40)
    call(runtime, kinds[0])
    until_recorded(file, 41)
    suite = read_calls(file)
    assert suite.calls == kinds_of(runtime.counts())
    assert read_suite(file) == by_shape(suite.calls)
    [written] = file.with_name("calls.json.d").iterdir()
    assert json.loads(written.read_text()) == json.loads(rendered(runtime.counts()))
    assert read_calls(written) == suite  # one process's file is a suite, too


def test_a_folder_that_is_removed_meanwhile_is_made_again(runtime, tmp_path):
    file = tmp_path / "calls.json"
    runtime.record_calls(file)
    kind = drawn_kind(random.Random(1))
    call(runtime, kind)
    until_recorded(file, 1)
    for path in (tmp_path / "calls.json.d").iterdir():
        path.unlink()
    (tmp_path / "calls.json.d").rmdir()
    call(runtime, kind)
    until_recorded(file, 2)


def test_the_environment_says_it_too(folder, driver, monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOTUNE_RECORD", str(tmp_path / "calls.json"))
    runtime = Dispatcher(folder, driver=driver)
    call(runtime, drawn_kind(random.Random(2)))
    until_recorded(tmp_path / "calls.json", 1)
    with pytest.raises(DispatchError, match=r"AUTOTUNE_RECORD.*record into one"):
        runtime.record_calls(tmp_path / "other.json")


def test_where_nothing_can_be_written_it_is_said_at_once(runtime, folder, driver, monkeypatch, tmp_path):
    (tmp_path / "taken.json.d").write_text("a file")
    for name in ("no/folder/calls.json", "taken.json", "null\0byte", "", "/", "/dev/null"):
        with pytest.raises(DispatchError, match=r"cannot be recorded in .*; name a file"):
            runtime.record_calls(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.json.d"] and not Path("/.d").exists()
    monkeypatch.setenv("AUTOTUNE_RECORD", str(tmp_path / "no/folder/calls.json"))
    with pytest.raises(DispatchError, match="name a file in a folder that can be written"):
        Dispatcher(folder, driver=driver)


def test_what_cannot_be_written_now_is_told_once_and_written_later(folder, driver, tmp_path, capfd):
    runtime = Dispatcher(folder, driver=driver)
    file, kind = tmp_path / "calls.json", drawn_kind(random.Random(3))
    runtime.record_calls(file)
    call(runtime, kind)
    until_recorded(file, 1)
    (tmp_path / "calls.json.d").rename(tmp_path / "elsewhere")
    (tmp_path / "calls.json.d").write_text("in the way")
    call(runtime, kind)
    time.sleep(3 * EVERY_S)  # it fails more than once
    messages = capfd.readouterr().err
    assert (
        messages.count("\n") == 1
        and f"cannot be recorded in {file}.d (Not a directory); make room" in messages
    )
    (tmp_path / "calls.json.d").unlink()
    until_recorded(file, 2)
    assert not capfd.readouterr().err


def test_a_full_disk_is_told_and_what_was_recorded_stays(folder, tmp_path):
    """As the limit of a file's size: a part is longer than that once many kinds are called."""
    code = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
runpy.run_path(sys.argv[1])["main"](sys.argv[2], sys.argv[3], 50, 3)
"""
    file, paths = tmp_path / "calls.json", os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code, str(PROCESS), str(folder), str(file)], timeout=60, text=True,
        capture_output=True, check=True,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.stderr.count("\n") == 1 and f"recorded in {file}.d (File too large); make room" in done.stderr
    assert not list((tmp_path / "calls.json.d").glob(".*"))


def test_the_parts_of_the_dead_are_removed_and_no_others(runtime, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    host, live_workers, own = os.uname().nodename, os.getppid(), os.getpid()
    left = [f".{host}-{ended.pid}-1f.json", f".{host}-{own}-1f.json", f".else-where-{live_workers}-1f.json"]
    kept = [
        f".{host}-{live_workers}-1f.json", f".{host}-{own}-2f.json", f".else-where-{ended.pid}-2f.json",
        ".notes.json", f".{host}-{ended.pid}-1f.txt", f".{host}-x-1f.json",
    ]  # fmt: skip
    place = tmp_path / "calls.json.d"
    place.mkdir()
    for name in left + kept:
        (place / name).write_text('{"version": 1, "shape": [')
    for name in (*left[1:], kept[0], *kept[3:]):
        os.utime(place / name, (0, 0))
    runtime.record_calls(tmp_path / "calls.json")
    call(runtime, drawn_kind(random.Random(3)))
    until_recorded(tmp_path / "calls.json", 1)
    names = {path.name for path in place.iterdir()}
    assert not names & set(left) and names >= set(kept)


def start(folder: Path, file: Path, num: int, seed: int, **changes: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, str(PROCESS), str(folder), str(file), str(num), str(seed)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths} | changes,
    )  # fmt: skip


@pytest.mark.stress
def test_eight_processes_record_into_one_file(folder, tmp_path):
    file = tmp_path / "calls.json"
    num = [50 + 37 * seed for seed in range(NUM_PROCESSES)]
    started = [start(folder, file, n, seed) for seed, n in enumerate(num)]
    for process in started:
        _, messages = process.communicate(timeout=120)
        assert process.returncode == 0, messages.decode()
    assert len(list((tmp_path / "calls.json.d").iterdir())) == NUM_PROCESSES
    assert calls_in(read_calls(file)) == sum(num)


@pytest.mark.stress
def test_a_kill_at_any_moment_loses_the_last_second_at_most(folder, tmp_path):
    """What is on the disk is at least what was called a second before, and no more than what was called."""
    rng, least, most = random.Random(7), 0, 0
    file = tmp_path / "calls.json"
    for seed in range(NUM_KILLS):
        process = start(folder, file, 0, seed)
        assert process.stdout is not None and process.stdout.read(1) == b"."
        os.set_blocking(process.stdout.fileno(), False)
        came, until = [(time.monotonic(), 1)], time.monotonic() + rng.uniform(0, 3)
        while time.monotonic() < until:
            came.append((time.monotonic(), came[-1][1] + len(process.stdout.read() or b"")))
            time.sleep(0.01)
        killed_s = time.monotonic()
        process.kill()
        os.set_blocking(process.stdout.fileno(), True)
        made = came[-1][1] + len(process.stdout.read())
        process.wait()
        process.stdout.close()
        least += max((calls for at_s, calls in came if at_s < killed_s - LOST_S), default=0)
        most += made + 1  # it may have been killed between a call and its byte
        assert process.stderr is not None
        with process.stderr:
            assert not process.stderr.read()
        notes: list[str] = []
        is_any = any(tmp_path.glob("*.d/[!.]*.json"))
        found = calls_in(read_calls(file, notes.append)) if is_any else 0
        assert least <= found <= most and not notes, (least, found, most)
    assert found


_FORKS = """
import os, sys, runpy, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of threads: that is what this is about
process = runpy.run_path(sys.argv.pop(1))
if sys.argv[5] == "before":  # each for itself
    os.fork()
process["main"](sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
if sys.argv[5] == "after" and not os.fork():
    sys.exit(0)  # with all that is done at exit
"""


@pytest.mark.parametrize(("timestamp", "times"), [("before", 2), ("after", 1)])
def test_a_fork_writes_nothing_of_its_parent_s(folder, tmp_path, timestamp, times):
    file = tmp_path / "calls.json"
    arguments = [str(PROCESS), str(folder), str(file), "40", "1", timestamp]
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, *arguments], capture_output=True, check=True, timeout=60,
        env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    until_recorded(file, 40 * times)
    time.sleep(2 * EVERY_S)
    assert calls_in(read_calls(file)) == len(done.stdout) == 40 * times


def test_a_fork_between_asking_and_the_first_call_records_for_itself(folder, tmp_path):
    code = """
import os, sys, runpy
from pathlib import Path
sys.argv[1:] = sys.argv[2:]
process = runpy.run_path({process!r})
Dispatcher, record = process["Dispatcher"], process["Dispatcher"].record_calls
def forking(self, file):
    record(self, file)
    self._opened or self._open()
    os.fork()
Dispatcher.record_calls = forking
process["main"](sys.argv[1], sys.argv[2], 25, 3)
"""
    file, paths = tmp_path / "calls.json", os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "-c", code.format(process=str(PROCESS)), "-", str(folder), str(file)],
        check=True, timeout=60, capture_output=True, env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    until_recorded(file, 50)


# Merging


_KINDS = st.builds(
    lambda gemm, wider, *more: CallSignature(
        gemm, tuple(ld + wider for ld in CallSignature.packed(gemm).lds), *more
    ),
    st.builds(Gemm, *3 * [st.integers(1, 3)], st.booleans(), st.booleans()),
    st.integers(0, 1),
    st.sampled_from([(16, 16, 16), (4, 16, 8)]),
    st.sampled_from([PLAIN, *EPILOGUES.values()]),
)
_SUITES = st.builds(Suite, st.dictionaries(_KINDS, st.integers(1, 10**9), max_size=5), st.integers(0, 99))


@given(st.lists(_SUITES, max_size=6), st.integers(0, 6), st.randoms(use_true_random=False))
def test_merging_is_the_same_in_any_order_and_loses_nothing(suites, at, rng):
    whole = merged(suites)
    assert calls_in(whole) == sum(map(calls_in, suites))
    assert merged([merged(suites[:at]), merged(suites[at:])]) == whole
    rng.shuffle(suites)
    assert merged(suites) == whole
    assert merged([]) == Suite({}, 0)


@given(_SUITES)
def test_what_is_written_is_read(tmp_path_factory, suite):
    counts = [Counted(*kind, "plain", 1, "autotune", count or 0) for kind, count in suite.calls.items()]
    others = OTHERS._replace(calls=suite.others)
    path = tmp_path_factory.mktemp("written") / "calls.json"
    path.write_text(rendered([*counts, others]))
    if suite.calls or suite.others:
        assert read_calls(path) == suite
    else:
        with pytest.raises(UsageError, match="holds no shape"):
            read_calls(path)


def test_a_record_of_the_first_version_is_read(tmp_path):
    path = tmp_path / "calls.json"
    row = '{"m": 4, "n": 8, "k": 4, "layout": "NT", "ld": [4, 4, 8], "align": [16, 16, 16], "count": 3}'
    path.write_text(f'{{"version": 1, "shape": [\n{row}\n], "others": 2}}\n')
    assert read_calls(path) == Suite({CallSignature.packed(Gemm(4, 8, 4, trans_b=True)): 3}, 2)


def written(folder: Path, name: str, *rows: dict[str, Any]) -> Path:
    counts = [
        Counted(*k, "plain", 1, "autotune", row["count"])
        for row in rows
        for k in [CallSignature.packed(Gemm(row["m"], 4, 4))]
    ]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(rendered(counts))
    return folder / name


ROWS = ({"m": 1, "count": 5}, {"m": 2, "count": 6}, {"m": 3, "count": 7})


def test_a_damaged_line_is_told_and_left_out(tmp_path):
    file = tmp_path / "calls.json"
    corrupted = written(tmp_path / "calls.json.d", "a.json", *ROWS)
    written(tmp_path / "calls.json.d", "b.json", *ROWS)
    corrupted.write_text(corrupted.read_text().replace('"m": 2', '"m": \x00'))
    notes: list[str] = []
    assert calls_in(read_calls(file, notes.append)) == 2 * 18 - 6
    [note] = notes
    assert str(corrupted) in note and "1 of its lines cannot be read and are left out, 2 shapes can" in note


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.99])
def test_a_file_that_is_cut_off_keeps_its_whole_lines(tmp_path, share):
    cut = written(tmp_path / "calls.json.d", "a.json", *ROWS)
    written(tmp_path / "calls.json.d", "b.json", *ROWS)
    text = cut.read_text()
    cut.write_text(text[: int(share * len(text))])
    notes: list[str] = []
    found = calls_in(read_calls(tmp_path / "calls.json", notes.append)) - 18
    assert found in (0, 5, 11, 18) and len(notes) == 1
    assert found == sum(
        n
        for row, n in zip(text.splitlines()[1:4], (5, 6, 7), strict=True)
        if row.rstrip(",") in cut.read_text()
    )


@given(st.integers(0, 400), st.binary(min_size=1, max_size=5))
def test_no_damage_stops_the_reader(tmp_path_factory, at, found):
    folder = tmp_path_factory.mktemp("damaged")
    corrupted = written(folder / "calls.json.d", "a.json", *ROWS)
    written(folder / "calls.json.d", "b.json", *ROWS)
    content = corrupted.read_bytes()
    corrupted.write_bytes(content[:at] + found + content[at + len(found) :])
    assert calls_in(read_calls(folder / "calls.json")) >= 18


def test_what_is_written_beside_and_not_yet_renamed_is_no_file(tmp_path):
    written(tmp_path / "calls.json.d", "a.json", *ROWS)
    written(tmp_path / "calls.json.d", ".b.json", *ROWS)
    assert calls_in(read_calls(tmp_path / "calls.json")) == 18


def test_a_file_of_its_own_is_merged_with_what_is_recorded_beside(tmp_path):
    written(tmp_path, "calls.json", *ROWS[:1])
    written(tmp_path / "calls.json.d", "a.json", *ROWS)
    assert calls_in(read_calls(tmp_path / "calls.json")) == 23
    (tmp_path / "calls.json").write_text('{"shape": [{"m": 1, "n": 1, "k": 1}]}')
    with pytest.raises(UsageError, match=r"counts no calls.*move one of them away"):
        read_calls(tmp_path / "calls.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a suite"),
        ('{"shape": []}', "holds no shape"),
        ('{"shape": [{"m": 1, "n": 1, "k": 1, "count": NaN}]}', "NaN is no number"),
        ('{"version": 0, "shape": [{"m": 1}]}', "version: expected a whole number"),
        ('{"others": -1, "shape": []}', "others: expected a whole number"),
        ('{"shape": [{"m": 1, "n": 1, "k": 1, "ld": [1, 1]}]}', "shape 1: ld: expected 3 items"),
        ('{"shape": [{"m": 1, "n": 1, "k": 1, "ld": [1, 1, 0]}]}', "shape 1: ld: expected a whole number"),
        ('{"shape": [{"m": 2, "n": 3, "k": 1, "ld": [1, 3, 2]}]}', "ld of C is 2, less than its rows of 3"),
        ('{"shape": [{"m": 1, "n": 1, "k": 1, "align": [4, 8, 12]}]}', "each is 4, 8 or 16 bytes"),
        ('{"shape": [{"m": 1, "n": 1, "k": 1, "activation": "relu"}]}', "unknown key 'activation'"),
    ],
)
def test_what_is_no_recorded_suite_is_refused(tmp_path, text, message):
    path = tmp_path / "calls.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_calls(path)
    assert "record it again, or write it in TOML" in str(caught.value)


def test_a_suite_in_toml_has_leading_dimensions_and_alignment_too(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(
        "[[shape]]\nm = 2\nn = 3\nk = 4\nlayout = 'NT'\nld = [8, 5, 3]\nalign = [4, 8, 16]\ncount = 2\n"
    )
    gemm = Gemm(2, 3, 4, trans_b=True)
    assert read_calls(path).calls == {CallSignature(gemm, (8, 5, 3), (4, 8, 16)): 2}
    assert read_suite(path) == {gemm: 2}


def test_where_nothing_was_recorded_it_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"no suite at .*calls.json; name an existing file"):
        read_calls(tmp_path / "calls.json")
    (tmp_path / "calls.json.d").mkdir()
    for text in (None, "nothing"):  # a program that called nothing makes the folder
        if text is not None:
            (tmp_path / "calls.json.d" / "a.json").write_text(text)
        with pytest.raises(UsageError, match="holds no call; run a program that records into"):
            read_calls(tmp_path / "calls.json")


def test_a_record_of_a_newer_version_is_said_to_be_newer(tmp_path):
    """Whatever else it holds, and beside others; it is not damaged, and not to be removed."""
    file = tmp_path / "calls.json"
    newer = written(tmp_path / "calls.json.d", "b.json", *ROWS)
    newer.write_text(newer.read_text().replace('"version": 2', '"version": 3, "hosts": []'))
    with pytest.raises(
        UsageError, match=r"b.json is a suite of version 3, newer than 2, .*use a newer autotune"
    ):
        read_calls(file)
    written(tmp_path / "calls.json.d", "a.json", *ROWS)
    notes: list[str] = []
    assert calls_in(read_calls(file, notes.append)) == 18
    [note] = notes
    assert "version 3, newer than 2" in note and "damaged" not in note and "remove" not in note
    suite = tmp_path / "suite.toml"
    suite.write_text("version = 3\nhosts = []\n[[shape]]\nm = 1\nn = 1\nk = 1\n")
    with pytest.raises(
        UsageError, match=r"version 3, newer than 2, which this code reads; use a newer autotune$"
    ):
        read_suite(suite)


def test_who_reads_many_records_hears_how_far_it_is(tmp_path):
    for name in "abc":
        written(tmp_path / "calls.json.d", f"{name}.json", *ROWS)
    messages: list[tuple[int, int]] = []
    read_calls(tmp_path / "calls.json", on_read=lambda *far: messages.append(far))
    assert messages == [(1, 3), (2, 3), (3, 3)]
