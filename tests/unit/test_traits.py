"""What is told of a config before it is compiled: by hand for one, finite and telling for all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fake_target import product_space
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.summation_order import SummationOrder
from autotune.search.propose.candidates import Candidates
from autotune.search.propose.traits import _quantities, _waves, traits_of

H200 = known_limits("h200")
GEMM = Gemm(4096, 4096, 4096)


def test_one_config_by_hand():
    columns = SimpleNamespace(**{n: np.array([v]) for n, v in Config().to_dict().items()})
    found = [float(q[0]) for q in _quantities(columns, GEMM, H200)]
    # 64x128x16, 8x8 by 128 threads, 3 stages, four blocks on each of 132 SMs: 2,048 tiles in 3.88 waves
    waves = 2048 / 528
    assert found[:4] == [128, 4 * 3 * 16 * (64 + 4 + 128), 114, 4]
    assert found[4:7] == pytest.approx([512, 512, 128 * 2048 / 132])
    assert found[7:9] == pytest.approx([waves, waves / 4])
    assert found[9:13] == pytest.approx([1, 192 / 8192, 64, 4])
    assert found[13:] == pytest.approx([(64 * 16 + 128 * 16 / 4) / 128, 1024, 256, 2 * 16 * 192 * 4])


def test_a_batch_fills_the_gpu_as_its_products_together_do():
    columns = SimpleNamespace(**{n: np.array([v]) for n, v in Config().to_dict().items()})
    wide, batch = (_quantities(columns, Gemm.parse(text), H200) for text in ("512x4096x512", "512b8"))
    assert [float(q[0]) for q in batch] == [float(q[0]) for q in wide]


@given(st.integers(1, 5000), st.integers(1, 600), st.integers(2, 16))
def test_a_split_last_wave_ends_sooner_and_nothing_is_busier_than_busy(tiles, slots, split):
    whole, plain = np.array(["none", "last_wave"]), np.array([1, split])
    columns = SimpleNamespace(reduction=whole, split_k=plain, flush_k=0, bm=1, bn=1)
    waves, fill = _waves(columns, Gemm(tiles, 1, 9), np.array([slots, slots]))
    assert waves.tolist() == [tiles / slots] * 2
    assert 0 < fill[0] <= 1 + 1e-12
    assert fill[1] >= fill[0]


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(["h200", "quadro-rtx-5000"]),
    st.sampled_from(
        [
            "1024",
            "35x700x2048:TT",
            "1x1000x4096",
            "64x64x100000",
            "64x64x128b300:NT",
            "100x50x4000b4:shared-a",
        ]
    ),
)
def test_every_point_has_finite_traits(gpu, shape):
    gemm, limits = Gemm.parse(shape), known_limits(gpu)
    space = feasible_set(limits, gemm, order=SummationOrder(256) if gemm.m == 64 else None)
    traits = traits_of(space, gemm, limits)
    candidates = Candidates(space, traits)
    numbers = candidates.random(np.random.default_rng(1), 2000)
    assert np.isfinite(traits(candidates.codes(numbers))).all()
    features = candidates.features(numbers)
    assert features.shape == (2000, candidates.num_features)
    assert candidates.num_features > Candidates(space).num_features + 8
    assert np.abs(features).max() < 3  # scaled by other points


def test_other_kernels_have_none():
    space = product_space(3, 3)
    assert traits_of(space, Gemm(4, 4, 4), H200) is None
