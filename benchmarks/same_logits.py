"""Whether a transformer computes the same bits for a sequence alone and among others, operator by operator.

    python benchmarks/same_logits.py --table FOLDER [--batches 2 7 64] [--width 256] [--length 48]
    python benchmarks/same_logits.py --dry chunks:512

Once with torch's own products, once with those of a table of one order of sums. Every operator is judged by
itself: what a sequence alone is given next is its part of what all were given. Told are the operators that
differ, for each number of sequences. Exits 1 if a product of the table does. `--dry ORDER` needs no GPU:
torch's operators on the CPU, and products by `reference`; pass a small width and length, as it is slow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import reports

from autotune import reference
from autotune.cli import console
from autotune.files.errors import EnvironmentProblem

HEADS, NUM_TOKENS = 4, 500
PRODUCTS = ("qkv", "scores", "mixed", "out", "up", "down", "logits")
Steps = Generator[tuple[str, Any], Any, None]


class Layer(NamedTuple):
    """Weights of a block with causal attention; (out, in) each."""

    qkv: Any
    out: Any
    up: Any
    down: Any


class Transformer:
    """Layers with random weights, for embedded sequences (batch, length, width)."""

    def __init__(self, torch: Any, width: int, num_layers: int, device: str) -> None:
        def weights(*shape: int) -> Any:
            return torch.randn(*shape, device=device) / width**0.5

        self.torch, self.width = torch, width
        shapes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
        self.layers = [Layer(*(weights(*shape) for shape in shapes)) for _ in range(num_layers)]
        self.head = weights(NUM_TOKENS, width)

    def steps(self, x: Any) -> Steps:
        """What each operator returns, by name, the logits last. It goes on with what is sent for it."""
        f = self.torch.nn.functional
        for number, layer in enumerate(self.layers):
            normed = yield f"layer_norm {number}", f.layer_norm(x, (self.width,))
            mixed = yield from self._attention(number, (yield f"qkv {number}", f.linear(normed, layer.qkv)))
            x = x + (yield f"out {number}", f.linear(mixed, layer.out))
            normed = yield f"layer_norm of {number}", f.layer_norm(x, (self.width,))
            up = yield f"up {number}", f.linear(normed, layer.up)
            up = yield f"gelu {number}", f.gelu(up)
            x = x + (yield f"down {number}", f.linear(up, layer.down))
        normed = yield "layer_norm last", f.layer_norm(x, (self.width,))
        yield "logits", f.linear(normed, self.head)

    def _attention(self, number: int, qkv: Any) -> Generator[tuple[str, Any], Any, Any]:
        torch, (many, length, _) = self.torch, qkv.shape
        q, k, v = (one.reshape(many, length, HEADS, -1).transpose(1, 2) for one in qkv.chunk(3, dim=-1))
        scores = yield f"scores {number}", torch.matmul(q, k.transpose(-1, -2))
        mask = torch.ones(length, length, dtype=torch.bool, device=qkv.device).tril()
        masked = (scores / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        weights = yield f"softmax {number}", masked.softmax(-1)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(many, length, self.width)
        return (yield f"mixed {number}", mixed)


def same(torch: Any, found: Any, expected: Any) -> bool:
    return bool(torch.equal(found.contiguous().view(torch.int32), expected.contiguous().view(torch.int32)))


def differing(model: Transformer, x: Any, num: int) -> list[str]:
    """The operators whose bits for a sequence differ between it alone and `num` of them."""
    combined = _taken(model.steps(x[:num]))
    found: dict[str, None] = {}
    for i in range(num):
        alone = model.steps(x[i : i + 1])
        name, own = next(alone)
        for _, all_ in combined:
            part = all_[i : i + 1]
            if not same(model.torch, own, part):
                found[name] = None
            name, own = _next(alone, part)
    return list(found)


def _taken(steps: Steps) -> list[tuple[str, Any]]:
    """All of them, each going on with its own."""
    taken = [next(steps)]
    while (step := _next(steps, taken[-1][1]))[0]:
        taken.append(step)
    return taken


def _next(steps: Steps, sent: Any) -> tuple[str, Any]:
    """The next step, or one without a name."""
    try:
        return steps.send(sent)
    except StopIteration:
        return "", None


def are_products(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.partition(" ")[0] in PRODUCTS]


def in_order(torch: Any, order: str) -> AbstractContextManager[Any]:
    """Where products of torch on the CPU are those of `reference`."""
    from torch.utils._python_dispatch import TorchDispatchMode

    def computed(a: Any, b: Any) -> Any:
        return torch.from_numpy(reference(a.numpy(), b.numpy(), order))

    aten = torch.ops.aten

    class InOrder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (aten.mm.default, aten.bmm.default):
                return computed(*args)
            return function(*args, **(kwargs or {}))

    return InOrder()


def routed(args: argparse.Namespace, torch: Any) -> AbstractContextManager[Any]:
    if args.dry:
        return in_order(torch, args.dry)
    from autotune.runtime.dispatcher import Dispatcher

    return Dispatcher(args.table).torch()


def _run(args: argparse.Namespace) -> None:
    try:
        import torch
    except ImportError as error:
        raise EnvironmentProblem(f"this needs torch: {error}; pip install torch") from error
    torch.manual_seed(args.seed)
    device = "cpu" if args.dry else "cuda"
    model = Transformer(torch, args.width, args.layers, device)
    x = torch.randn(max(args.batches), args.length, args.width, device=device)
    rows, is_same = [], True
    with torch.no_grad():
        for num in args.batches:
            found = []
            for way in (nullcontext(), routed(args, torch)):
                with way:
                    found.append(differing(model, x, num))
            rows.append([str(num), *(", ".join(names) or "none" for names in found)])
            is_same &= not are_products(found[1])
    ours = f"products in the order {args.dry}" if args.dry else f"products of {args.table}"
    console.show("\n".join(reports.table(["sequences", "with torch's products", f"with {ours}"], rows)))
    if not is_same:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--table", type=Path)
    where.add_argument("--dry", metavar="ORDER")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 7, 64])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
