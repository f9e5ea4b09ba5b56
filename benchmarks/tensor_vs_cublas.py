"""FP32 products on tensor cores (kernels/tensor_sgemm.cu, mma_sgemm.cu, scaled_sgemm.cu) beside cublasSgemm:
speed, error.

    python benchmarks/tensor_vs_cublas.py [--shape 4096 ...] [--rounds 15] [--sustained SECONDS] [--errors]
        [--class fp32|fp32-range] [--template mma|halves] [--out studies/results/NAME.json]

Per shape every legal config of `configs` and `torch.mm` with TF32 off, which calls cublasSgemm, run in
interleaved rounds; times are medians. Results are held against float64, by Frobenius and by element against
|A| |B|, and divided by cublasSgemm's errors on the same operands; `--errors` does so for all DISTRIBUTIONS.
The best is the fastest of those whose errors are no larger; without any, of those whose largest is least.
`--sustained`: each of the two alone for so many seconds, and what a card allows: cuBLAS in TF32, BF16, FP16.
`--template`: of a kernel without warpgroups, `halves` with `--class fp32-range`.
Needs torch and a GPU of compute capability 9.0, or with `--template` 8.0 and later.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from autotune.cli import console
from autotune.facts.accuracy_class import FP32, FP32_RANGE
from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.files.output_file import write_file
from autotune.gpu.driver import check, device_limits
from autotune.gpu.sgemm import BatchArgument, EpilogueArgument, ScheduleArgument
from autotune.kernel import launch, resources, template, templates
from autotune.kernel import tensor_config as tensor
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.launch import Variant
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.rules import broken_rules
from autotune.kernel.scaled_config import FP16X3, HalvesConfig, OnTensorCores, ScaledConfig
from autotune.kernel.tensor_config import BF16X6, SCHEMES, TF32X3, TensorConfig

SHAPES = ("1024", "2048", "4096", "8192", "4096:NT", "4096:TN", "4096:TT", "1536", "3000")
TILES = ((64, 1), (64, 2), (128, 1), (128, 2))  # bn, loaders
SUMS = (  # scheme, promote_k, flush_k
    *((TF32X3, 32, 0), (TF32X3, 32, 512), (TF32X3, 16, 512), (TF32X3, 16, 256)),
    *((BF16X6, 32, 0), (BF16X6, 32, 256), (BF16X6, 32, 1024)),
)
SCALED = tuple(  # bn, stages, promote_k
    (bn, stages, promote_k) for bn, stages in ((64, 4), (128, 3), (192, 2)) for promote_k in (32, 64)
)
OF_WARPS = (  # bm, bn, bk, wm, wn, stages
    *((128, 128, 16, 64, 32, 4), (128, 128, 16, 32, 64, 4), (128, 128, 16, 32, 32, 4)),
    *((128, 128, 32, 64, 32, 2), (128, 128, 32, 64, 32, 3), (128, 128, 32, 32, 32, 3)),
    *((128, 64, 16, 64, 32, 4), (128, 64, 32, 64, 32, 3), (64, 128, 32, 32, 64, 3)),
    *((64, 64, 32, 32, 32, 3), (64, 64, 16, 32, 32, 4), (128, 64, 32, 32, 32, 3)),
)
OF_HALVES = ("bm", "bn", "wm", "depth")
ROWS = 512  # of C that are compared with float64
FAST = "cublasSgemm"
MMA = "mma"
WITHOUT_WARPGROUPS = {MMA: MmaConfig, "halves": HalvesConfig}
Make = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]


def _wide(extents: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Exponents from 2^-20 to 2^20, at random."""
    exponents = torch.randint(-20, 21, extents, device="cuda", generator=random)
    return torch.randn(extents, device="cuda", generator=random) * torch.exp2(exponents.float())


