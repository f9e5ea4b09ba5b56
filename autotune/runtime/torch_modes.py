"""What torch may do besides computing: follow derivatives in forward mode, show calls to a mode, or trace.

Each product asks. The first two are variables of torch's modules: to call a function would take longer.
Copied into exported tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..files.errors import DispatchError

_NO_FORWARD_MODE = SimpleNamespace(_current_level=-1)
_NO_DISPATCH_MODE = SimpleNamespace(_is_in_torch_dispatch_mode=False)


def forward_mode_of(torch: Any) -> Any:
    """torch's module whose `_current_level` is not negative while tensors may have tangents."""
    found = getattr(getattr(torch, "autograd", None), "forward_ad", None)
    return found if hasattr(found, "_current_level") else _NO_FORWARD_MODE


def dispatch_mode_of(torch: Any) -> Any:
    """torch's module whose `_is_in_torch_dispatch_mode` is set while a mode sees what is called."""
    found = getattr(getattr(torch, "utils", None), "_python_dispatch", None)
    return found if hasattr(found, "_is_in_torch_dispatch_mode") else _NO_DISPATCH_MODE


def tracing_asked_of(torch: Any) -> Callable[[], bool]:
    """torch's function, in C, that says whether torch.jit.trace records what is called."""
    return getattr(torch._C, "_is_tracing", lambda: False)


def check_untraced(torch: Any) -> None:
    """Raises DispatchError while torch records a trace, of which a call of `sgemm` would be no part."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")  # else nothing is recorded by them
    if tracing_asked_of(torch)() or (proxies is not None and proxies.get_proxy_mode() is not None):
        raise DispatchError(
            "torch records a trace, of which this product would be no part; call the operator of torch_op()"
        )
