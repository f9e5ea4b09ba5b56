"""How operands lie in memory: canaries on all sides, aligned, larger than L2 when cold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.gpu import memory

L2_BYTES = 60 * 2**20
extents = st.integers(1, 3000)
sizes = st.lists(st.integers(0, 5000).map(lambda words: 4 * words), min_size=1, max_size=4)


@given(sizes, st.integers(1, 5))
def test_canaries_and_operands_share_out_all_memory(operand_sizes, repeats):
    layout = memory.lay_out(operand_sizes, repeats)
    regions = [region for pair in zip(layout.canaries, layout.operands, strict=False) for region in pair]
    regions.append(layout.canaries[-1])
    assert len(layout.canaries) == len(layout.operands) + 1
    assert [r.num_bytes for r in layout.operands] == operand_sizes * repeats
    end = 0
    for region in regions:  # no gap, no overlap
        assert region.offset == end
        end = region.end
    assert end == layout.num_bytes
    assert all(r.offset % memory.ALIGNMENT == 0 for r in layout.operands)
    assert all(g.num_bytes >= memory.CANARY_BYTES and g.num_bytes % 4 == 0 for g in layout.canaries)


@given(extents, extents, extents)
def test_cold_sets_exceed_twice_l2_and_not_by_more_than_one(m, n, k):
    gemm = Gemm(m, n, k)
    count = memory.num_sets(gemm, L2_BYTES, CachePolicy.COLD)
    if count < memory.MAX_SETS:
        assert count * gemm.num_bytes > 2 * L2_BYTES >= (count - 1) * gemm.num_bytes
    assert memory.num_sets(gemm, L2_BYTES, CachePolicy.WARM) == 1


def test_operands_are_packed_in_every_layout():
    for layout in ("NN", "NT", "TN", "TT"):
        assert Gemm.parse(f"3x5x7:{layout}").operand_bytes == (4 * 21, 4 * 35, 4 * 15)
    assert Gemm.parse("3x5x7b10:NT:shared-b").operand_bytes == (40 * 21, 4 * 35, 40 * 15)


def test_a_damaged_canary_is_named_by_what_lies_before_it():
    names = [memory.canary_name(number, 7) for number in range(8)]
    assert names[0] == "before A of set 0"
    assert names[1:4] == ["behind A of set 0", "behind B of set 0", "behind C of set 0"]
    assert names[4] == "behind A of set 1"
    assert names[7] == "around the workspace"


def test_the_list_of_canaries_holds_addresses_and_words():
    layout = memory.lay_out((8,))
    words = list(memory.canary_list(4096, layout.canaries))
    assert words[0::2] == [4096 + g.offset for g in layout.canaries]
    assert words[1::2] == [g.num_bytes // 4 for g in layout.canaries]
