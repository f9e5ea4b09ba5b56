"""Finds what to measure on: a GPU of this machine, or a recorded space that stands in for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from . import gpu
from .facts.accuracy_class import STRICT
from .facts.device import KNOWN, DeviceLimits, Environment, limits_by_name
from .facts.gemm import FP32, Gemm
from .facts.measurement import CachePolicy
from .facts.other_problem import a_type_of
from .files.errors import EnvironmentProblem, UsageError
from .files.strict import hint
from .files.words import number, option, whole
from .gpu import driver
from .gpu.driver import device_limits, is_selector
from .gpu.gpu_target import GpuTarget
from .kernel import compiler
from .kernel.compiler import Helpers
from .kernel.templates import accuracy_of, source_of
from .recording import matrix
from .recording.matrix import TimeMatrix
from .recording.replay import RATE, PacedReplay, ReplayTarget
from .target import Target

Note = Callable[[str], None]  # notes for the user, a sentence or a few

REPLAY = "replay:"
DEFAULT_LIMITS = "h200"  # shown where there is no GPU to ask: the kind that the shipped recordings are of


def open_target(
    selector: str,
    policy: CachePolicy,
    gemms: Sequence[Gemm] = (),
    max_error: float | None = None,
    *,
    note: Note,
    accuracy: str = STRICT,
    a_type: str = FP32,
    helpers: Helpers | None = None,
) -> Target:
    """What a selector names: `auto`, a GPU by index or UUID, `replay:FILE`. `auto` falls back on a recorded
    space that ships with autotune, and says so by `note`.

    Of several recordings the first that holds all of `gemms` is taken. Kernels whose error is more than
    `max_error` times cuBLAS's cannot win; `accuracy` is the class of all, `a_type` that of A's elements.

    Raises UsageError or EnvironmentProblem if the selector names nothing usable."""
    if selector == REPLAY:
        raise UsageError(f"{option('gpu')} {REPLAY} names no file; write {REPLAY}FILE, or `auto`")
    if selector.startswith(REPLAY):
        path, rate = selector.removeprefix(REPLAY), os.environ.get(RATE)
        kind = partial(PacedReplay, rate=_rate(rate)) if rate else ReplayTarget
        replayed = kind(path, max_error=max_error)
        if replayed.note:
            note(replayed.note)
        return _of_class(replayed, accuracy)
    problem = why_no_gpu() if selector == "auto" else None
    if problem is None:
        return open_gpu(
            selector, policy, gemms, max_error, note=note, accuracy=accuracy, a_type=a_type, helpers=helpers
        )
    recording = default_recording(gemms)
    target = _of_class(ReplayTarget(recording, max_error=max_error), accuracy)
    where = target.environment
    note(
        f"No GPU can be used here: {problem}.\n"
        f"A recorded space stands in for one: {recording.name}, recorded on {where.gpu_name}, "
        f"{where.recorded_on}.\nEvery time below is of that recording, not of this machine; what is "
        "exported is marked so."
    )
    return target


def _of_class(recorded: ReplayTarget, accuracy: str) -> ReplayTarget:
    """Raises UsageError for a recording of kernels of another class."""
    if (found := accuracy_of(recorded.source_hash)) != accuracy:
        raise UsageError(
            f"{option('accuracy')} {accuracy}: the recording holds kernels of accuracy {found}; name a GPU "
            f"by {option('gpu')}, or ask for {found}"
        )
    return recorded


def _rate(text: str) -> float:
    try:
        return number(RATE, float(text), is_above=True)
    except ValueError:
        raise UsageError(f"{RATE} is {text!r}, expected trials a second, as 5") from None


class Selected(NamedTuple):
    """A GPU, or a recording. `model`: equal for those that divide shapes."""

    selector: str
    model: str


def select(selector: str) -> list[Selected]:
    """What a selector names, where it may name several: `all`, `0,1`, a model as `h100`, and several
    recordings as `replay:FILE,replay:FILE`; else itself alone. Raises UsageError, EnvironmentProblem."""
    if selector.startswith(REPLAY):
        paths = selector.removeprefix(REPLAY).split(f",{REPLAY}")
        return [Selected(f"{REPLAY}{path}", path) for path in paths]
    model = limits_by_name(selector)
    if model is None and selector != "all" and "," not in selector:
        return [Selected(selector, "")]
    if model is None and selector != "all":
        found = [gpu.find_gpu(one.strip()) for one in selector.split(",")]
    else:
        name = None if model is None else model.name
        found = [one for one in gpu.list_gpus() if name in (None, one.name) and gpu.is_usable(one)]
    if not found:
        raise EnvironmentProblem(f"{option('gpu')} {selector}: no such GPU is here; see `autotune doctor`")
    return [Selected(one.uuid, one.name) for one in dict.fromkeys(found)]


def selector_of(gpu: str | int | None) -> str:
    """A GPU as the functions of this file take it; None is `auto`. Raises UsageError."""
    if isinstance(gpu, str):
        return gpu
    return "auto" if gpu is None else str(whole(option("gpu"), gpu))


def _need_memory(selector: str, gemms: Sequence[Gemm]) -> None:
    """Raises UsageError for problems too large for this GPU, before any of the others is tuned."""
    if not gemms:
        return
    found = gpu.find_gpu(selector)
    for gemm in gemms:
        if gemm.num_bytes > found.total_bytes:
            raise UsageError(
                f"{gemm}: A, B and C take {gemm.num_bytes / 2**30:.1f} GiB, and {found.name} has "
                f"{found.total_bytes / 2**30:.1f} GiB of memory; leave this shape out or choose a smaller one"
            )


def open_gpu(
    selector: str,
    policy: CachePolicy,
    gemms: Sequence[Gemm] = (),
    max_error: float | None = None,
    *,
    note: Note,
    accuracy: str = STRICT,
    a_type: str = FP32,
    helpers: Helpers | None = None,
) -> GpuTarget:
    """A GPU for what a recording cannot do. Raises UsageError, also if it has too little memory for one of
    these problems, or EnvironmentProblem."""
    refuse_recording(selector)
    _need_memory(selector, gemms)
    kind = {"policy": policy, "max_error": max_error, "accuracy": accuracy, "a_type": a_type}
    return GpuTarget(selector, **kind, note=note, helpers=helpers)  # type: ignore[arg-type]


def refuse_recording(selector: str) -> None:
    """Raises UsageError where a GPU is needed, and a recording is named."""
    if selector.startswith(REPLAY):
        raise UsageError(f"{option('gpu')} {selector}: a recording cannot run kernels; name a GPU")


def why_no_gpu() -> str | None:
    """Why no GPU of this machine can be used, or None if one can."""
    try:
        gpu.find_gpu("auto")
    except EnvironmentProblem as error:
        return str(error).partition(";")[0].partition(" (")[0]
    return None


def installed_here(measured_in: Environment, source_hash: str) -> tuple[Environment, str] | None:
    """What a GPU of this model has on this machine, and the source of the kernel that computes as this one;
    None where no such GPU is, or for a recording."""
    here = None if measured_in.is_recorded else _environment_of(measured_in.gpu_name)
    return None if here is None else (here, source_of(accuracy_of(source_hash), a_type_of(source_hash)))


@cache
def _environment_of(gpu_name: str) -> Environment | None:
    try:
        found = next((one for one in gpu.list_gpus() if one.name == gpu_name), None)
    except EnvironmentProblem:
        found = None
    if found is None:
        return None
    from .gpu import nvml  # here: without a GPU nobody waits for these
    from .gpu.cublas import library_version, load_library

    library = load_library()
    return driver.environment(
        found,
        driver_version=nvml.Monitor(found.uuid).driver_version() or "",
        nvrtc_version=compiler.compiler_version().removeprefix("nvrtc "),
        cublas_version="" if library is None else library_version(library),
    )


def studies_dir() -> Path:
    """Where suites and recorded spaces are: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "studies", package.parent / "studies"):
        if folder.is_dir():
            return folder
    raise EnvironmentProblem(f"no folder `studies` in or beside {package}; reinstall autotune")


