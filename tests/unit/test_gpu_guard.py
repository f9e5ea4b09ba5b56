"""Disturbances are noticed by what sensors say, and what comes of them; NVML's records as it returns them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cuda.bindings import nvml as real
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts import disturbance
from autotune.facts.measurement import GpuState
from autotune.gpu import nvml
from autotune.gpu.guard import DriftReference, Guard, Guarded

QUIET, HOT, CAPPED = (GpuState(throttle_reasons=r) for r in ((), ("sw_thermal_slowdown",), ("sw_power_cap",)))


class Scene:
    """A clock, a neighbour, and what the GPU's state is at each take."""

    def __init__(self, *states, neighbour=False):
        self.states, self.neighbour = list(states), neighbour
        self.now, self.num_taken, self.num_read, self.reading_us = 0.0, 0, 0, 100.0
        self.guard = Guard(self, now=lambda: self.now, sleep=self.sleep)
        self.slept = []

    def is_neighbour_busy(self):
        return self.neighbour

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def take(self):
        self.num_taken += 1
        self.now += 0.025
        return self.num_taken

    def state(self):
        return self.states[min(self.num_taken, len(self.states)) - 1]

    def read(self):
        self.num_read += 1
        self.now += 0.002
        return self.reading_us

    def run(self, *, has_reference=True):
        reference = DriftReference("problem", self.read, 100.0) if has_reference else None
        return self.guard.take(self.take, self.state, reference)


def test_quiet_samples_are_taken_once():
    scene = Scene(QUIET)
    assert scene.run() == Guarded(1)
    assert scene.slept == []


def test_what_passes_is_waited_for_and_the_disturbed_samples_are_kept():
    scene = Scene(HOT, QUIET)
    assert scene.run() == Guarded(2, (), ((1, ("sw_thermal_slowdown",)),))
    assert scene.slept == [disturbance.PAUSES_S[0]]


def test_what_stays_is_told_after_a_bounded_number_of_repeats():
    scene = Scene(HOT)
    found = scene.run()
    assert found.taken == 1 + disturbance.MAX_REPEATS == 1 + len(found.before)
    assert found.marks == ("sw_thermal_slowdown",)


def test_a_power_cap_is_told_only():
    assert Scene(CAPPED).run() == Guarded(1, ("sw_power_cap",))


def test_drift_is_noticed_and_repeated_until_it_is_over():
    scene = Scene(QUIET)
    scene.run()
    scene.now += 1.0
    scene.reading_us = 110.0
    found = scene.run()
    assert found.marks == ("drift",) and len(found.before) == disturbance.MAX_REPEATS
    scene.reading_us = 100.0
    assert scene.run().marks == ()


def test_a_neighbour_counts_unless_the_reference_says_that_it_is_not_felt():
    assert Scene(QUIET, neighbour=True).run().marks == ("neighbour_unfelt",)
    felt = Scene(QUIET, neighbour=True)
    felt.reading_us = 130.0
    assert felt.run().marks == ("drift", "neighbour")
    assert Scene(QUIET, neighbour=True).run(has_reference=False).marks == ("neighbour",)


@pytest.mark.parametrize("neighbour", [None, False])
def test_the_reference_costs_a_twentieth_of_the_time_at_most(neighbour):
    scene = Scene(QUIET, neighbour=neighbour)
    for _ in range(1000):
        scene.run()
    assert scene.num_read > 10
    assert scene.num_read * 0.002 <= 0.05 * scene.now + 0.002


def test_a_reading_that_is_free_is_always_read():
    scene = Scene(QUIET)
    for _ in range(5):
        scene.guard.take(scene.take, scene.state, DriftReference("problem", scene.read, 100.0, is_free=True))
    assert scene.num_read == 5


# ---- NVML


PIDS = st.frozensets(st.integers(1, 9), max_size=5)


@given(PIDS, PIDS)
def test_this_process_is_the_one_that_appeared(before, after):
    own = nvml.own_process(before, after)
    assert own is None or (own in after and own not in before)
    assert (own is None) == (len(after - before) != 1)
    assert nvml.own_process(None, after) is nvml.own_process(before, None) is None


