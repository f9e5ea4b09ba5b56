"""Writes docs/manual/numerics.md from raw data: what a product in FP32 is, here and in other libraries.

    python docs/tools/numerics_page.py

`tests/unit/test_docs.py` fails where the page is not what this writes. Rows of other libraries come from
`studies/results/*-numerics.json` (benchmarks/numerics.py); a row that no file has is marked as not run.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from numerics import CONTENDERS  # noqa: E402

PAGE = ROOT / "docs/manual/numerics.md"
RESULTS = ROOT / "studies/results"
OURS = ("h200-tensor-vs-cublas.json.xz", "h100-tensor-vs-cublas.json.xz")
SCALED = "h200-tensor-range.json.xz"
BASE = "torch.mm"  # cublasSgemm
HEAD = """# What FP32 is

`python docs/tools/numerics_page.py` writes this page from raw data. Errors are against float64, divided by
those of `cublasSgemm` on the same operands: by Frobenius, and by the largest element against |A| |B|; the
larger of the two, and of all kinds of operands.

## Classes of accuracy

| class | promise |
|---|---|
| `strict` (default) | FMAs in FP32: the error of adding up k products |
| `fp32` | errors no larger than SGEMM's, in both norms, on five kinds of operands; strict ones serve, too |
| `fp32-range` | the same, and Inf and NaN as in SGEMM; fast where a row's numbers differ by less than 2^29 |

    autotune search --shape 4096 --accuracy fp32 && autotune search --shape 4096
    autotune export-table --accuracy fp32

`sgemm(a, b, accuracy="fp32")`, `Dispatcher(folder, accuracy="fp32")`, `torch(accuracy="fp32")` and, in C,
`autotune_create_accuracy` ask for it; a call that does not is served as before. `fp32-range` is asked for
alike: its tables hold its kernels, for shapes that were searched, and strict ones. `fp32` has kernels on
tensor cores from compute capability 8.0 on, `fp32-range` from 7.5 on; elsewhere strict kernels serve the
class. By their rates, computed and not measured, `fp32` can gain 2.7x on an A100, and nothing on GeForce
cards, whose FMAs are faster than six products of parts
([0113](../decisions/0113-tensor-cores-without-warpgroups.md)); `fp32-range` 2.7x on a Quadro RTX, 1.3x on an
RTX 2080 Ti, less what packing takes ([0118](../decisions/0118-scaled-operands-without-warpgroups.md)).
The search refuses a kernel whose error is larger than SGEMM's on normal, uniform positive, wide (2^-20 to
2^20 by element), scaled (2^-15 to 2^15 by row) or cancelling operands (the second half of k nearly undoes
the first). On 9.0 shapes that were not searched are served by tensor kernels where their sums are surely no
worse than those that cuBLAS may choose ([0092](../decisions/0092-promises-kept-by-depth.md)); settling
measures cuBLAS's, and lets them serve more. Routed products are held to what torch itself would launch for
them ([0121](../decisions/0121-cublas-splits-are-read.md)): with a bias cuBLASLt, which seldom splits k, and
then errs more than `cublasSgemm`. They multiply parts of floats: two of TF32 or three of BF16
(`--where scheme=bf16x6`), which err less and take a tenth longer
([0098](../decisions/0098-three-parts-of-bf16.md)): where k is split, often only these serve.

`fp32-range` multiplies two halves of FP16 instead, of operands that a pass before scales and packs: three
products at twice the rate of TF32. Of each row of A, and column of B, every 64 of k have a scale of their
own; where numbers there differ by more than 2^29, or one is not finite, FMAs in FP32 multiply that block. So
it is slower then, and never less exact.

## A of BF16 or FP16, B of FP32

`sgemm(a, b)` and `linear(x, weight, bias)` take an `a` of bfloat16 or float16 of torch, CuPy or DLPack (for
bfloat16 with `ml_dtypes` installed), and `autotune_sgemm_mixed` does in C, in every class and on every GPU:
the result is that of `a` converted to FP32, which is exact. `activations.float() @ weight` in a program of
torch cannot be seen as such: call one of these instead; `torch()` routes FP32 alone. (No gradients: call it
under `no_grad`.)

    autotune search --shape 64x256x6144 --a-type bf16 --accuracy fp32

finds kernels that read A as it is, and an export for `fp32` holds them: `pick(64, 256, 6144, a_type="bf16")`
tells which serves. BF16 is one part, so three products of BF16 parts of B do (six for FP32). FP16 is one part
of TF32, of which two products do (three), or two of BF16 (five): the search decides. Each is held to the same
promise, beside cuBLAS on the converted A. Everywhere else the call converts A in a workspace first, one pass:
where no such kernel was found, or cuBLAS was faster, on other GPUs, in `strict`, with an epilogue, where A's
rows are no multiple of 4 bytes.
Infinity in such an A gives NaN or infinity in these kernels, NaN of any bits NaN; subnormals count.

