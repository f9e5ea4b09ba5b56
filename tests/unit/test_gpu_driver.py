"""Finding a GPU, reading its limits, and what is said where there is none. No driver is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.facts.device import KNOWN
from autotune.files.errors import EnvironmentProblem, UsageError
from autotune.gpu import driver, nvml
from autotune.gpu.driver import CudaError, GpuInfo

FIRST = GpuInfo(0, "NVIDIA H200", "GPU-0a1b2c3d-0000-0000-0000-000000000001", (9, 0), 2**37)
SECOND = GpuInfo(1, "NVIDIA H200", "GPU-0a99ffff-0000-0000-0000-000000000002", (9, 0), 2**37)
GPUS = [FIRST, SECOND]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("auto", FIRST),
        ("0", FIRST),
        ("1", SECOND),
        (SECOND.uuid, SECOND),
        (SECOND.uuid.upper(), SECOND),
        ("GPU-0a1b", FIRST),
        ("0a99ffff", SECOND),
    ],
)
def test_a_selector_finds_its_gpu(selector, expected):
    assert driver.select_gpu(selector, GPUS) == expected


@pytest.mark.parametrize("selector", ["2", "GPU-ffff", "", "GPU-", "h200", "-1"])
def test_a_selector_that_names_none_lists_what_there_is(selector):
    with pytest.raises(UsageError, match=r"names no GPU here.*0: NVIDIA H200"):
        driver.select_gpu(selector, GPUS)


def test_a_selector_that_names_several_is_refused():
    with pytest.raises(UsageError, match="several"):
        driver.select_gpu("GPU-0a", GPUS)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("rtx-4090", "rtx-4090 names a GPU model; pass what this machine has"),
        ("H200", "H200 names a GPU model; pass"),
        ("NVIDIA H200", "NVIDIA H200 names a GPU model; pass"),
        ("rtx4090", r"rtx4090 names a GPU model \(rtx-4090\); pass"),
        ("nonsense!", "nonsense! names no GPU; pass what this machine has"),
        ("", " names no GPU"),
    ],
)
def test_what_names_no_gpu_of_any_machine_is_no_fault_of_the_driver(selector, text):
    with pytest.raises(UsageError, match=text):
        driver.find_gpu(selector)


def test_no_gpu_is_the_environments_problem():
    with pytest.raises(EnvironmentProblem, match=r"sees no GPU.*a recorded space"):
        driver.select_gpu("auto", [])


def _status(code, name="CUDA_ERROR"):
    class Status(int):
        pass

    status = Status(code)
    status.name = name
    return status


def test_checked_calls_unpack_their_results():
    assert driver.check(lambda: (_status(0),)) is None
    assert driver.check(lambda x: (_status(0), x), 5) == 5
    assert driver.check(lambda: (_status(0), 1, 2)) == (1, 2)


@pytest.mark.parametrize(
    ("code", "is_sticky"), [(2, False), (1, False), (700, True), (702, True), (719, True)]
)
def test_a_failing_call_says_which_and_whether_all_is_lost(code, is_sticky):
    def cu_something():
        return (_status(code, "CUDA_ERROR_X"),)

    with pytest.raises(CudaError, match=rf"CUDA_ERROR_X \({code}\) in cu_something") as caught:
        driver.check(cu_something)
    assert caught.value.is_sticky == is_sticky


def _bindings(monkeypatch, **functions):
    """Puts a driver of these functions in the place of cuda.bindings.driver."""
    import cuda.bindings

    monkeypatch.setattr(cuda.bindings, "driver", SimpleNamespace(**functions), raising=False)


def test_a_missing_driver_library_is_named(monkeypatch):
    def absent():
        raise RuntimeError("libcuda.so.1 not found")

    _bindings(monkeypatch, cuDriverGetVersion=absent)
    with pytest.raises(EnvironmentProblem, match=r"no NVIDIA driver was found \(libcuda.so.1 not found\)"):
        driver.open_driver()


def test_an_old_driver_is_refused_with_both_versions(monkeypatch):
    _bindings(monkeypatch, cuDriverGetVersion=lambda: (_status(0), 12080))
    with pytest.raises(EnvironmentProblem, match=r"CUDA 12\.8.*needs 13\.0.*driver 580"):
        driver.open_driver()


@pytest.mark.parametrize(("code", "words"), [(100, "sees no GPU"), (803, "does not start")])
def test_a_driver_that_does_not_start_says_why(monkeypatch, code, words):
    _bindings(
        monkeypatch,
        cuDriverGetVersion=lambda: (_status(0), 13000),
        cuInit=lambda flags: (_status(code, "CUDA_ERROR_Y"),),
    )
    with pytest.raises(EnvironmentProblem, match=f"{words} .*CUDA_ERROR_Y"):
        driver.open_driver()


H200 = {
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "L2_CACHE_SIZE": 60 * 2**20,
    "CLOCK_RATE": 1_980_000,
    "MEMORY_CLOCK_RATE": 3_201_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
}


def test_a_known_gpu_keeps_its_measured_roofline():
    assert driver.limits_from_attributes("NVIDIA H200", (9, 0), H200) == KNOWN["h200"]


def test_an_unknown_gpu_is_computed_from_its_clocks():
    limits = driver.limits_from_attributes("NVIDIA H200 NVL", (9, 0), H200)
    assert limits.fma_tflops == pytest.approx(66.9, rel=0.01)  # the data sheet's figure
    assert limits.bandwidth_gbs == pytest.approx(4917, rel=0.01)
    turing = driver.limits_from_attributes("RTX", (7, 5), {**H200, "MULTIPROCESSOR_COUNT": 48})
    assert turing.fma_tflops == pytest.approx(limits.fma_tflops * 48 / 132 / 2)


def test_a_driver_that_tells_no_clock_still_gives_limits():
    limits = driver.limits_from_attributes("X", (9, 0), {**H200, "CLOCK_RATE": 0, "MEMORY_CLOCK_RATE": 0})
    assert limits.fma_tflops > 0
    assert limits.bandwidth_gbs > 0


def test_throttle_reasons_are_named_and_idling_is_none():
    assert nvml.throttle_names(0x1) == ()
    assert nvml.throttle_names(0x4 | 0x40 | 0x1) == ("sw_power_cap", "hw_thermal_slowdown")


def test_without_nvml_every_answer_is_empty(monkeypatch):
    def absent():
        raise RuntimeError("no NVML")

    monkeypatch.setattr(nvml.Monitor, "_open", staticmethod(absent))
    monitor = nvml.Monitor("GPU-0")
    assert monitor.driver_version() == ""
    assert monitor.state().sm_clock_mhz is None
    assert monitor.processes() is None


def test_what_nvml_refuses_is_left_out(monkeypatch):
    def refuse(*_arguments):
        raise OSError("not supported")

    library = SimpleNamespace(
        device_get_handle_by_uuid=lambda uuid: 1,
        device_get_clock_info=lambda handle, which: 1980 if which == 1 else 3201,
        device_get_power_usage=lambda handle: 650_000,
        device_get_temperature_v=refuse,
        device_get_current_clocks_event_reasons=lambda handle: 0x4,
        FieldValue=refuse,
    )
    monkeypatch.setattr(nvml.Monitor, "_open", staticmethod(lambda: library))
    state = nvml.Monitor("GPU-0").state()
    assert (state.sm_clock_mhz, state.memory_clock_mhz, state.power_w) == (1980, 3201, 650.0)
    assert state.temperature_c is None
    assert state.throttle_reasons == ("sw_power_cap",)
