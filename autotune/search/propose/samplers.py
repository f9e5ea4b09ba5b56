"""What a search may be told to propose with: a name, or any sampler of Optuna."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from ...files.errors import EnvironmentProblem, UsageError
from ...files.words import option
from ...kernel.feasible_set import FeasibleSet
from ...search_policy import SearchPolicy
from .optuna_proposer import OptunaProposer
from .proposer import Proposer
from .traits import Traits

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

Sampler: TypeAlias = "str | BaseSampler"
DEFAULT_SAMPLER = "autotune"
_NEEDS = {"tpe": (), "gp": ("scipy", "torch"), "cmaes": ("cmaes",)}  # samplers of Optuna: packages
_CLASSES = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler"}
SAMPLERS = (DEFAULT_SAMPLER, "random", *_NEEDS)


def make_proposer(
    space: FeasibleSet,
    sampler: Sampler = DEFAULT_SAMPLER,
    seed: int = 0,
    traits: Traits | None = None,
    policy: SearchPolicy | None = None,
) -> Proposer:
    """`autotune` is ours, `random` draws unseen feasible points; others wish, and get the nearest of these.
    Raises UsageError for another name, EnvironmentProblem where a sampler's packages are not installed."""
    need_sampler(sampler)
    name = sampler_name(sampler)
    if name in (DEFAULT_SAMPLER, "random"):
        has_model = name == DEFAULT_SAMPLER
        return Proposer(space, seed=seed, traits=traits, policy=policy, has_model=has_model)
    optuna_proposer = _of_optuna(sampler, seed) if isinstance(sampler, str) else sampler
    return OptunaProposer(space, optuna_proposer, name, seed=seed, policy=policy)


def sampler_name(sampler: Sampler) -> str:
    """As studies keep it: `autotune` for ours, whichever way it is given."""
    if isinstance(sampler, str):
        return sampler
    name = type(sampler).__name__
    return DEFAULT_SAMPLER if name == "FeasibleSampler" else name[:32]


def need_sampler(sampler: Sampler) -> None:
    """Raises UsageError for a name that is not known, and for what is no sampler."""
    if isinstance(sampler, type):
        raise UsageError(f"{option('sampler')} {sampler.__name__} is a class; pass {sampler.__name__}()")
    if sampler not in SAMPLERS if isinstance(sampler, str) else not hasattr(sampler, "sample_relative"):
        raise UsageError(
            f"{option('sampler')} {sampler!r} is unknown; known are {', '.join(SAMPLERS)}, and from Python"
            " any sampler of Optuna"
        )


def missing_package(name: str) -> str:
    """The first package that a sampler needs and that is not installed; "" if all are."""
    return next((one for one in _NEEDS.get(name, ()) if find_spec(one) is None), "")


def _of_optuna(name: str, seed: int) -> BaseSampler:
    if missing := missing_package(name):
        packages = " ".join(_NEEDS[name])
        raise EnvironmentProblem(f"{option('sampler')} {name} needs {missing}; run: pip install {packages}")
    import optuna

    found: BaseSampler = getattr(optuna.samplers, _CLASSES[name])(seed=seed)
    return found
