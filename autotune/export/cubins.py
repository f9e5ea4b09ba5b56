"""The compiled kernels of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from ..errors import DispatchError, TrialFailure
from ..kernel.config import Config
from ..kernel.launch import Variant
from .wishes import Wish


class CubinLike(Protocol):
    """What an export needs of a compiled kernel."""

    @property
    def code(self) -> bytes: ...
    @property
    def sha256(self) -> str: ...
    @property
    def registers(self) -> int: ...
    @property
    def spill_bytes(self) -> int: ...


class KernelCompiler(Protocol):
    """What an export needs of `compiler.Compiler`."""

    @property
    def arch(self) -> str: ...
    @property
    def version(self) -> str: ...
    def submit(self, config: Config, variant: Variant, /) -> Future[Any]: ...  # of a CubinLike


OnCompiled = Callable[[int, int], None]  # kernels that are done, and all


def compile_all(
    wishes: Sequence[Wish], compiler: KernelCompiler, on_compiled: OnCompiled = lambda done, total: None
) -> dict[str, CubinLike]:
    """Cubins by the id of the wish. A kernel that is not required and fails or spills is left out."""
    pending: dict[tuple[Config, Variant], Future[CubinLike]] = {}
    for wish in wishes:
        key = (wish.config.kernel, wish.variant)
        if key not in pending:
            pending[key] = compiler.submit(*key)
    cubins: dict[str, CubinLike] = {}
    for number, wish in enumerate(wishes):
        on_compiled(number, len(wishes))
        try:
            cubin = pending[wish.config.kernel, wish.variant].result()
        except TrialFailure as failure:
            if wish.is_required:
                raise DispatchError(
                    f"kernel {wish.id} ({wish.config.key}) fails to compile: {failure}"
                ) from failure
            continue
        if wish.is_required or cubin.spill_bytes == 0:
            cubins[wish.id] = cubin
    return cubins
