"""What compute-sanitizer watches; test_gpu_sanitizer.py runs it under each of its tools.

    sanitized.py spread all|pipelined   every covering instance of the template on small, ragged problems
    sanitized.py tensor all             that on tensor cores, as tests/emulated/tensor_problems.py has it
    sanitized.py mma all                that without warpgroups, as tests/emulated/mma_problems.py has it
    sanitized.py scaled all             that on scaled operands, as tests/emulated/scaled_problems.py has it
    sanitized.py halves all             that on scaled operands without warpgroups, as the same file has it
    sanitized.py table CASES FILE HOW   the kernels that a file lists (benchmarks/sanitize_table.py); HOW the
                                        workspace is found: marked, or unwritten
    sanitized.py plant NAME             a small kernel, right or with one fault (PLANTS)
    sanitized.py mutant NAME            the template with one safeguard taken out (MUTANTS)

Cubins are launched through cuda.bindings alone. A, B, C, packed operands, the workspace behind them, the
bias and what is kept are allocations of their own and end with their last element, so that one element too
far is outside.
`spread` and `table` compare C with float64, print what they ran as JSON, and exit with 1 if anything was
wrong; the others exit with 0 whatever happens on the GPU: the verdict is the tool's.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulated"))

from covering_instances import Instance, all_instances, instance
from emulator import LaunchProblem, LaunchResult, Stored
from mma_problems import instances as mma_instances
from mma_problems import problems as mma_problems
from mutate import mutants_of
from problems import Case, problem, problems
from product_check import WrongProduct, check
from scaled_problems import instances as scaled_instances
from scaled_problems import instances_of_halves
from scaled_problems import problems as scaled_problems
from tensor_problems import instances as tensor_instances
from tensor_problems import problems as tensor_problems

from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.gpu import driver
from autotune.gpu.driver import CudaError
from autotune.gpu.module import Module, pack
from autotune.gpu.sgemm import BatchArgument, EpilogueArgument, ScheduleArgument
from autotune.kernel import template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.kernel.launch import PACK_SMEM_BYTES, PACK_THREADS, Variant
from autotune.kernel.rules import broken_rules
from autotune.kernel.scaled_config import AnyConfig

PIPELINED = ("tiles that fit", "stages go round twice", "ragged", "many tiles")  # cases of problems.py
FLUSHED = "sums flushed twice"  # of configs that do
MARK = np.uint32(0x7FE5A5A5)  # a NaN that no kernel computes: gaps between rows, and what nobody wrote

# One block of 128 threads copies 128 floats to shared memory, and back with each warp's neighbour's.
PLANT = r"""
extern "C" __global__ void sgemm(float* data) {
    __shared__ float tile[128];
    const int i = threadIdx.x;
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile + i));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(data + i + READ_AT) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (HAS_WAIT) asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (HAS_BARRIER && i < REACH_BARRIER) __syncthreads();
    data[i + WRITE_AT] = tile[(i + 32) % 128];
}
"""
_CLEAN = {"READ_AT": 0, "WRITE_AT": 0, "HAS_WAIT": 1, "HAS_BARRIER": 1, "REACH_BARRIER": 128}
PLANTS = {
    "clean": _CLEAN,
    "reads too far": _CLEAN | {"READ_AT": 1},
    "writes too far": _CLEAN | {"WRITE_AT": 1},
    "races": _CLEAN | {"HAS_BARRIER": 0},
    "reads too soon": _CLEAN | {"HAS_WAIT": 0},
    "reads what nobody wrote": _CLEAN,  # it is not uploaded
    "is not met by all": _CLEAN | {"REACH_BARRIER": 100},  # the barrier, within a warp
}
PLANT_FLOATS = 128

# name -> (operator of mutate.py, what stands in the line that it changes)
MUTANTS = {
    "no barrier": ("no barrier", "RAW: tiles are whole"),
    "no check of the edge": (
        "no check of the edge",
        "at_m >= output.m) continue",
    ),  # rows behind the last of C
}
_SMALL = {"bm": 32, "bn": 32, "bk": 8, "wm": 16, "wn": 32, "tm": 4, "tn": 4, "stages": 2}
MUTATED = instance("NN", **_SMALL, vec_a=1, vec_b=1, vec_c=1, copy_a="register", copy_b="register")
MUTATED_CASE = Case("mutated", 49, 49, 40)


def mutant_source(name: str) -> str:
    """The joined template with one safeguard taken out."""
    operator, marker = MUTANTS[name]
    mutants = mutants_of(template.MAIN_FILE, template.source())
    return next(m.text for m in mutants if m.operator == operator and marker in m.before)


class Gpu:
    """The first GPU, its context, and memory that lives until the end of `borrowed`.

    `writes_scratch`: whether memory that kernels are to write first is marked, or left as it is allocated.
    """

    writes_scratch = True

    def __init__(self) -> None:
        gpu = driver.find_gpu("auto")
        self.limits: DeviceLimits = driver.device_limits(gpu.index)
        self.driver = driver.open_driver()
        self.device = driver.check(self.driver.cuDeviceGet, gpu.index)
        driver.check(
            self.driver.cuCtxSetCurrent, driver.check(self.driver.cuDevicePrimaryCtxRetain, self.device)
        )
        non_blocking = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = driver.check(self.driver.cuStreamCreate, int(non_blocking))
        self._borrowed: list[int] = []

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Frees what was uploaded inside, where the context still lives."""
        try:
            yield
            for address in self._borrowed:
                driver.check(self.driver.cuMemFree, address)
        finally:
            self._borrowed = []

    def allocate(self, num_bytes: int) -> int:
        """An allocation of exactly these bytes; a null pointer for none."""
        if not num_bytes:
            return 0
        address = int(driver.check(self.driver.cuMemAlloc, num_bytes))
        self._borrowed.append(address)
        return address

    def upload(self, data: np.ndarray) -> int:
        """`allocate`, and fill."""
        address = self.allocate(data.nbytes)
        self._write(address, data)
        return address

    def scratch(self, num_floats: int, tail: np.ndarray) -> int:
        """So many floats for kernels to write first, and behind them what must be as given."""
        address = self.allocate(4 * num_floats + tail.nbytes)
        if self.writes_scratch:
            self._write(address, np.full(num_floats, MARK))
        self._write(address + 4 * num_floats, tail)
        return address

    def _write(self, address: int, data: np.ndarray) -> None:
        if data.nbytes:
            driver.check(self.driver.cuMemcpyHtoDAsync, address, data.ctypes.data, data.nbytes, self.stream)
            self.wait()

    def download(self, address: int, like: np.ndarray) -> np.ndarray:
        data = np.empty_like(like)
        driver.check(self.driver.cuMemcpyDtoHAsync, data.ctypes.data, address, data.nbytes, self.stream)
        self.wait()
        return data

    def wait(self) -> None:
        driver.check(self.driver.cuStreamSynchronize, self.stream)

    def load(self, code: bytes) -> Module:
        return Module(self.driver, self.device, code)

    def launch(
        self,
        module: Module,
        entry: str,
        grid: tuple[int, int],
        block: int,
        values: Sequence[Any],
        smem: int = 0,
    ) -> None:
        """Launch; it may overlap the one before as an application's launches do."""
        function = module.kernel(entry)
        function.allow_smem(smem)
        is_early = self.limits.has_dependent_launch
        function.launch(self.stream, grid, block, pack(values), smem, overlaps=is_early)


