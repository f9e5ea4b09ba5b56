"""A child of a process that used CUDA is told so, and never waits for its parent's threads.

Those of the core in C are in test_c_source; what is known before a fork is in test_tensor_calls.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, signal, sys, threading
sys.path[:0] = PATHS
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from table_cases import FakeDriver, OnGpu, make_kernel, make_spec, make_table, write_table
from autotune.files.errors import DispatchError
from autotune.runtime.launch import cuda_driver
from autotune.runtime.settle import choices
from autotune.runtime.torch import torch_op
from autotune.runtime.dispatcher import Dispatcher

folder = Path(sys.argv[1])
table = make_table(make_kernel("plain", make_spec()))
driver = FakeDriver(table)
is_within, is_over = threading.Event(), threading.Event()

def held(own):
    def call(*arguments):
        is_within.set()
        is_over.wait()
        return own(*arguments)
    return call

def multiply(runtime, a=(8, 4)):
    arrays = [OnGpu(np.ones(shape, np.float32)) for shape in (a, (4, 6), (8, 6))]
    return runtime.sgemm(*arrays)

def in_child(runtime):
    multiplies = [lambda: multiply(runtime), lambda: multiply(runtime, (8, 5))]
    for call in (*multiplies, lambda: runtime.prepare([(8, 6, 4)]), lambda: runtime.settle([(8, 6, 4)]),
                 runtime.verify_quick, lambda: runtime.pick(8, 6, 4, device=0), runtime.torch,
                 lambda: runtime.record_calls(folder / "calls.json")):
        try:
            call()
        except DispatchError as error:
            assert "forked" in str(error) or call == runtime.torch, error
        else:
            raise AssertionError("no error")
    runtime.pick(8, 6, 4)
    runtime.counts()

def in_fork(work, *arguments):
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            work(*arguments)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        os._exit(1)

def record():
    runtime = Dispatcher(folder / "t", driver=driver)
    Dispatcher._engines = property(held(lambda _: []))
    return lambda: runtime.record_calls(folder / "calls.json"), lambda: multiply(runtime)

def register():
    torch_op.sys = SimpleNamespace(modules={"torch": "torch"})
    torch_op._made = held(lambda *_: (None, "operator"))
    return (Dispatcher(folder / "t").torch_op,) * 2

def export():
    runtime = Dispatcher(folder / "t", deterministic=True)
    choices.KnownChoices.__init__ = held(choices.KnownChoices.__init__)
    return (lambda: runtime.export_choices(folder / "choices.json"),) * 2

def within(make):
    begin, work = make()
    thread = threading.Thread(target=begin)
    thread.start()
    is_within.wait()
    threading.Timer(0.1, is_over.set).start()
    in_fork(work)
    thread.join()

def early(case):
    runtime = Dispatcher(folder / "t", driver=None if case == "cuInit" else driver)
    if case == "none":
        runtime.pick(8, 6, 4)
        in_fork(multiply, runtime)
        multiply(runtime)
    elif case == "refused":
        try:
            multiply(runtime, (8, 5))
        except DispatchError:
            in_fork(in_child, runtime)
    else:
        place, name = (FakeDriver, "load_library") if case == "load" else (cuda_driver.Driver, "__init__")
        setattr(place, name, held(getattr(place, name)))
        def work():
            try:
                multiply(runtime)
            except DispatchError:
                assert case == "cuInit"
        thread = threading.Thread(target=work)
        thread.start()
        is_within.wait()
        in_fork(in_child, runtime)
        is_over.set()
        thread.join()

write_table(table, folder / "t")
for case in ("none", "refused", "load", "cuInit"):
    in_fork(early, case)
for make in (record, register, export):
    in_fork(within, make)
"""


def test_a_child_forked_at_any_moment_is_told(tmp_path: Path) -> None:
    """Free before CUDA is used, not after a refused call, nor while a thread initialises CUDA or loads.
    Where that does not matter, the fork waits for the thread."""
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM.replace("PATHS", repr(paths)), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
