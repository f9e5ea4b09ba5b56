"""What products in FP32 are in libraries of Python: their error over cublasSgemm's, and their speed.

    python benchmarks/numerics.py --shape 4096 --out studies/results/NAME-numerics.json   # a GPU and torch
    python benchmarks/numerics.py --only torch.mm --shape 1024                 # one of them, as JSON
    python docs/tools/numerics_page.py                                         # docs/manual/numerics.md

Each contender runs in a process of its own, since settings of one library are read once and by all: cuBLAS
from the environment, torch and JAX from globals. Operands are those of `tensor_vs_cublas.DISTRIBUTIONS` by
the same seed, on the same GPU; errors are against float64, by Frobenius and by element against |A| |B|. What
is not installed, or fails, has its reason in the place of figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from autotune.cli import console
from autotune.files.output_file import write_file

Product = Callable[[Any, Any], Any]  # of tensors of torch on the GPU, (m, k) and (k, n) -> (m, n)
EMULATED = {"CUBLAS_EMULATE_SINGLE_PRECISION": "1", "CUBLAS_EMULATION_STRATEGY": "eager"}
ROUNDS = 15
TIME_LIMIT_S = 240


def _torch_mm() -> Product:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    found: Product = torch.mm
    return found


def _torch_tf32() -> Product:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    found: Product = torch.mm
    return found


def _torch_conv() -> Product:
    import torch

    return lambda a, b: torch.nn.functional.conv2d(a.t()[None, :, :, None], b.t()[:, :, None, None])[
        0, :, :, 0
    ].t()


def _jax(preset: str) -> Callable[[], Product]:
    def make() -> Product:
        import jax
        import torch

        chosen = getattr(jax.lax.DotAlgorithmPreset, preset) if preset else None
        multiply = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision=chosen))

        def run(a: Any, b: Any) -> Any:
            c = multiply(jax.dlpack.from_dlpack(a), jax.dlpack.from_dlpack(b))
            return torch.from_dlpack(c.block_until_ready())

        return run

    return make


def _cupy() -> Product:
    import cupy
    import torch

    return lambda a, b: torch.from_dlpack(cupy.from_dlpack(a) @ cupy.from_dlpack(b))


def _triton(precision: str) -> Callable[[], Product]:
    def make() -> Product:
        import torch
        import triton
        import triton.language as tl

        @triton.jit  # type: ignore[untyped-decorator]
        def kernel(a, b, c, n, k, precision: tl.constexpr, size: tl.constexpr, depth: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            rows = tl.program_id(0) * size + tl.arange(0, size)
            columns = tl.program_id(1) * size + tl.arange(0, size)
            along = tl.arange(0, depth)
            sums = tl.zeros((size, size), dtype=tl.float32)
            for first in range(0, k, depth):
                x = tl.load(a + rows[:, None] * k + first + along[None, :])
                y = tl.load(b + (first + along)[:, None] * n + columns[None, :])
                sums = tl.dot(x, y, sums, input_precision=precision)
            tl.store(c + rows[:, None] * n + columns[None, :], sums)

        def run(a: Any, b: Any) -> Any:
            (m, k), n, size = a.shape, b.shape[1], 64
            if m % size or n % size or k % 32:
                raise ValueError("extents must be multiples of 64, and k of 32")
            c = torch.empty((m, n), device=a.device)
            kernel[(m // size, n // size)](a, b, c, n, k, precision, size, 32)
            return c

        return run

    return make


class Contender(NamedTuple):
    library: str  # whose version is told
    setting: str
    make: Callable[[], Product]
    environment: Mapping[str, str] = {}


CONTENDERS: dict[str, Contender] = {
    "torch.mm": Contender("torch", "default, `allow_tf32 = False`", _torch_mm),
    "torch.mm, TF32": Contender("torch", "`allow_tf32 = True`", _torch_tf32),
    "torch conv1x1": Contender("torch", "default", _torch_conv),
    "cuBLAS BF16x9": Contender("torch", "emulation by the environment, eager", _torch_mm, EMULATED),
    "JAX, default": Contender("jax", "none", _jax("")),
    **{
        f"JAX {preset}": Contender("jax", f"`precision={preset}`", _jax(preset))
        for preset in (
            "F32_F32_F32",
            "BF16_BF16_F32_X9",
            "BF16_BF16_F32_X6",
            "BF16_BF16_F32_X3",
            "TF32_TF32_F32_X3",
        )
    },
    "CuPy": Contender("cupy-cuda13x", "default", _cupy),
    **{
        f"Triton {precision}": Contender("triton", f'`input_precision="{precision}"`', _triton(precision))
        for precision in ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    },
}


def measured(name: str, shape: str) -> dict[str, Any]:
    """One contender's errors on each kind of operands, and its samples in us."""
    import torch
    from tensor_vs_cublas import DISTRIBUTIONS, as_multiplied, errors, stored

    from autotune.facts.gemm import Gemm

    gemm, run = Gemm.parse(shape), CONTENDERS[name].make()
    found: dict[str, Any] = {"version": metadata.version(CONTENDERS[name].library), "errors": {}}
    for kind, make in DISTRIBUTIONS.items():
        a, b = as_multiplied(gemm, *stored(gemm, make, 1)[:2])
        found["errors"][kind] = errors(run(a, b), a, b)
    a, b = as_multiplied(gemm, *stored(gemm, DISTRIBUTIONS["normal"], 1)[:2])
    samples = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        run(a, b)
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3)
    return found | {"samples_us": samples, "time_us": statistics.median(samples[2:])}


def in_process(name: str, shape: str) -> dict[str, Any]:
    """The same in a process of its own, or why not."""
    command = [sys.executable, __file__, "--only", name, "--shape", shape]
    environment = {**os.environ, **CONTENDERS[name].environment}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"more than {TIME_LIMIT_S} s"}
    if done.returncode:
        return {"reason": (done.stderr.strip().splitlines() or ["it ended"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="4096", help="a product NN; extents are multiples of 64")
    parser.add_argument("--only", choices=CONTENDERS, help="one contender, in this process")
    parser.add_argument("--out", type=Path, help="JSON of all, with raw samples")
    args = parser.parse_args()
    if args.only:
        console.show(json.dumps(measured(args.only, args.shape)))
        return
    import torch

    report: dict[str, Any] = {
        "benchmark": "numerics",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "shape": args.shape,
        "contenders": {},
    }
    for name in CONTENDERS:
        report["contenders"][name] = found = in_process(name, args.shape)
        console.show(f"{name}: {found.get('reason') or found['time_us']}")
    if args.out:
        write_file(args.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
