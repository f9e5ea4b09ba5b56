"""The compiled kernels of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import zip_longest

from ..facts.gemm import LAYOUTS
from ..files.errors import DispatchError, TrialFailure
from ..kernel.compiler import Compiler, Cubin
from ..kernel.launch import Variant
from ..kernel.scaled_config import AnyConfig
from .model_folders import packed
from .wishes import Wish

OnCompiled = Callable[[int, int], None]  # kernels that are done, and all


class Compiling:
    """Kernels that are compiled in other processes, those first that were asked for first."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._pending: dict[tuple[AnyConfig, Variant], Future[Cubin]] = {}

    def begin(self, wishes: Iterable[Wish]) -> None:
        """Does not wait."""
        for wish in wishes:
            key = (wish.config.kernel, wish.variant)
            if key not in self._pending:
                self._pending[key] = self._compiler.submit(*key)

    def wait(self, wishes: Sequence[Wish], on_compiled: OnCompiled) -> dict[str, Cubin]:
        """Cubins by the id of the wish. A kernel that is not required and fails or spills is left out."""
        self.begin(wishes)
        cubins: dict[str, Cubin] = {}
        for number, wish in enumerate(wishes):
            on_compiled(number, len(wishes))
            try:
                cubin = self._pending[wish.config.kernel, wish.variant].result()
            except TrialFailure as failure:
                if wish.is_required:
                    raise DispatchError(
                        f"kernel {wish.id} ({wish.config.key}) fails to compile: {failure}"
                    ) from failure
                continue
            if wish.is_required or cubin.spill_bytes == 0:
                cubins[wish.id] = cubin
        on_compiled(len(wishes), len(wishes))
        return cubins


def within(wishes: Sequence[Wish], cubins: Mapping[str, Cubin], max_bytes: float) -> list[Wish]:
    """The wishes whose cubins exist. Packed, those that are not required take at most this many bytes: first
    comes the first of each layout, then the second of each, until one would exceed the limit. A cubin that
    an earlier kernel needs anyway does not count."""
    there = [wish for wish in wishes if wish.id in cubins]
    kept = {cubins[wish.id].sha256 for wish in there if wish.is_required}
    layouts = [[w for w in there if w.layout == x and not w.is_required] for x in LAYOUTS]
    num_bytes = 0
    for wish in (wish for turn in zip_longest(*layouts) for wish in turn if wish):
        cubin = cubins[wish.id]
        num_bytes += 0 if cubin.sha256 in kept else len(packed(cubin.code))
        if num_bytes > max_bytes:
            break
        kept.add(cubin.sha256)
    return [wish for wish in there if cubins[wish.id].sha256 in kept]
