"""The samplers that a search may be asked for, by name."""

from __future__ import annotations

from ...errors import UsageError
from ...kernel.feasible_set import FeasibleSet
from .proposer import Proposer
from .traits import Traits

SAMPLERS = ("autotune", "random", "tpe", "tpe-snapped")
DEFAULT_SAMPLER = "autotune"


def make_proposer(
    space: FeasibleSet, sampler: str = DEFAULT_SAMPLER, seed: int = 0, traits: Traits | None = None
) -> Proposer:
    """`autotune` is ours, `random` draws unseen feasible points, `tpe` and `tpe-snapped` are Optuna's TPE
    (tpe.py). Raises UsageError for another name."""
    if sampler not in SAMPLERS:
        raise UsageError(f"--sampler {sampler!r} is none; known are {', '.join(SAMPLERS)}")
    if sampler.startswith("tpe"):
        from .tpe import TpeProposer  # here: no other search waits for Optuna to be imported

        return TpeProposer(space, seed=seed, snaps=sampler == "tpe-snapped")
    return Proposer(space, seed=seed, traits=traits, has_model=sampler == "autotune")
