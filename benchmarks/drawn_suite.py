"""A suite of shapes drawn at random: kernels and tables should be judged on shapes that nobody chose.

    python benchmarks/drawn_suite.py --seed 1 [--num 40] [--odd | --mixed] [--layouts] [--batches] > NAME.toml

Extents are drawn as autotune/facts/distribution.py says, for an H200. `--odd` makes every extent odd;
`--mixed` rounds those of every second shape up to whole 16s, from 16 on; `--layouts` draws the layout too.
`--batches` draws 2 ... 1024 products, log-uniform, one batch in four with a shared A and one with a shared B.
Equal arguments draw equal suites.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from typing import Any

from autotune.facts import distribution
from autotune.facts.gemm import LAYOUTS, Gemm

SHARED = ("", "", "a", "b")  # one of them for each batch
FMA_TFLOPS, BANDWIDTH_GBS = 65.3, 4290.0  # measured on an H200


def drawn(
    seed: int,
    *,
    is_odd: bool = False,
    is_mixed: bool = False,
    is_batched: bool = False,
    layouts: tuple[str, ...] = ("NN",),
) -> Iterator[Gemm]:
    """Shapes without end, the same for equal arguments."""
    more: dict[str, Any] = {"more": _batch} if is_batched else {}
    return distribution.drawn(
        seed, FMA_TFLOPS, BANDWIDTH_GBS, layouts=layouts, is_odd=is_odd, is_mixed=is_mixed, **more
    )


def _batch(rng: random.Random) -> dict[str, Any]:
    products, shared = distribution.products(rng), rng.choice(SHARED)
    return {**products, "shares_a": shared == "a", "shares_b": shared == "b"}


def _table(gemm: Gemm) -> str:
    lines = ["[[shape]]", f"m = {gemm.m}", f"n = {gemm.n}", f"k = {gemm.k}"]
    lines += [f'layout = "{gemm.layout}"'] if gemm.layout != "NN" else []
    lines += [f"batch = {gemm.batch}"] if gemm.is_batched else []
    lines += [f'shared = "{"A" if gemm.shares_a else "B"}"'] if gemm.shares_a or gemm.shares_b else []
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num", type=int, default=40)
    parser.add_argument("--odd", action="store_true", help="every extent is odd")
    parser.add_argument("--mixed", action="store_true", help="every second shape of whole 16s")
    parser.add_argument("--layouts", action="store_true", help="NN, NT, TN and TT, drawn too")
    parser.add_argument("--batches", action="store_true", help="batches, some with a shared operand")
    args = parser.parse_args()
    layouts = LAYOUTS if args.layouts else ("NN",)
    shapes = drawn(args.seed, is_odd=args.odd, is_mixed=args.mixed, is_batched=args.batches, layouts=layouts)
    command = f"--seed {args.seed} --num {args.num}"
    command += "".join(f" --{name}" for name in ("odd", "mixed", "layouts", "batches") if getattr(args, name))
    print(f"# Drawn by `python benchmarks/drawn_suite.py {command}`.\n")
    print("\n".join(_table(next(shapes)) for _ in range(args.num)), end="")


if __name__ == "__main__":
    main()
