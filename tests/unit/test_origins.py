"""Each trial is stored with what proposed it."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.kernel.feasible_set import feasible_set
from autotune.search.propose import origins
from autotune.search.propose.candidates import Candidates
from autotune.search.propose.proposer import Proposer
from autotune.search.propose.traits import traits_of


def test_a_point_keeps_the_origin_that_is_named_first():
    parts = {"near": np.array([7, 3]), "far": np.array([3, 9, 9, 1]), "nowhere": np.array([], dtype=np.int64)}
    numbers, found = origins.merged(parts)
    assert dict(zip(numbers.tolist(), found.tolist(), strict=True)) == {
        1: "far",
        3: "near",
        7: "near",
        9: "far",
    }
    assert numbers.tolist() == sorted(numbers.tolist())


@pytest.fixture(scope="module")
def proposer() -> Proposer:
    gemm, limits = Gemm(512, 512, 512), known_limits("h200")
    space = feasible_set(limits, gemm)
    traits = traits_of(space, gemm, limits)
    assert traits is not None
    return Proposer(space, traits=traits, seed=1)


def test_every_generator_gets_its_share_in_time(proposer):
    """On times that follow a few traits, with noise: who proposes what is told, and all do at some time."""
    candidates, found = Candidates(proposer.space), []
    random = np.random.default_rng(2)
    weights = random.standard_normal(candidates.num_features)
    for _ in range(260):
        proposal = proposer.ask()
        found.append(proposal.origin)
        score = float(candidates.features(np.array([proposal.number]))[0] @ weights)
        proposer.tell(proposal.number, float(np.exp(0.3 * score + 0.02 * random.standard_normal())))
    assert set(found[:15]) == {origins.RANDOM}
    assert set(found[15:]) <= set(origins.MODELLED)
    assert {origins.NEIGHBOUR, origins.CLIMBED} <= set(found)
    assert len(set(found)) >= 6
