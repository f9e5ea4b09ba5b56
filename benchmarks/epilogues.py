"""The cost and the gain of an epilogue: kernels with bias and GELU beside the plain one and torch.

    python benchmarks/epilogues.py --db autotune.db [--shape 4096 --shape 2048x4096x4096:NT] [--gpu 0]
        [--rounds 41] [--out studies/results/NAME.json]

Per shape, with the kernel that the database holds for the plain product: the plain product, the same kernel
with a bias along columns, with bias and each activation, and with a second output before GELU. torch computes
bias and GELU by its best eager calls, addmm with the bias and then gelu, into preallocated memory. All
run in interleaved rounds on the same operands; each ratio is the median of the ratios within rounds. Every
result, also the second output, is compared with torch in float64 before and after.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import reports
from contest import Arena, Contestant, WrongContestant

from autotune.cli import common, console
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import read_policy
from autotune.files.errors import EnvironmentProblem
from autotune.gpu.memory import OperandSet, Workspace
from autotune.gpu.problem import PreparedProblem
from autotune.gpu.sgemm import EpilogueArgument
from autotune.kernel.config import Config
from autotune.kernel.launch import ACTIVATIONS, PLAIN, Epilogue

SHAPES = ("4096", "2048x4096x4096:NT")  # NT: the weight of torch.nn.Linear is stored out x in
PLAIN_NAME, TORCH_NAME = "plain", "torch addmm + gelu"
EPILOGUES = (
    Epilogue(bias="columns"),
    *(Epilogue(bias="columns", activation=activation) for activation in ACTIVATIONS[1:]),
    Epilogue(bias="columns", activation="gelu", keeps=True),
    Epilogue(bias="rows", activation="gelu"),
)
COMPARED = str(Epilogue(bias="columns", activation="gelu"))  # with torch
TOLERANCE = 2e-5  # of the largest element: float32 sums of normal numbers, k of some thousands


@dataclass(frozen=True)
class Arrays:
    """What epilogues read and write besides A, B and C: torch tensors on the GPU."""

    bias_rows: Any  # (m,)
    bias_columns: Any  # (n,)
    kept: Any  # (m, n)

    def argument(self, epilogue: Epilogue) -> EpilogueArgument:
        bias = {"rows": self.bias_rows, "columns": self.bias_columns}.get(epilogue.bias)
        return EpilogueArgument(
            bias=0 if bias is None else bias.data_ptr(),
            kept=self.kept.data_ptr(),
            ld_kept=self.kept.shape[1],
        )


class Bench:
    """One shape on an open GPU."""

    def __init__(self, arena: Arena, gemm: Gemm, prepared: PreparedProblem) -> None:
        import torch

        self.torch, self.arena, self.gemm, self.prepared = torch, arena, gemm, prepared
        assert arena.torch is not None
        self.stream = arena.torch.stream
        device = f"cuda:{arena.gpu.index}"
        generator = torch.Generator(device).manual_seed(1)
        self.arrays = Arrays(
            torch.randn(gemm.m, device=device, generator=generator),
            torch.randn(gemm.n, device=device, generator=generator),
            torch.zeros(gemm.m, gemm.n, device=device),
        )
        self.tensors = {operands: arena.torch.tensors(gemm, operands) for operands in prepared.operands.sets}
        a, b, _ = self.tensors[prepared.operands.sets[0]]
        self.product = (a.double() @ b.double()).cpu()

    @contextmanager
    def contestants(self, config: Config) -> Iterator[list[tuple[Contestant, Workspace, Epilogue]]]:
        with ExitStack() as stack:
            ours = [
                (*stack.enter_context(self._with(config, epilogue)), epilogue)
                for epilogue in (PLAIN, *EPILOGUES)
            ]
            torch_side = Contestant(TORCH_NAME, self._torch, "torch.addmm(out=), aten.gelu.out")
            yield [*ours, (torch_side, ours[0][1], Epilogue(bias="columns", activation="gelu"))]

    def check(self, contestant: Contestant, epilogue: Epilogue) -> None:
        """Run once on poisoned memory. Raises WrongContestant."""
        operands = self.prepared.operands
        operands.poison(0)
        self.arrays.kept.fill_(float("nan"))
        self.torch.cuda.synchronize()
        first = operands.sets[0]
        contestant.launch_us = self.arena.session.timer.time_once(lambda: contestant.enqueue(first))
        self.torch.cuda.synchronize()
        value, result = self._expected(epilogue)
        found = [(self.tensors[first][2], result), *([(self.arrays.kept, value)] if epilogue.keeps else [])]
        for tensor, expected in found:
            error = (tensor.double().cpu() - expected).abs().max().item()
            if not error <= TOLERANCE * expected.abs().max().item():
                raise WrongContestant(f"{contestant.name} on {self.gemm}: off by {error:.3g}")

    @contextmanager
    def _with(self, config: Config, epilogue: Epilogue) -> Iterator[tuple[Contestant, Workspace]]:
        name = str(epilogue) or PLAIN_NAME
        argument = self.arrays.argument(epilogue)
        with self.arena.owned(self.gemm, config, name, epilogue, argument) as pair:
            yield pair

    def _torch(self, operands: OperandSet) -> None:
        a, b, c = self.tensors[operands]
        torch = self.torch
        with torch.no_grad(), torch.cuda.stream(self.stream):
            torch.addmm(self.arrays.bias_columns, a, b, out=c)
            torch.ops.aten.gelu.out(c, approximate="none", out=c)

    def _expected(self, epilogue: Epilogue) -> tuple[Any, Any]:
        """What is kept and what C becomes, in float64."""
        value = self.product
        if epilogue.bias == "rows":
            value = value + self.arrays.bias_rows.double().cpu()[:, None]
        if epilogue.bias == "columns":
            value = value + self.arrays.bias_columns.double().cpu()
        functional = self.torch.nn.functional
        activated = {
            "none": lambda x: x,
            "relu": functional.relu,
            "gelu": functional.gelu,
            "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        }[epilogue.activation](value)
        return value, activated


def measure(arena: Arena, gemm: Gemm, config: Config, rounds: int) -> dict[str, Any]:
    """Samples of everyone in interleaved rounds. Raises WrongContestant."""
    with arena.prepared(gemm) as prepared:
        race = Bench(arena, gemm, prepared)
        with race.contestants(config) as everyone:
            for contestant, _, epilogue in everyone:
                race.check(contestant, epilogue)
            arena.time(prepared, [contestant for contestant, _, _ in everyone], rounds)
            for contestant, _, epilogue in everyone:
                race.check(contestant, epilogue)
            return {
                "shape": str(gemm),
                "config": config.key,
                "state": arena.session.timer.state.__dict__,
                "contestants": {c.name: {"samples_us": c.samples_us} for c, _, _ in everyone},
            }


def ratio(facts: dict[str, Any], name: str, over: str) -> float:
    """Median over the rounds of the time of one over that of the other."""
    of, to = (facts["contestants"][each]["samples_us"] for each in (name, over))
    return float(median(a / b for a, b in zip(of, to, strict=True)))


def text(facts: dict[str, Any]) -> str:
    rows = [
        [
            name,
            console.time_text(median(found["samples_us"])),
            f"{ratio(facts, name, PLAIN_NAME):.3f}",
            f"{1 / ratio(facts, name, TORCH_NAME):.3f}",
        ]
        for name, found in facts["contestants"].items()
    ]
    headers = ["", "time", "over plain", "torch's time over it"]
    return "\n".join([f"### {facts['shape']}", "", *reports.table(headers, rows), ""])


def _run(args: argparse.Namespace) -> None:
    gemms: Sequence[Gemm] = [Gemm.parse(shape) for shape in args.shape or SHAPES]
    with common.open_existing(args.db) as store:
        arena = Arena(args.gpu, read_policy(args.cache))
        if arena.torch is None:
            raise EnvironmentProblem("torch with CUDA was not found; install it, it is what is compared with")
        results = arena.results(store, gemms)
    configs = {shape.gemm: shape.ranked[0].config for shape in results.shapes}
    report = reports.identity(arena, "epilogues", args.rounds, torch=arena.torch.version)
    for gemm in gemms:
        report["shapes"].append(measure(arena, gemm, configs[gemm], args.rounds))
        console.show(text(report["shapes"][-1]))
        reports.keep(args.out, report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", default="autotune.db")
    parser.add_argument("--shape", action="append", help=f"default: {' and '.join(SHAPES)}")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--cache", default="cold")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