What `fp32` does not promise:

- Bits: they depend on tiles and splits, as those of `strict` do without `--order`.
- An error as small as a chain's where neighbours along k cancel, as in a[p + 1] b[p + 1] = -a[p] b[p]:
  there a chain of FMAs has partial sums near 0, and loses next to nothing. Its error, like ours, is then
  far below one rounding of |A| |B|.
- Infinity: an element of C that one is part of is NaN, where SGEMM may have an infinity. So is one that a
  value beyond 3.4e38 (1 - 2^-12) may be part of. NaN gives NaN. `strict` kernels treat all as SGEMM does."""
TRAPS = """
## Traps

- JAX's default for FP32 on Hopper is TF32; its presets are named by what they multiply, not by their error.
- torch's `conv2d`, 1x1 included, is TF32 by default, while `mm` is not.
- `NVIDIA_TF32_OVERRIDE=1` makes cuBLAS use TF32 in programs that never asked; `0` forbids it to all.
- A cuBLAS workspace of 0 makes products slower whose k it splits, and changes their bits.
- cuBLAS's emulation returns success where it runs plain SGEMM: compare bits before you believe a speed.

"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *_ours(), *_scaled(), *_others(), TRAPS])


def _ours() -> Iterator[str]:
    yield "\n## Kernels on tensor cores, measured\n"
    yield (
        "The fastest config that is as accurate as `cublasSgemm` (`benchmarks/tensor_vs_cublas.py --errors`, "
        f"no search; {' and '.join(dict.fromkeys(_read(name)['date'][:10] for name in OURS))}).\n"
    )
    yield "| shape | " + " | ".join(f"{_read(name)['gpu']}: speed | error" for name in OURS) + " |"
    yield "|---|" + "--:|--:|" * len(OURS)
    found = [{one["shape"]: one for one in _read(name)["shapes"]} for name in OURS]
    for shape in found[0]:
        cells = [_cells(of[shape]) if shape in of else "- | -" for of in found]
        yield f"| {shape} | {' | '.join(cells)} |"
    yield ""


def _cells(one: dict[str, Any]) -> str:
    config = dict(pair.split("=") for pair in one["best"].split(","))
    sums = f"{config['promote_k']} {config.get('flush_k', 'fp16x3')}"
    return f"{one['speedup']:.2f}x | {max(one['largest'][sums]):.2f}"


def _scaled() -> Iterator[str]:
    found = _read(SCALED)
    yield f"## Kernels on scaled operands, measured ({found['gpu']}, {found['date'][:10]})\n"
    yield "The fastest config of the class (`--class fp32-range --errors`); scaling and packing count.\n"
    yield "| shape | speed | error | multiplies |"
    yield "|---|--:|--:|---|"
    for one in found["shapes"]:
        parts = "parts of TF32" if "flush_k" in one["best"] else "halves of FP16"
        yield f"| {one['shape']} | {_cells(one)} | {parts} |"
    yield ""


def _others() -> Iterator[str]:
    files = sorted(RESULTS.glob("*-numerics.json"))
    yield "## Other libraries\n"
    for report in (json.loads(path.read_text()) for path in files):
        yield f"{report['gpu']}, {report['shape']}, {report['date'][:10]}:\n"
        yield from _table(report["contenders"])
    if not files:
        yield "Not run yet; on a GPU: `benchmarks/numerics.py --out studies/results/NAME-numerics.json`.\n"
        yield from _table({})


def _table(found: dict[str, Any]) -> Iterator[str]:
    yield "| product | version | setting | speed | error |"
    yield "|---|---|---|--:|--:|"
    for name, contender in CONTENDERS.items():
        one = found.get(name, {"reason": "not run"})
        reason = one.get("reason") or found.get(BASE, {}).get("reason")
        if reason:
            yield f"| {name} | - | {contender.setting} | {reason} | - |"
            continue
        base = found[BASE]
        over = max(
            ours / theirs
            for kind, pair in one["errors"].items()
            for ours, theirs in zip(pair, base["errors"][kind], strict=True)
        )
        speed = base["time_us"] / one["time_us"]
        yield f"| {name} | {one['version']} | {contender.setting} | {speed:.2f}x | {over:.3g} |"
    yield ""


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((RESULTS / name).read_bytes()))
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
