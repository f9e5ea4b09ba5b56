"""Which kernels of a table differ only in their epilogue. Copied into exported tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..files.errors import DispatchError
from ..kernel.epilogue_names import ACTIVATED, BIAS, name_of
from ..kernel.launch import ACTIVATIONS, BIASES, PLAIN, Epilogue
from .table import Kernel, Table


def plain_ids(table: Table) -> dict[str, str]:
    """For each kernel the id of the first one that is the same without an epilogue. A plain one without
    variants has its own id."""
    if all(kernel.is_plain for kernel in table.kernels):
        return {kernel.id: kernel.id for kernel in table.kernels}
    first: dict[Any, str] = {}
    for kernel in table.kernels:
        if kernel.is_plain:
            first.setdefault((kernel.config, kernel.variant), kernel.id)
    return {
        kernel.id: first[kernel.config, replace(kernel.variant, epilogue=PLAIN)] for kernel in table.kernels
    }


def numbers_of(epilogue: Epilogue) -> tuple[int, int]:
    """The numbers of its bias and its activation in core/table.h and core/autotune_sgemm.h."""
    return BIASES.index(epilogue.bias), ACTIVATIONS.index(epilogue.activation)


def numbered(epilogue: Epilogue) -> dict[str, int]:
    """The same numbers, by name."""
    return dict(zip(("bias", "activation"), numbers_of(epilogue), strict=True))


def numbered_as(bias: int, activation: int) -> Epilogue:
    """The epilogue of such numbers."""
    return Epilogue(BIASES[bias], ACTIVATIONS[activation])


class Variants:
    """Finds kernels by the plain one that was picked."""

    def __init__(self, table: Table) -> None:
        self._plain = plain_ids(table)
        self._found = {(self._plain[kernel.id], kernel.variant.epilogue): kernel for kernel in table.kernels}

    def of(self, kernel_id: str, epilogue: Epilogue) -> Kernel:
        """Raises DispatchError if the table was exported without the epilogue for this kernel."""
        found = self._found.get((self._plain[kernel_id], epilogue))
        if found is None:
            raise DispatchError(
                f"the table holds {kernel_id} without the epilogue {name_of(epilogue)}; export it with "
                f"`autotune export-table --epilogue {name_of(epilogue)}`, for all kernels, or add bias and "
                "activation yourself"
            )
        return found


def asked_for(has_bias: bool, activation: str | None) -> Epilogue | None:
    """The epilogue of a call; None for a plain product. Raises DispatchError if it is not an activation."""
    if activation is None:
        return BIAS if has_bias else None
    if type(activation) is not str or activation not in ACTIVATED:
        told = activation if type(activation) is str else f"a {type(activation).__name__}"
        raise DispatchError(f"activation is {told!r:.60}; pass one of {', '.join(ACTIVATED)}, or None")
    return Epilogue(BIAS.bias if has_bias else "none", activation)