class Operand:
    """Matrices in an allocation of the GPU, from its aligned beginning to their last element."""

    def __init__(self, gpu: Gpu, stored: Stored, *, is_written: bool = False) -> None:
        """Uploads them; those that a kernel is to write first are marked."""
        self._gpu, self._stored = gpu, stored
        count, rows, columns = stored.matrices.shape
        ends = (count - 1) * stored.stride + (rows - 1) * stored.ld + columns
        self._memory = np.full(stored.offset + ends if stored.matrices.size else 0, MARK).view(np.float32)
        if not is_written and stored.matrices.size:
            self._elements(self._memory)[:] = stored.matrices
        self._start = gpu.upload(self._memory)

    def _elements(self, memory: np.ndarray) -> np.ndarray:
        """The matrices inside their memory."""
        strides = (4 * self._stored.stride, 4 * self._stored.ld, 4)
        from_base = memory[self._stored.offset :]
        return np.lib.stride_tricks.as_strided(
            from_base, self._stored.matrices.shape, strides, writeable=True
        )

    @property
    def address(self) -> int:
        """Of the first element; 0 where there is none."""
        return self._start and self._start + 4 * self._stored.offset

    def written(self, what: str) -> np.ndarray:
        """What the matrices are now. Raises WrongProduct where gaps between rows or products were changed."""
        if not self._start:
            return self._stored.matrices
        after = self._gpu.download(self._start, self._memory)
        result = self._elements(after).copy()
        self._elements(self._memory)[:] = result  # all else must be as it was
        if not np.array_equal(self._memory.view(np.uint32), after.view(np.uint32)):
            raise WrongProduct(f"{what}: written between the rows or products")
        return result


