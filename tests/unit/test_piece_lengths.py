"""benchmarks/piece_lengths.py: in which pieces a large operand is read, and how fast."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from table_cases import make_spec

from autotune.facts.gemm import Gemm
from autotune.perf_model.fit import Sample
from autotune.recording import matrix

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import piece_lengths

MATRIX = Path(__file__).parents[2] / "studies" / "matrices" / "h200-tt.json.gz"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("65536x8x2048:NN", ("k", 16)), ("65536x8x2048:NT", ("k", 16)), ("65536x8x2048:TN", ("m, n", 64)),
        ("8x65536x2048:NN", ("m, n", 128)), ("8x65536x2048:NT", ("k", 16)), ("8x65536x2048:TT", ("k", 16)),
        ("65536x65536x64:NN", None), ("512x8x2048:NN", None),
    ],
)  # fmt: skip
def test_a_tile_reads_pieces_of_the_large_operand(shape: str, expected: tuple[str, int] | None) -> None:
    gemm = Gemm.parse(shape)
    spec = make_spec(gemm.layout, bm=64, bn=128, bk=16)
    assert piece_lengths.piece(Sample(spec, gemm, 1.0), 27e6) == expected


def test_longer_pieces_reach_more_of_the_bandwidth() -> None:
    found = piece_lengths.shares([matrix.read(MATRIX)], 27e6)
    most = {key: max(of_key) for key, of_key in found.items()}
    assert most["k", 8] < most["k", 32] and max(most.values()) < 1.1
    assert piece_lengths.row_of(("k", 8), [0.25, 0.5]) == ["k", "8", "2", "0.50", "0.47"]
