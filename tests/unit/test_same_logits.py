"""benchmarks/same_logits.py: which operators differ between a sequence alone and among others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import same_logits


def test_every_operator_is_judged_by_itself():
    """Products differ where a batch is summed otherwise, and nothing else does; in one order none does."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model, x = same_logits.Transformer(torch, 32, 1, "cpu"), torch.randn(3, 5, 32)
    plain = torch.nn.functional.linear
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", lambda x, w: plain(x, w) + 1e-3 * (len(x) > 1))
        found = same_logits.differing(model, x, 3)
    assert {"qkv 0", "out 0", "up 0", "down 0", "logits"} <= set(found)
    assert not {"gelu 0", "layer_norm last"} & set(found)
    with torch.no_grad(), same_logits.in_order(torch, "chunks:16"):
        assert same_logits.are_products(same_logits.differing(model, x, 3)) == []
