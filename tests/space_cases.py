"""Configs for tests: drawn at random from those that obey the rules, without enumerating the space."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.kernel.config import PARAMETER, Config, Value
from autotune.kernel.rules import LEGAL, RULES, Rule, RuleKind

EVERY_KIND: tuple[RuleKind, ...] = (*LEGAL, "worth")
_MAX_STEPS = 4000  # of one descent; a bad early choice is then made anew
_MAX_DESCENTS = 25


def find_config(
    rng: random.Random,
    limits: DeviceLimits,
    gemm: Gemm,
    kinds: Sequence[RuleKind] = LEGAL,
    pins: Mapping[str, Value] | None = None,
) -> Config | None:
    """A random config with these pinned values that obeys all rules of those kinds; None if none was met.

    Parameters are chosen one after another, each tried against the rules that are then complete.
    """
    pins = pins or {}
    rules = [rule for rule in RULES if rule.kind in kinds]
    tied = {name for rule in rules if set(rule.needs) & pins.keys() for name in rule.needs}
    names = sorted(PARAMETER, key=lambda name: (name not in pins, name not in tied))  # dead ends show early
    ready = [_completed_by(names, at, rules) for at in range(len(names))]
    for _ in range(_MAX_DESCENTS):
        chosen: dict[str, Value] = {}
        steps = [0]

        def descend(at: int, chosen: dict[str, Value] = chosen, steps: list[int] = steps) -> bool:
            if at == len(names):
                return True
            name = names[at]
            values = [pins[name]] if name in pins else list(PARAMETER[name].values)
            rng.shuffle(values)
            for value in values:
                steps[0] += 1
                chosen[name] = value
                columns = SimpleNamespace(**chosen)
                is_allowed = all(rule.holds(columns, limits, gemm) for rule in ready[at])
                if steps[0] < _MAX_STEPS and is_allowed and descend(at + 1):
                    return True
            chosen.pop(name, None)
            return False

        if descend(0):
            return Config.from_dict(chosen)
    return None


def _completed_by(names: Sequence[str], at: int, rules: Sequence[Rule]) -> list[Rule]:
    known = set(names[: at + 1])
    return [rule for rule in rules if set(rule.needs) <= known and names[at] in rule.needs]
