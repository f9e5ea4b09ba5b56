"""The samplers that a search may be asked for, by name."""

from __future__ import annotations

from ...files.errors import UsageError
from ...files.words import option
from ...kernel.feasible_set import FeasibleSet
from ...search_policy import SearchPolicy
from .proposer import Proposer
from .traits import Traits

SAMPLERS = ("autotune", "random")
DEFAULT_SAMPLER = "autotune"


def make_proposer(
    space: FeasibleSet,
    sampler: str = DEFAULT_SAMPLER,
    seed: int = 0,
    traits: Traits | None = None,
    policy: SearchPolicy | None = None,
) -> Proposer:
    """`autotune` is ours, `random` draws unseen feasible points. Raises UsageError for another name."""
    need_sampler(sampler)
    return Proposer(space, seed=seed, traits=traits, policy=policy, has_model=sampler == "autotune")


def need_sampler(sampler: str) -> None:
    """Raises UsageError for a name that is not known."""
    if sampler not in SAMPLERS:
        raise UsageError(f"{option('sampler')} {sampler!r} is unknown; known are {', '.join(SAMPLERS)}")
