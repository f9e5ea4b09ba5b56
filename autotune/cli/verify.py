"""`autotune verify`: whether an exported folder is as it was written, and its kernels right on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import gpu
from .. import target_finder as targets
from ..export.check import RAGGED_BATCH, KernelCheck, ragged_shape, verify_table
from ..export.manifest import Files, GpuModelFiles, check_files
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy, Measurement, Outcome
from ..files.errors import DispatchError, EnvironmentProblem, SlowGpu, UsageError
from ..files.words import counted, few
from ..gpu.driver import OUT_OF_MEMORY
from ..gpu.gpu_target import GpuTarget
from ..gpu.protocol import KernelCode
from ..kernel.launch import NARROW_LD, rejection
from ..runtime.dispatcher import Dispatcher
from ..runtime.launch.cuda_driver import CudaFault
from ..runtime.settle.settling import SLOWER, QuickCheck
from ..runtime.table.gpu_models import GpuModel, no_table
from ..runtime.table.table import Kernel, Table
from . import console
from .requests import VerifyRequest

NO_GPU = "none"
Checks = list[tuple[Kernel, Gemm, Measurement]]
# Beside the shapes that a kernel was tuned for: ragged in every dimension, and smaller than any tile.
ODD_EXTENTS = ((129, 257, 65), (1, 1, 1), (3, 515, 1031))


def run(folder: Path, selector: str, *, is_json: bool) -> None:
    """Check the files of a folder, then run every kernel on its tuned shapes and on odd ones, against float64
    and cuBLAS. With `none` as GPU, nothing is run.

    Raises DispatchError if the folder is damaged or for another GPU, or if a kernel fails; EnvironmentProblem
    where no GPU can be used, once all is told that needs none, or where one had no memory left for a check.
    """
    files = check_files(folder)
    if files.unexpected:
        names = few(files.unexpected)
        console.note(f"{folder} holds files that are not of the export and were not checked: {names}")
    if selector == NO_GPU:
        _tell_files(folder, files, is_json=is_json)
        return
    model, checks = check_kernels(folder, files, selector, is_json=is_json)
    _tell_checks(files, model.table, checks, is_json=is_json)
    judge(folder, checks)


def check_kernels(
    folder: Path, files: Files, selector: str, *, is_json: bool
) -> tuple[GpuModelFiles, Checks]:
    """Run every kernel for a GPU on it. Raises as `run`, but judges nothing."""
    try:
        # nothing is timed: the policy is that of any table
        opened = targets.open_gpu(selector, CachePolicy(files.models[0].table.policy), note=console.note)
    except EnvironmentProblem as problem:
        _tell_files(folder, files, is_json=is_json)
        raise EnvironmentProblem(
            f"no kernel was run: {problem} (--gpu {NO_GPU} checks the files alone)"
        ) from problem
    with closing(opened) as target:
        model = _model_for(files, target.gpu)
        checks = _check(target, model, is_quiet=is_json)
    return model, checks + _check_as_served(folder, model, target.gpu.index)


def judge(folder: Path, checks: Sequence[tuple[Kernel, Gemm, Measurement]]) -> None:
    failed = [one for one in checks if not one[2].is_ok]
    # of wrong kernels first: that a GPU has no memory left says nothing about a folder
    for kernel, gemm, found in sorted(failed, key=lambda one: one[2].outcome is Outcome.OUT_OF_MEMORY):
        text = f"first {kernel.id} on {gemm} ({found.outcome}: {found.reason})"
        if found.outcome is Outcome.OUT_OF_MEMORY:
            raise EnvironmentProblem(
                f"{len(failed)} of {len(checks)} checks found no memory on the GPU, {text}; all others were "
                "right. Other programs may hold it (see `nvidia-smi`): verify again when they have ended"
            )
        raise DispatchError(
            f"{len(failed)} of {len(checks)} checks failed, {text}; do not use {folder}, search and export "
            "again on this GPU"
        )


def _tell_files(folder: Path, files: Files, *, is_json: bool) -> None:
    """What was checked of a folder whose kernels are not run, and what was not."""
    not_checked = ["what the kernels compute", "whether the driver takes them"]
    if is_json:
        console.show_json({**_file_facts(files), "gpu": None, "not_checked": not_checked, "checks": []})
        return
    held = " and ".join(map(_held, files.models))
    console.show(
        f"{folder}/: {counted(files.num_files, 'file')} of the export; {held}: "
        "schema, checksums, launch specs and what cubins say they hold are right.\n"
        f"Not checked: {', '.join(not_checked)}."
    )


def _held(model: GpuModelFiles) -> str:
    gpu_name = model.table.environment.gpu_name
    kernels, cubins = counted(len(model.table.kernels), "kernel"), counted(len(model.code), "cubin")
    order = f", all of which sum in the order {model.table.order}" if model.table.order else ""
    return f"{kernels} in {cubins} for {gpu_name}{order}"


def _file_facts(files: Files) -> dict[str, Any]:
    return {
        "num_files": files.num_files,
        "unlisted": list(files.unexpected),
        "gpus": [model.table.environment.gpu_name for model in files.models],
        "orders": [model.table.order for model in files.models],
        "num_kernels": sum(len(model.table.kernels) for model in files.models),
        "num_cubins": sum(len(model.code) for model in files.models),
    }


def _check(target: GpuTarget, model: GpuModelFiles, *, is_quiet: bool) -> Checks:
    checks = []
    with console.Progress(is_quiet=is_quiet) as progress:
        for kernel, gemm, is_tuned in _cases(model.table):
            progress.update(f"checking {kernel.id} on {gemm}")
            code = KernelCode(model.code[kernel.sha256], kernel.sha256, kernel.spec, accuracy=kernel.accuracy)
            problem = target.problem(gemm)
            if is_tuned and target.environment.cublas_version:  # beside which a promise is held
                problem = replace(problem, accuracy=kernel.accuracy)
            checks.append((kernel, gemm, target.worker.check(problem, code)))
    return checks


def _model_for(files: Files, here: gpu.GpuInfo) -> GpuModelFiles:
    """The table for a GPU. Raises DispatchError where none is."""
    own = GpuModel.of(here.name, here.compute_capability)
    found = [model for one in own.accepted for model in files.models if GpuModel.of_table(model.table) == one]
    if not found:
        raise DispatchError(no_table([model.table for model in files.models], here.index, own))
    return found[0]


def _check_as_served(folder: Path, model: GpuModelFiles, device: int) -> Checks:
    """Kernels with an epilogue on a ragged shape each, by the runtime that serves applications: workers know
    none. Where all kernels sum in one order all of them, bit by bit. If the GPU has no memory left for one,
    this is the result of all that are left."""
    has_order = model.table.order is not None
    kernels = {kernel.id: kernel for kernel in model.table.kernels if has_order or not kernel.is_plain}
    if not kernels:
        return []
    found: list[KernelCheck] = []
    left: Checks = []
    try:
        for check in verify_table(folder, device=device, is_checked=lambda one: one.id in kernels):
            found.append(check)
    except CudaFault as fault:
        if fault.code != OUT_OF_MEMORY:
            raise
        failure = Measurement(Outcome.OUT_OF_MEMORY, str(fault))
        checked = {one.kernel_id for one in found}
        left = [(k, ragged_shape(k), failure) for k in kernels.values() if k.id not in checked]
    for one in found:
        outcome = Outcome.OK if one.is_ok else Outcome.WRONG_RESULT
        measured = Measurement(outcome, one.reason, error_ratio=one.error_ratio)
        left.append((kernels[one.kernel_id], one.gemm, measured))
    return left


def _cases(table: Table) -> Iterator[tuple[Kernel, Gemm, bool]]:
    """Every plain kernel with its tuned shapes and odd ones that it may serve; and whether tuned for that."""
    for kernel in filter(lambda one: one.is_plain, table.kernels):
        tuned = [e.gemm for e in table.entries if kernel.id in {ranked.kernel for ranked in e.ranked}]
        variant, spec = kernel.spec.variant, kernel.spec
        rest = variant.trans_a, variant.trans_b, RAGGED_BATCH if variant.is_batched else 1
        odd = [Gemm(*extents, *rest, a_type=variant.a_type) for extents in ODD_EXTENTS]
        # what the config asks for is met by multiples of its tiles
        feasible = Gemm(2 * spec.bm, 2 * spec.bn, 4 * spec.bk, *rest, a_type=variant.a_type)
        for gemm in dict.fromkeys([*tuned, *odd, feasible]):
            if _serves(kernel, gemm):
                yield kernel, gemm, gemm in tuned


def _serves(kernel: Kernel, gemm: Gemm) -> bool:
    lds = (gemm.lda, gemm.ldb, gemm.ldc)
    fault = rejection(kernel.spec, gemm.m, gemm.n, gemm.k, lds, batch=gemm.strides)
    return max(lds) < NARROW_LD and fault is None


def _tell_checks(
    files: Files, table: Table, checks: Sequence[tuple[Kernel, Gemm, Measurement]], *, is_json: bool
) -> None:
    worst: dict[str, Any] = {}
    for kernel, _, found in checks:
        worst[kernel.id] = max(worst.get(kernel.id, 0.0), found.error_ratio or 0.0)
    if is_json:
        own = "outcome reason error_ratio time_us"
        cases = [
            {"kernel": kernel.id, "shape": str(gemm), **picked(found, own)} for kernel, gemm, found in checks
        ]
        facts = {**_file_facts(files), "num_kernels": len(worst), "not_checked": []}
        console.show_json({"gpu": table.environment.gpu_name, **facts, "checks": cases})
        return
    counts = Counter(kernel.id for kernel, _, _ in checks)
    failed = Counter(kernel.id for kernel, _, found in checks if not found.is_ok)
    known = [kernel.id for kernel in table.kernels if kernel.id in worst]
    rows = [(name, counts[name], failed[name], f"{worst[name]:.2f}") for name in known]
    console.show(console.table(("kernel", "checks", "failed", "error / bound"), rows, right=(1, 2, 3)))


# --------------------------------------------------------------------------------- one kernel alone


def either(request: VerifyRequest, *, is_json: bool) -> None:
    """Check one kernel of a folder, or all of it. Raises as `run_quick` and `run`."""
    check = run_quick if request.is_quick else run
    check(request.table, request.gpu, is_json=is_json)


def run_quick(folder: Path, selector: str, *, is_json: bool) -> None:
    """Check one kernel of a folder on a GPU; `auto`: the first that a table is for. Raises DispatchError
    where the folder cannot be read, is for other GPUs, or the result is wrong, SlowGpu where it takes longer
    than was recorded, EnvironmentProblem where there is no GPU, UsageError where none is asked for."""
    if selector == NO_GPU:
        raise UsageError(f"--quick runs a kernel, which takes a GPU; leave out --quick or --gpu {NO_GPU}")
    runtime = Dispatcher(folder, settle="off", cublas=False, fallback="refuse")
    here = gpu.find_gpu(selector)
    found = runtime.verify_quick(device=None if selector == "auto" else here.index)
    console.answer(_quick_facts(found), lambda: str(found), is_json=is_json)
    _judge_quick(folder, found)


def _judge_quick(folder: Path, found: QuickCheck) -> None:
    if not found.is_right:
        raise DispatchError(
            f"{found.kernel_id} is wrong on GPU {found.device}: do not use {folder} there before `autotune "
            "verify` says what is amiss"
        )
    if not found.is_as_fast:
        raise SlowGpu(
            f"GPU {found.device} takes {found.ratio:.2f} times as long as was recorded, more than "
            f"{SLOWER:g}: `nvidia-smi` tells of other programs, `nvidia-smi -q -d PERFORMANCE,POWER,CLOCK` "
            "of caps and clocks; if it is to stay so, run `autotune search` and export again"
        )


def _quick_facts(found: QuickCheck) -> dict[str, Any]:
    return {
        **picked(found, "device error_ratio time_us recorded_us ratio is_right is_as_fast"),
        "gpu": found.gpu_name,
        "shape": str(found.gemm),
        "kernel": found.kernel_id,
        "differences": list(found.differences),
    }
