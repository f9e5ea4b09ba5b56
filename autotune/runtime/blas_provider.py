"""cuBLAS as a provider: serves products where it is expected to be faster than every kernel of a table, and
batches that no kernel was tuned for.

It is optional: where it is absent, broken or switched off, kernels of the table serve. blas_library.py finds
it, and is imported when it is first asked for. Copied into exported tables.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from ..facts.gemm import MAX_EXTENT
from .pick import Call, Pick

if TYPE_CHECKING:
    from .blas_library import BlasLibrary


class BlasProvider:
    """cuBLAS for one dispatcher; without `is_on` it is neither located nor called."""

    def __init__(self, is_on: bool) -> None:
        self._is_on = is_on
        self._loaded_version: str | None = None
        self._has_looked = not is_on

    @cached_property
    def library(self) -> BlasLibrary | None:
        """Located at its first use: loading it takes time and memory."""
        if not self._is_on:
            return None
        from .blas_library import find_library

        library = find_library()
        if library is not None:
            self._loaded_version = library.version
        return library

    def loaded_version(self) -> str | None:
        """As `version`, but loads nothing: None if no cuBLAS was loaded at the first request, until one
        serves."""
        if not self._has_looked and self._loaded_version is None:
            from .blas_library import loaded_library

            self._has_looked = True
            library = loaded_library()
            self._loaded_version = None if library is None else library.version
        return self._loaded_version

    @property
    def version(self) -> str | None:
        """`13.1.0`; None where it is off or absent."""
        library = self.library
        return None if library is None else library.version

    def may_serve(self, call: Call) -> bool:
        """Whether cuBLAS can be called for this: its leading dimensions are `int`, and kernels serve products
        without depth."""
        return call.gemm.k > 0 and max(call.lds) <= MAX_EXTENT and self.library is not None

    def served(self, pick: Pick, call: Call) -> Pick:
        """A pick that names the provider that really serves."""
        if pick.provider == "autotune" or self.may_serve(call):
            return pick
        return replace(pick, provider="autotune", tell=partial(_instead, pick, self.library is None))

    def with_epilogue(self, pick: Pick) -> Pick:
        """As `served`, for a pick whose kernel has an epilogue: the kernel serves. cublasSgemm has none, and
        would need another pass over C."""
        return replace(pick, provider="autotune") if pick.provider == "cublas" else pick


def _instead(pick: Pick, is_absent: bool) -> str:
    why = "is off or not there" if is_absent else "cannot be called for this"
    return f"{pick.reason}; cuBLAS {why}, and this kernel serves"