@given(PIDS, st.none() | st.integers(1, 9))
def test_a_neighbour_is_a_busy_process_that_is_not_this_one(busy, own):
    assert nvml.has_neighbour(busy, own) == (len(busy - {own}) > (own is None))


class NotFoundError(Exception):
    """Named as NVML's, which cannot be made without the library."""


class Library:
    """NVML with the real records: process 7 is ours, `busy` maps others to the time they computed at."""

    def __init__(self):
        self.processes, self.samples, self.energy = [5], [], 0

    def device_get_handle_by_uuid(self, uuid):
        return 1

    def device_get_compute_running_processes_v3(self, handle):
        records = real.ProcessInfo(len(self.processes))
        records.pid = self.processes
        return records

    def device_get_process_utilization(self, handle, since_us):
        if not self.samples:
            raise NotFoundError
        records = real.ProcessUtilizationSample(len(self.samples))  # old ones too, as some drivers do
        records.pid, records.time_stamp, records.sm_util = map(list, zip(*self.samples, strict=True))
        return records

    def device_get_total_energy_consumption(self, handle):
        return 1500


@pytest.fixture
def library(monkeypatch):
    library = Library()
    monkeypatch.setattr(nvml.Monitor, "_open", staticmethod(lambda: library))
    return library


def test_the_monitor_tells_a_busy_neighbour_from_this_process(library):
    library.samples = [(5, 100, 80)]
    monitor = nvml.Monitor("GPU-0")
    before = monitor.processes()
    assert before == {5}
    library.processes = [5, 7]
    monitor.find_own_pid(before)
    assert monitor.is_neighbour_busy() is False  # it was busy before only
    library.samples += [(7, 200, 90), (5, 200, 0)]
    assert monitor.is_neighbour_busy() is False
    library.samples += [(5, 300, 1)]
    assert monitor.is_neighbour_busy() is True
    assert monitor.is_neighbour_busy() is False
    library.samples = []
    assert monitor.is_neighbour_busy() is False
    assert monitor.energy_j() == 1.5


def test_the_monitor_waits_until_this_process_is_listed(library, monkeypatch):
    monitor, looks = nvml.Monitor("GPU-0"), []
    listed, library.processes = library.processes, [*library.processes]

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            library.processes = [*listed, 7]

    monkeypatch.setattr(nvml.time, "sleep", sleep)
    monitor.find_own_pid(frozenset(listed))
    assert (monitor.own_pid, len(looks)) == (7, 3)


def test_the_monitor_does_not_wait_for_ever_to_be_listed(library, monkeypatch):
    monkeypatch.setattr(nvml, "_LISTED_WITHIN_S", 0.05)
    monitor = nvml.Monitor("GPU-0")
    monitor.find_own_pid(frozenset(library.processes))
    assert monitor.own_pid is None


def test_who_computes_in_turns_of_its_own_is_no_neighbour(library):
    monitor = nvml.Monitor("GPU-0")
    library.processes = [5, 6, 7]
    monitor.find_own_pid(frozenset({5, 6}))
    assert monitor.own_pid == 7
    monitor.peers = frozenset({5})
    library.samples = [(7, 100, 90), (5, 100, 80)]
    assert monitor.is_neighbour_busy() is False
    library.samples += [(5, 200, 80), (6, 200, 1)]
    assert monitor.is_neighbour_busy() is True
    monitor.peers = frozenset()
    library.samples += [(5, 300, 80)]
    assert monitor.is_neighbour_busy() is True


def test_without_nvml_neighbours_and_energy_are_unknown(library, monkeypatch):
    monkeypatch.setattr(nvml.Monitor, "_open", staticmethod(lambda: SimpleNamespace()))
    monitor = nvml.Monitor("GPU-0")
    monitor.find_own_pid(monitor.processes())
    assert (monitor.processes(), monitor.is_neighbour_busy(), monitor.energy_j()) == (None, None, None)


def test_what_nvml_does_not_support_is_unknown(library):
    monitor = nvml.Monitor("GPU-0")
    library.device_get_process_utilization = lambda handle, since_us: 1 / 0
    assert monitor.is_neighbour_busy() is None