def recordings() -> list[Path]:
    """The recorded spaces that ship with autotune, in the order of their names."""
    return sorted((studies_dir() / "recorded").glob("*.gz"))


@cache
def matrices() -> tuple[TimeMatrix, ...]:
    """Times of kernels on drawn shapes that ship with autotune."""
    return tuple(matrix.read(path) for path in sorted((studies_dir() / "matrices").glob("*.gz")))


def default_recording(gemms: Sequence[Gemm] = ()) -> Path:
    """The replacement for a GPU with `--gpu auto`: the first recorded space that holds these problems, else
    the first of all (which then reports what it holds)."""
    shipped = recordings()
    if not shipped:
        raise EnvironmentProblem(
            f"no recorded space in {studies_dir()}; reinstall, or use {option('gpu')} replay:FILE"
        )
    if not gemms:  # to read one takes a second
        return shipped[0]
    return next((path for path in shipped if set(gemms) <= set(ReplayTarget(path).gemms)), shipped[0])


def limits_named(selector: str, *, note: Note) -> DeviceLimits:
    """Limits of a known GPU model (`rtx-4090`), else of a GPU of this machine. Raises UsageError."""
    if (known := limits_by_name(selector)) is not None:
        return known
    if not is_selector(selector):
        raise UsageError(
            f"{option('gpu')} {selector!r} is no GPU of this machine (index, UUID, auto) and no known model "
            f"({hint(selector.lower(), tuple(KNOWN))})"
        )
    return limits_here(selector, note=note)


def limits_here(selector: str, *, note: Note) -> DeviceLimits:
    """Limits of a GPU of this machine; if `auto` finds none, of a known model, with a note."""
    problem = why_no_gpu() if selector == "auto" else None
    if problem is None:
        return device_limits(gpu.find_gpu(selector).index)
    note(f"No GPU can be used here: {problem}. The limits are those of an {KNOWN[DEFAULT_LIMITS].name}.")
    return KNOWN[DEFAULT_LIMITS]