def _scaled(extents: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Rows that differ by up to 2^30."""
    exponents = torch.randint(-15, 16, (*extents[:-1], 1), device="cuda", generator=random)
    return torch.randn(extents, device="cuda", generator=random) * torch.exp2(exponents.float())


def _cancelling(extents: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Columns in pairs that are nearly each other's negative."""
    *rows, columns = extents
    half = torch.randn((*rows, (columns + 1) // 2), device="cuda", generator=random)
    other = -half * (1 + 1e-4 * torch.randn_like(half))
    return torch.stack([half, other], -1).flatten(-2)[..., :columns].contiguous()


DISTRIBUTIONS: dict[str, Make] = {
    "normal": lambda extents, random: torch.randn(extents, device="cuda", generator=random),
    "uniform": lambda extents, random: torch.rand(extents, device="cuda", generator=random),
    "wide": _wide,
    "scaled": _scaled,
    "cancelling": _cancelling,
}


def cubin_of(compiler: Compiler, config: OnTensorCores, variant: Variant) -> Cubin:
    main = config.main_file
    return compiler.compile_source(template.source(main), template.macros(config, variant))


class TensorKernel:
    """One compiled config, loaded; raises what compiling and the driver do."""

    def __init__(self, compiler: Compiler, config: OnTensorCores, variant: Variant) -> None:
        from cuda.bindings import driver

        if config.reduction != "none":
            raise ValueError(f"{config.key}: splits need planes and a second kernel, which are not launched")
        torch.zeros(1, device="cuda")  # its context is the one
        self._driver, self.config = driver, config
        of = Gemm(128, 128, 128, variant.trans_a, variant.trans_b, batch=2 if variant.is_batched else 1)
        self.spec = resources.launch_spec(config, of, device_limits(0), epilogue=variant.epilogue)
        self.cubin = cubin_of(compiler, config, variant)
        self._module = check(driver.cuModuleLoadData, self.cubin.code)
        self._function = check(driver.cuModuleGetFunction, self._module, template.ENTRY.encode())
        if self.spec.packs_a or self.spec.packs_b:
            self._pack = check(driver.cuModuleGetFunction, self._module, template.PACK_ENTRY.encode())
        self._workspace = torch.empty(0, device="cuda")
        size = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute, self._function, size, self.spec.smem_bytes)

    def __call__(
        self,
        gemm: Gemm,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        scales: tuple[float, float] = (1.0, 0.0),
        epilogue: EpilogueArgument | None = None,
    ) -> None:
        """Enqueue a product, or a batch, on torch's stream."""
        a, b, c = operands
        grid = launch.plan(self.spec, gemm.m, gemm.n, gemm.k, gemm.strides)
        if self._workspace.nbytes < grid.pack_bytes:
            self._workspace = torch.empty(grid.pack_bytes // 4, device="cuda")
        read = {True: (a.data_ptr(), a.stride(-2)), False: (b.data_ptr(), b.stride(-2))}
        for pack in grid.packs:
            read[pack.is_a] = (self._start_pack(gemm, pack, *read[pack.is_a]), pack.padded)
        values: list[Any] = [
            *map(ctypes.c_int32, (gemm.m, gemm.n, gemm.k)),
            ctypes.c_float(scales[0]), ctypes.c_void_p(read[True][0]), ctypes.c_int64(read[True][1]),
            ctypes.c_void_p(read[False][0]), ctypes.c_int64(read[False][1]),
            ctypes.c_float(scales[1]), ctypes.c_void_p(c.data_ptr()), ctypes.c_int64(c.stride(-2)),
            ctypes.c_void_p(), ctypes.c_int32(1), ScheduleArgument(*launch.schedule(self.spec, grid)),
            BatchArgument(*grid.strides, grid.products), epilogue or EpilogueArgument(),
        ]  # fmt: skip
        self._start(self._function, grid.size, self.spec.threads, self.spec.smem_bytes, values)

    def _start_pack(self, gemm: Gemm, pack: launch.Pack, operand: int, ld: int) -> int:
        """Where the packed operand lies."""
        to: int = self._workspace.data_ptr() + pack.offset
        values = [
            *map(ctypes.c_int32, (pack.extent, gemm.k)), ctypes.c_void_p(operand), ctypes.c_int64(ld),
            ctypes.c_int32(pack.is_k_major), ctypes.c_void_p(to),
            *map(ctypes.c_int32, (pack.padded, pack.blocks_per_product)), ctypes.c_int64(pack.stride),
        ]  # fmt: skip
        self._start(self._pack, (pack.blocks, 1), launch.PACK_THREADS, launch.PACK_SMEM_BYTES, values)
        return to

    def _start(
        self, function: Any, grid: tuple[int, int], threads: int, smem_bytes: int, values: list[Any]
    ) -> None:
        """May begin while the launch before it ends, as in a product."""
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream, arguments = torch.cuda.current_stream().cuda_stream, ctypes.addressof(pointers)
        attributes = [launch.overlap_attribute(self._driver)] if self.spec.overlaps else []
        config = launch.launch_config(self._driver, grid, threads, smem_bytes, stream, attributes)
        check(self._driver.cuLaunchKernelEx, config, function, arguments, 0)


class Errors(NamedTuple):
    """Against float64: ||C - C64|| / ||C64||, Frobenius; the largest |C - C64| / (|A| |B|) of an element."""

    frobenius: float
    by_element: float

    def over(self, others: Errors) -> tuple[float, float]:
        return self.frobenius / others.frobenius, self.by_element / others.by_element


def errors(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Errors:
    """Of the first ROWS of C = A B."""
    a64, b64 = a[..., :ROWS, :].double(), b.double()
    exact, size = a64 @ b64, a64.abs() @ b64.abs()
    apart = (c[..., :ROWS, :].double() - exact).abs()
    return Errors((apart.norm() / exact.norm()).item(), (apart / size).max().item())


def of_warps(limits: DeviceLimits, gemm: Gemm) -> Iterator[MmaConfig]:
    """Legal ones without warpgroups, with the widest vectors."""
    vec_a, vec_b = (4 if lead % 4 == 0 else 1 for lead in (gemm.lda, gemm.ldb))
    vectors: dict[str, Any] = {"vec_a": vec_a, "vec_b": vec_b, "vec_c": 2 - gemm.ldc % 2}
    for tile, scheme, sums in itertools.product(OF_WARPS, SCHEMES, ((16, 0), (32, 0), (16, 256), (32, 512))):
        config = MmaConfig(*tile, *sums, scheme=scheme, **vectors)
        if not broken_rules(config, limits, gemm):
            yield config


def configs(limits: DeviceLimits, gemm: Gemm, accuracy: str, its: str) -> Iterator[OnTensorCores]:
    """Legal ones, with the widest vectors; of a narrower class than is asked for, a few."""
    if its == MMA:
        yield from of_warps(limits, gemm)
        return
    if its:
        for values in itertools.product(*(HalvesConfig.parameters[name].values for name in OF_HALVES)):
            one = HalvesConfig.from_dict(
                {**dict(zip(OF_HALVES, values, strict=True)), "vec_c": 2 - gemm.ldc % 2}
            )
            if not broken_rules(one, limits, gemm):
                yield one
        return
    is_range = accuracy == FP32_RANGE
    if is_range:
        for (bn, stages, promote_k), group in itertools.product(SCALED, (8, 16)):
            scaled = ScaledConfig(bn, stages, promote_k, vec_c=2 - gemm.ldc % 2, group=group)
            if not broken_rules(scaled, limits, gemm):
                yield scaled
    for (bn, loaders), (scheme, promote_k, flush_k), group in itertools.product(
        TILES[-1:] if is_range else TILES, SUMS[:2] + SUMS[5:6] if is_range else SUMS, (8, 16)
    ):
        plain = TensorConfig(
            bn=bn, loaders=loaders, promote_k=promote_k, flush_k=flush_k, group=group, scheme=scheme
        )
        for config in (plain, replace(plain, vec_a=1, vec_b=1, vec_c=1)):
            if not broken_rules(config, limits, gemm):
                yield config
                break


def stored(gemm: Gemm, make: Make, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A and B as they lie in memory, and a C of NaN."""
    random = torch.Generator(device="cuda").manual_seed(seed)
    batch = (gemm.batch,) if gemm.is_batched else ()
    a = make((*batch, *((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k))), random)
    b = make((*batch, *((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n))), random)
    return a, b, torch.full((*batch, gemm.m, gemm.n), torch.nan, device="cuda")


def as_multiplied(gemm: Gemm, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (a.mT if gemm.trans_a else a), (b.mT if gemm.trans_b else b)


# ------------------------------------------------------------------------------------------------
# Measuring


def race(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Samples in us, one of each in every round."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    for _ in range(rounds):
        for name, run in contestants.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            run()
            run()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end) * 1e3 / 2)
    return samples


def sustained_us(run: Callable[[], object], seconds: float) -> float:
    """Of a run, on end."""
    run()
    torch.cuda.synchronize()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(5):
            run()
        torch.cuda.synchronize()
        count += 5
    return (time.perf_counter() - begin) / count * 1e6


def shape_facts(compiler: Compiler, limits: DeviceLimits, gemm: Gemm, args: Any) -> dict[str, Any]:
    variant = Variant(gemm.trans_a, gemm.trans_b, is_batched=gemm.is_batched)
    found_configs = [*configs(limits, gemm, args.accuracy, args.template)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: cubin_of(compiler, one, variant), found_configs))
    kernels = [TensorKernel(compiler, config, variant) for config in found_configs]
    kinds = DISTRIBUTIONS if args.errors else ("normal",)
    made = {name: stored(gemm, DISTRIBUTIONS[name], 1) for name in kinds}
    orders = {_sums(kernel): kernel for kernel in kernels}  # the others that add likewise have its bits
    found: dict[str, Any] = {"shape": str(gemm), "errors": {}, "largest": dict.fromkeys(orders, (0.0, 0.0))}
    for name, (a, b, c) in made.items():
        torch.matmul(*as_multiplied(gemm, a, b), out=c)
        theirs = errors(c, *as_multiplied(gemm, a, b))
        found["errors"][name] = {FAST: theirs}
        for order, kernel in orders.items():
            kernel(gemm, (a, b, c.fill_(torch.nan)))
            ours = errors(c, *as_multiplied(gemm, a, b))
            found["errors"][name][order] = ours
            found["largest"][order] = tuple(map(max, found["largest"][order], ours.over(theirs)))
    accurate = [order for order, over in found["largest"].items() if max(over) <= 1]
    accurate = accurate or [min(orders, key=lambda order: max(found["largest"][order]))]
    a, b, c = made["normal"]
    mm = as_multiplied(gemm, a, b)
    runs: dict[str, Callable[[], object]] = {FAST: lambda: torch.matmul(*mm, out=c)}
    runs |= {kernel.config.key: partial(kernel, gemm, (a, b, c)) for kernel in kernels}
    samples = race(runs, args.rounds)
    times = {name: statistics.median(one) for name, one in samples.items()}
    keys = [kernel.config.key for kernel in kernels if _sums(kernel) in accurate]
    best = min(keys, key=lambda key: times[key])
    found |= {"times_us": times, "samples_us": samples, "best": best, "speedup": times[FAST] / times[best]}
    found["tflops"] = gemm.flops / times[best] / 1e6
    if args.sustained:
        rates = {FAST: runs[FAST], "ours": runs[best]}
        found["sustained_tflops"] = {
            name: gemm.flops / sustained_us(run, args.sustained) / 1e6 for name, run in rates.items()
        }
        found["sustained_tflops"] |= library_rates(gemm, a, b, args.sustained)
    return found


def library_rates(gemm: Gemm, a: torch.Tensor, b: torch.Tensor, seconds: float) -> dict[str, float]:
    """TFLOP/s of cuBLAS in TF32, BF16 and FP16, what tensor cores do here at the card's power limit."""
    found = {}
    for name, kind in (("TF32", torch.float32), ("BF16", torch.bfloat16), ("FP16", torch.float16)):
        torch.backends.cuda.matmul.allow_tf32 = kind is torch.float32
        x, y = (one.to(kind) for one in as_multiplied(gemm, a, b))
        found[name] = gemm.flops / sustained_us(partial(torch.matmul, x, y), seconds) / 1e6
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def _sums(kernel: TensorKernel) -> str:
    """How it sums, as older files tell it of TF32."""
    config = kernel.config
    if isinstance(config, MmaConfig):
        return f"{config.promote_k} {config.flush_k} {MMA} {config.scheme}"
    if isinstance(config, HalvesConfig):
        return f"{config.depth} {FP16X3} mma"
    if isinstance(config, ScaledConfig):
        return f"{config.promote_k} {FP16X3}" + f" {config.bn}" * (config.bn > 128)  # its products, one set
    return f"{config.promote_k} {config.flush_k}" + f" {config.scheme}" * (config.scheme != TF32X3)


def _line(found: Mapping[str, Any]) -> str:
    over = ", ".join(f"{order}: {a:.2f} {b:.2f}" for order, (a, b) in found["largest"].items())
    text = f"{found['shape']}: {found['speedup']:.2f}x {FAST}, {found['tflops']:.1f} TFLOP/s; {found['best']}"
    text += f"; largest errors over its, by promote_k and flush_k (Frobenius, by element): {over}"
    if "sustained_tflops" in found:
        text += (
            f"; sustained { ({name: round(rate, 1) for name, rate in found['sustained_tflops'].items()}) }"
        )
    return text


def main() -> None:
    args = _arguments()
    torch.backends.cuda.matmul.allow_tf32 = False
    limits = device_limits(0)
    compiler = Compiler(limits.arch if args.template else tensor.ARCH)
    report: dict[str, Any] = {
        "benchmark": "tensor_vs_cublas",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "source_hash": templates.source_hash(WITHOUT_WARPGROUPS[args.template])
        if args.template
        else templates.source_of(args.accuracy),
        "accuracy": args.accuracy,
        "shapes": [],
    }
    for text in args.shape or SHAPES:
        report["shapes"].append(shape_facts(compiler, limits, Gemm.parse(text), args))
        console.show(_line(report["shapes"][-1]))
    compiler.close()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_file(args.out, json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", help="4096, 4096x128x4096 or 4096:NT; repeatable")
    parser.add_argument(
        "--class", dest="accuracy", default=FP32, choices=[FP32, FP32_RANGE], help="of kernels"
    )
    parser.add_argument(
        "--template", default="", choices=["", *WITHOUT_WARPGROUPS], help="of a kernel without warpgroups"
    )
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds: samples of each")
    parser.add_argument("--errors", action="store_true", help="on all distributions")
    parser.add_argument("--sustained", type=float, default=0.0, metavar="SECONDS", help="each alone, on end")
    parser.add_argument("--out", type=Path, help="JSON with raw samples")
    return parser.parse_args()


if __name__ == "__main__":
    main()
