"""What the caller of a dispatcher may choose, by argument or environment. Copied into exported tables."""

from __future__ import annotations

import os
from typing import Literal

from ...files.arguments import flag
from ...files.errors import DispatchError
from ..table.kinds import FALLBACK

Settle = Literal["off", "first-use"]
Fallback = Literal["refuse", "cublas"]
Activation = Literal["relu", "gelu", "gelu_tanh"]
_SETTLE, _CUBLAS = "AUTOTUNE_SETTLE", "AUTOTUNE_CUBLAS"


def fallback_of(fallback: Fallback | None, deterministic: bool) -> Fallback:
    """What happens on GPUs without a table. Raises DispatchError for an invalid choice."""
    told: str = fallback or (not deterministic and os.environ.get(FALLBACK)) or "refuse"
    if told == "refuse":
        return "refuse"
    if told == "cublas":
        return "cublas"
    name = FALLBACK if fallback is None else "fallback"
    raise DispatchError(f"{name} is {told!r}; say 'refuse' or 'cublas'")


def is_first_use(settle: Settle | None, deterministic: bool) -> bool:
    """Whether a kind of call is settled at its first use. Raises DispatchError for options that are invalid,
    or contradict each other."""
    deterministic = flag("deterministic", deterministic, error=DispatchError)
    told = os.environ.get(_SETTLE) or "off" if settle is None else settle
    if told not in ("off", "first-use"):
        name = _SETTLE if settle is None else "settle"
        raise DispatchError(f"{name} is {told!r}; say 'off' or 'first-use'")
    if deterministic and settle == "first-use":
        raise DispatchError("a deterministic dispatcher settles nothing; leave out settle or deterministic")
    return told == "first-use" and not deterministic


def is_switched_on(cublas: bool | None, deterministic: bool) -> bool:
    """Whether a dispatcher may call cuBLAS: by its argument, else by the environment, else yes. A
    deterministic dispatcher must not depend on a machine's cuBLAS, unless its caller says so.

    Raises DispatchError for an invalid switch.
    """
    if cublas is not None:
        return flag("cublas", cublas, error=DispatchError)
    told = os.environ.get(_CUBLAS) or "1"
    if told not in ("0", "1"):
        raise DispatchError(f"{_CUBLAS} is {told!r}; say '0' or '1'")
    return told == "1" and not deterministic
