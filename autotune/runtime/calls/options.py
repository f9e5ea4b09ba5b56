"""What the caller of a dispatcher may choose, by argument or environment. Copied into exported tables."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

from ...files.arguments import flag
from ...files.errors import DispatchError
from ..table.kinds import FALLBACK

Settle = Literal["off", "first-use", "live", "live-any-order"]
Fallback = Literal["refuse", "cublas"]
Activation = Literal["relu", "gelu", "gelu_tanh"]
_SETTLE, _CUBLAS = "AUTOTUNE_SETTLE", "AUTOTUNE_CUBLAS"


def fallback_of(fallback: Fallback | None, deterministic: bool) -> Fallback:
    """What happens on GPUs without a table. Raises DispatchError for an invalid choice."""
    value: str = fallback or (not deterministic and os.environ.get(FALLBACK)) or "refuse"
    if value == "refuse":
        return "refuse"
    if value == "cublas":
        return "cublas"
    name = FALLBACK if fallback is None else "fallback"
    raise DispatchError(f"{name} is {value!r}; say 'refuse' or 'cublas'")


def settle_of(settle: Settle | None, deterministic: bool) -> Settle:
    """What is settled where a table is used. Raises DispatchError for options that are invalid, or contradict
    each other."""
    deterministic = flag("deterministic", deterministic, error=DispatchError)
    value: Any = os.environ.get(_SETTLE) or "off" if settle is None else settle
    if value not in get_args(Settle):
        name = _SETTLE if settle is None else "settle"
        *others, last = map(repr, get_args(Settle))
        raise DispatchError(f"{name} is {value!r}; say {', '.join(others)} or {last}")
    if deterministic and settle not in (None, "off"):
        raise DispatchError("a deterministic dispatcher settles nothing; leave out settle or deterministic")
    found: Settle = "off" if deterministic else value
    return found


def is_switched_on(cublas: bool | None, deterministic: bool) -> bool:
    """Whether a dispatcher may call cuBLAS: by its argument, else by the environment, else yes. A
    deterministic dispatcher must not depend on a machine's cuBLAS, unless its caller says so.

    Raises DispatchError for an invalid switch.
    """
    if cublas is not None:
        return flag("cublas", cublas, error=DispatchError)
    value = os.environ.get(_CUBLAS) or "1"
    if value not in ("0", "1"):
        raise DispatchError(f"{_CUBLAS} is {value!r}; say '0' or '1'")
    return value == "1" and not deterministic