def compute(gpu: Gpu, module: Module, p: LaunchProblem) -> LaunchResult:
    """What becomes of a problem. Raises WrongProduct where gaps between rows, or counters, were changed."""
    counters = np.zeros(p.counter_bytes // 4, np.uint32)
    with gpu.borrowed():
        a, b, c, bias = (Operand(gpu, stored) for stored in (p.a, p.b, p.c, p.bias))
        kept = Operand(gpu, p.kept, is_written=True)
        at = gpu.scratch(p.sum_bytes // 4, counters)
        _launch(gpu, module, p, (a, b, c, bias, kept), at)
        gpu.wait()
        result = LaunchResult(c.written(f"{p.name}: C"), kept.written(f"{p.name}: what is kept"))
        if counters.size:
            counters = gpu.download(at + p.sum_bytes, counters)
    if counters.any():
        raise WrongProduct(f"{p.name}: counters of the workspace are not left zero")
    return result


def _launch(
    gpu: Gpu, module: Module, p: LaunchProblem, operands: tuple[Operand, ...], workspace: int
) -> None:
    """All kernels of a problem, one behind the other."""
    addresses = [operand.address for operand in operands]
    a, b, c = map(ctypes.c_void_p, addresses[:3])
    m, n, k, splits = (ctypes.c_int32(x) for x in (p.m, p.n, p.k, p.split_k))
    alpha, beta, sums = ctypes.c_float(p.alpha), ctypes.c_float(p.beta), ctypes.c_void_p(workspace)
    a, lda, stride_a = _packed(gpu, module, p, True, a, p.a)
    b, ldb, stride_b = _packed(gpu, module, p, False, b, p.b)
    ldc = ctypes.c_int64(p.c.ld)
    schedule = ScheduleArgument(*p.schedule)
    batch = BatchArgument(stride_a, stride_b, p.c.stride, p.products)
    epilogue = EpilogueArgument(*addresses[3:], p.kept.ld, p.bias.stride, p.kept.stride)
    values = (m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, sums, splits, schedule, batch, epilogue)
    gpu.launch(module, template.ENTRY, p.size, p.threads, values, p.smem_bytes)
    if p.reduce_blocks:
        counts = (*p.padded, p.reduce_group_bits, p.reduce_blocks_per_product)
        values = (m, n, alpha, beta, c, ldc, sums, splits, *map(ctypes.c_int32, counts))
        values += (ctypes.c_int64(p.c.stride), epilogue)
        size, smem_bytes = (p.reduce_blocks, 1), p.reduce_smem_bytes
        gpu.launch(module, template.REDUCE_ENTRY, size, p.reduce_threads, values, smem_bytes)


def _packed(
    gpu: Gpu, module: Module, p: LaunchProblem, is_a: bool, address: ctypes.c_void_p, stored: Stored
) -> tuple[ctypes.c_void_p, ctypes.c_int64, int]:
    """Address, leading dimension and stride of an operand as sgemm gets it: its copies, if it is packed."""
    for plan in p.packs:
        if plan.is_a == is_a:
            to = ctypes.c_void_p(gpu.scratch(plan.num_bytes // 4, np.empty(0, np.uint32)))
            if p.alpha:
                extents, lead = (ctypes.c_int32(plan.extent), ctypes.c_int32(p.k)), ctypes.c_int64(stored.ld)
                values = (*extents, address, lead, ctypes.c_int32(plan.is_k_major), to)
                values += (ctypes.c_int32(plan.padded), ctypes.c_int32(plan.blocks_per_product))
                grid = (plan.blocks, 1)
                values += (ctypes.c_int64(plan.stride),)
                gpu.launch(module, template.PACK_ENTRY, grid, PACK_THREADS, values, PACK_SMEM_BYTES)
            return to, ctypes.c_int64(plan.padded), plan.packed_stride
    return address, ctypes.c_int64(stored.ld), stored.stride


def instances(limits: DeviceLimits) -> list[Instance]:
    """The covering instances that this GPU can run."""

    def is_legal(one: Instance) -> bool:
        gemm = Gemm(4096, 4096, 4096, one.variant.trans_a, one.variant.trans_b)
        return not broken_rules(one.config, limits, gemm, ("template", "device"))

    return [one for one in all_instances() if is_legal(one)]


def spread(gpu: Gpu, names: Sequence[str]) -> dict[str, Any]:
    """Run and check all instances on the cases of these names (all if empty); what was wrong, and counts."""
    return _spread(
        gpu,
        [
            (one.config, one.variant, _named(one, number, names))
            for number, one in enumerate(instances(gpu.limits))
        ],
    )


def tensor(gpu: Gpu) -> dict[str, Any]:
    """The same of the kernel on tensor cores."""
    return _spread(gpu, [(*one, tensor_problems(*one)) for one in tensor_instances()])


def mma(gpu: Gpu) -> dict[str, Any]:
    """The same of that without warpgroups."""
    return _spread(gpu, [(*one, mma_problems(*one)) for one in mma_instances()])


def scaled(gpu: Gpu) -> dict[str, Any]:
    """The same of that on scaled operands."""
    return _spread(gpu, [(*one, scaled_problems(*one)) for one in scaled_instances()])


def halves(gpu: Gpu) -> dict[str, Any]:
    """The same of that on scaled operands without warpgroups."""
    return _spread(gpu, [(*one, scaled_problems(*one)) for one in instances_of_halves()])


def _spread(gpu: Gpu, chosen: Sequence[tuple[AnyConfig, Variant, Sequence[LaunchProblem]]]) -> dict[str, Any]:
    compiler = Compiler(gpu.limits.arch)
    cubins = [compiler.submit(config, variant) for config, variant, _ in chosen]
    wrong, num_launches = [], 0
    for (config, variant, tasks), cubin in zip(chosen, cubins, strict=True):
        num_launches += len(tasks)
        found = run_all(gpu, variant, cubin.result().code, tasks)
        wrong += [f"{variant} {config.key}: {text}" for text in found]
    compiler.close()
    return {"num_instances": len(chosen), "num_launches": num_launches, "wrong": wrong}


def table(gpu: Gpu, tasks: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Run and check the kernels that are listed, as `spread` does; how often each was launched."""
    wrong: list[str] = []
    launches: dict[str, int] = {}
    for number, task in enumerate(tasks):
        one = Instance(Config(**task["config"]), Variant.from_dict(task["variant"]))
        tasks_of = _named(one, number, names)
        launches[task["id"]] = len(tasks_of)
        found = run_all(gpu, one.variant, Path(task["cubin"]).read_bytes(), tasks_of)
        wrong += [f"{task['id']}: {text}" for text in found]
    return {"launches": launches, "wrong": wrong}


def _named(one: Instance, number: int, names: Sequence[str]) -> list[LaunchProblem]:
    """An instance's problems of these names, all if empty."""
    return [task for task in problems(one, number) if not names or task.name in names]


def run_all(gpu: Gpu, variant: Variant, code: bytes, tasks: Sequence[LaunchProblem]) -> list[str]:
    """One kernel on its problems: what was wrong."""
    module = gpu.load(code)
    wrong = []
    for task in tasks:
        try:
            check(task, compute(gpu, module, task), variant.trans_a, variant.trans_b)
        except (WrongProduct, CudaError) as error:
            wrong.append(f"{task.name}: {error}")
    module.unload()
    return wrong


def plant(gpu: Gpu, name: str) -> None:
    compiler = Compiler(gpu.limits.arch)
    module = gpu.load(compiler.compile_source(PLANT, PLANTS[name]).code)
    compiler.close()
    with gpu.borrowed():
        is_written = name != "reads what nobody wrote"
        zeros = np.zeros(PLANT_FLOATS, np.float32)
        data = ctypes.c_void_p(gpu.upload(zeros) if is_written else gpu.allocate(zeros.nbytes))
        gpu.launch(module, template.ENTRY, (1, 1), PLANT_FLOATS, (data,))
        gpu.wait()


def mutant(gpu: Gpu, name: str) -> None:
    compiler = Compiler(gpu.limits.arch)
    macros = template.macros(MUTATED.config, MUTATED.variant)
    module = gpu.load(compiler.compile_source(mutant_source(name), macros).code)
    compiler.close()
    compute(gpu, module, problem(MUTATED, MUTATED_CASE, split_k=1, seed=1))


def main(deed: str, name: str, *rest: str) -> int:
    gpu = Gpu()
    on_tensor_cores = {"tensor": tensor, "mma": mma, "scaled": scaled, "halves": halves}
    if deed in ("spread", "table", *on_tensor_cores):
        names = (*PIPELINED, FLUSHED) if name == "pipelined" else ()
        if deed in on_tensor_cores:
            facts = on_tensor_cores[deed](gpu)
        elif deed == "spread":
            facts = spread(gpu, names)
        else:
            gpu.writes_scratch = rest[1] == "marked"
            facts = table(gpu, json.loads(Path(rest[0]).read_text(encoding="utf-8")), names)
        print(json.dumps(facts), flush=True)
        return int(bool(facts["wrong"]))
    try:
        {"plant": plant, "mutant": mutant}[deed](gpu, name)
    except (CudaError, WrongProduct) as error:
        print(error, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
