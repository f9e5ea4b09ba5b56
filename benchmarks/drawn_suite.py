"""A suite of shapes drawn at random: what nobody chose is what a kernel, or a table, should be judged on.

    python benchmarks/drawn_suite.py --seed 1 [--num 40] [--odd] [--layouts] > SUITE.toml

m and n are log-uniform over 1 ... 16384 and k over 16 ... 65536; shapes whose limit on an H200 is less than
1 us or more than 10 ms are drawn again. `--odd` makes every extent odd; `--layouts` draws the layout too.
Equal arguments draw equal suites.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator

from autotune.gemm import LAYOUTS, Gemm

MOST = 16384  # rows or columns
DEPTHS = (16, 65536)
LIMITS_US = (1.0, 10_000.0)
FMA_TFLOPS, BANDWIDTH_GBS = 65.3, 4290.0  # measured on an H200


def drawn(seed: int, *, is_odd: bool = False, layouts: tuple[str, ...] = ("NN",)) -> Iterator[Gemm]:
    """Shapes without end, the same for equal arguments."""
    rng = random.Random(seed)
    while True:
        m, n, k = (
            round(math.exp(rng.uniform(math.log(least), math.log(most))))
            for least, most in ((1, MOST), (1, MOST), DEPTHS)
        )
        layout = rng.choice(layouts)
        if is_odd:
            m, n, k = m | 1, n | 1, k | 1
        gemm = Gemm(m, n, k, trans_a=layout[0] == "T", trans_b=layout[1] == "T")
        if LIMITS_US[0] <= gemm.limit_us(FMA_TFLOPS, BANDWIDTH_GBS) <= LIMITS_US[1]:
            yield gemm


def _table(gemm: Gemm) -> str:
    layout = "" if gemm.layout == "NN" else f'layout = "{gemm.layout}"\n'
    return f"[[shape]]\nm = {gemm.m}\nn = {gemm.n}\nk = {gemm.k}\n{layout}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num", type=int, default=40)
    parser.add_argument("--odd", action="store_true", help="every extent is odd")
    parser.add_argument("--layouts", action="store_true", help="NN, NT, TN and TT, drawn too")
    args = parser.parse_args()
    shapes = drawn(args.seed, is_odd=args.odd, layouts=LAYOUTS if args.layouts else ("NN",))
    command = f"--seed {args.seed} --num {args.num}{' --odd' * args.odd}{' --layouts' * args.layouts}"
    print(f"# Drawn by `python benchmarks/drawn_suite.py {command}`.\n")
    print("\n".join(_table(next(shapes)) for _ in range(args.num)), end="")


if __name__ == "__main__":
    main()
