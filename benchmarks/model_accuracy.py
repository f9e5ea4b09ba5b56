"""Errors of products on the operands of models, plain and routed; and how far training strays from float64.

    python benchmarks/model_accuracy.py --table FOLDER [--accuracy fp32] [--steps 50] [--out FILE]
    python benchmarks/model_accuracy.py --device cpu --tiny            a test of this script without a GPU

A BERT of six layers is trained for so many steps in float64, in torch's FP32 and routed, from the same
weights on the same texts: told is how far all of its parameters are from those of float64 then, over how far
these have moved. Then the operands of every linear layer of that BERT (forward, gradients of inputs and of
its weights) and of a ViT-B/16 (forward) are multiplied plain and routed: errors against float64 by Frobenius,
and by element against |A| |B|, and the routed over the plain. Of products of one shape the worst is told.
Weights begin as transformers makes them, at random: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import program_steps
import programs
import reports
import torch
from programs import Place

from autotune.cli import console

Texts = dict[str, Any]
TEXTS = 16
TINY = {"layers": 1, "width": 64}


class LayerProduct(NamedTuple):
    """op(A) (m, k) and op(B) (k, n), as views of what the model has."""

    of: str
    a: Any
    b: Any


# ------------------------------------------------------------------------------------------------
# Training


def trained(model: Any, texts: Texts, num_steps: int, around: Any) -> list[Any]:
    """Its parameters after so many steps of AdamW on the same texts."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    with around:
        for _ in range(num_steps):
            optimizer.zero_grad(set_to_none=True)
            model(**texts).loss.backward()
            optimizer.step()
    return [parameter.detach().double() for parameter in model.parameters()]


def strayed(first: Any, texts: Texts, place: Place, num_steps: int) -> tuple[dict[str, float], Any]:
    """How far parameters of FP32 are from those of float64, over how far these moved; the routed model."""
    begun = [parameter.detach().double() for parameter in first.parameters()]
    exact = trained(copy.deepcopy(first).double(), texts, num_steps, nullcontext())
    plain, routed = copy.deepcopy(first), copy.deepcopy(first)
    moved = _distance(exact, begun)
    apart = {
        "plain": _distance(trained(plain, texts, num_steps, nullcontext()), exact) / moved,
        "routed": _distance(trained(routed, texts, num_steps, place.routing or nullcontext()), exact) / moved,
    }
    return apart, routed


def _distance(ones: Sequence[Any], others: Sequence[Any]) -> float:
    squares = sum(float((one - other).square().sum()) for one, other in zip(ones, others, strict=True))
    return math.sqrt(squares)


# ------------------------------------------------------------------------------------------------
# LayerProduct


def operands_of(model: Any, run: Callable[[], object]) -> Iterator[LayerProduct]:
    """Of all linear layers in a run of the model, and in its backward pass if there was one."""
    seen: list[tuple[str, Any, Any, Any]] = []

    def keep(name: str, layer: Any, inputs: Any, output: Any) -> None:
        output.retain_grad()
        x = inputs[0].detach()
        seen.append((name, layer.weight.detach(), x.reshape(-1, x.shape[-1]), output))

    hooks = [
        layer.register_forward_hook(partial(keep, name))
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear)
    ]
    run()
    for hook in hooks:
        hook.remove()
    for name, weight, x, output in seen:
        yield LayerProduct(name, x, weight.T)
        if output.grad is not None:
            gradient = output.grad.reshape(-1, output.shape[-1])
            yield LayerProduct(f"{name}, its input's gradient", gradient, weight)
            yield LayerProduct(f"{name}, its weight's gradient", gradient.T, x)


def errors(operands: LayerProduct, c: Any) -> tuple[float, float]:
    """By Frobenius over ||C||, and the largest by element over |A| |B|."""
    a, b = operands.a.double(), operands.b.double()
    exact = a @ b
    apart = (c.double() - exact).abs()
    scale = (a.abs() @ b.abs()).clamp_min(torch.finfo(torch.float32).tiny)
    return float(apart.norm() / exact.norm().clamp_min(1e-300)), float((apart / scale).max())


def judged(found: Iterator[LayerProduct], place: Place) -> dict[str, dict[str, Any]]:
    """By shape, the product whose routed error is the most over the plain one's."""
    worst: dict[str, dict[str, Any]] = {}
    for one in found:
        plain = errors(one, torch.mm(one.a, one.b))
        with place.routing or nullcontext():
            routed = errors(one, torch.mm(one.a, one.b))
        over = [own / other if other else float(own > 0) for own, other in zip(routed, plain, strict=True)]
        shape = "x".join(map(str, (one.a.shape[0], one.b.shape[1], one.a.shape[1])))
        facts = {"of": one.of, "plain": plain, "routed": routed, "over": over}
        if shape not in worst or max(over) > max(worst[shape]["over"]):
            worst[shape] = facts
    return worst


def _run(args: argparse.Namespace) -> None:
    place = programs.place_of(args)
    from transformers import BertForSequenceClassification, ViTConfig, ViTModel

    torch.manual_seed(args.seed)
    sizes = TINY if args.tiny else {"layers": 6, "width": 768}
    tokens = torch.randint(1000, 30000, (TEXTS, 16 if args.tiny else 128))
    texts = {"input_ids": tokens.to(place.device), "labels": torch.randint(0, 2, (TEXTS,)).to(place.device)}
    bert = BertForSequenceClassification(program_steps.bert_config(**sizes)).to(place.device)
    report: dict[str, Any] = programs.identity(args) | {"benchmark": "model_accuracy", "steps": args.steps}
    report["strayed"], bert = strayed(bert, texts, place, args.steps)

    width = sizes["width"]
    config = ViTConfig(
        num_hidden_layers=sizes["layers"], hidden_size=width, num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )  # fmt: skip
    vit, images = ViTModel(config).to(place.device).eval(), torch.randn(16, 3, 224, 224).to(place.device)

    report["products"] = {
        "bert": judged(operands_of(bert, lambda: bert(**texts).loss.backward()), place),
        "vit": judged(operands_of(vit, lambda: vit(pixel_values=images)), place),
    }
    report["served"] = 0 if place.routing is None else place.routing.call_counts().get("", 0)
    reports.keep(args.out, report)
    console.show(describe(report))


def describe(report: dict[str, Any]) -> str:
    rows = [
        [
            model,
            shape,
            *(f"{error:.2e}" for error in (*one["plain"], *one["routed"])),
            *(f"{over:.2f}" for over in one["over"]),
        ]
        for model, products in report["products"].items()
        for shape, one in products.items()
    ]
    by = "by element"
    headers = ["model", "m x n x k", "plain", by, "routed", by, "over plain", by]
    apart = report["strayed"]
    most = max(max(one["over"]) for products in report["products"].values() for one in products.values())
    return "\n".join(
        [
            *reports.table(headers, rows),
            f"{report['served']} products served; errors at most {most:.2f} times torch's",
            f"after {report['steps']} steps apart from float64 by {apart['plain']:.3e} (plain) and"
            f" {apart['routed']:.3e} (routed) of the way that it went",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    programs.add_arguments(parser, seconds=1.0, pairs=10)
    parser.add_argument("--accuracy", choices=["strict", "fp32"], help="the class of what may serve")
    parser.add_argument("--steps", type=int, default=50)
    parser.set_defaults(record=None)
    reports.run(_run, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
