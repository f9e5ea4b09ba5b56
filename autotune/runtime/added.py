"""What a call applies to its product: a bias along the columns of C, an activation.

Copied into exported tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..facts.gemm import FLOAT_BYTES
from ..files.errors import DispatchError
from ..kernel.launch import Epilogue
from .arrays import BIAS_ROLE, Libraries, Library
from .product import NO_DEVICE, Form, check_overlap
from .variants import asked_for

_NO_FORM = (1, 0, 1, 1)


class Added(NamedTuple):
    """`library`, `address`, `device` and `form` are those of the array `bias`; without one there is no
    library."""

    epilogue: Epilogue
    bias: Any = None
    library: Library | None = None
    address: int = 0
    device: int = NO_DEVICE
    form: Form = _NO_FORM

    @classmethod
    def of(cls, libraries: Libraries, bias: Any, activation: str | None) -> Added | None:
        """None for a plain product. Raises DispatchError if it is not a vector of float32, or not an
        activation."""
        epilogue = asked_for(bias is not None, activation)
        if epilogue is None or bias is None:
            return None if epilogue is None else cls(epilogue)
        library = libraries.of(bias, BIAS_ROLE)
        address, device, form, _ = library.describe(bias, BIAS_ROLE)
        return cls(epilogue, bias, library, address, device, form)

    def check(self, columns: int, device: int) -> None:
        """Raises DispatchError if the bias does not fit this number of columns of C, on this GPU."""
        if self.library is None:
            return
        _, length, _, stride = self.form
        if length != columns:
            raise DispatchError(f"bias has {length} elements, expected {columns}: one for each column of out")
        is_copied = self.library.is_host
        if not is_copied and ((length > 1 and stride != 1) or self.address % FLOAT_BYTES):
            raise DispatchError(
                f"bias has elements {stride} floats apart, at {self.address % FLOAT_BYTES} bytes beyond a "
                "whole float; pass a contiguous copy"
            )
        if self.device not in (device, NO_DEVICE):
            raise DispatchError(f"bias is on GPU {self.device}, the product on GPU {device}; move it there")

    def check_apart(self, address: int, num_bytes: int) -> None:
        """Raises DispatchError if C, of this many bytes, shares a range of addresses with the bias."""
        own = FLOAT_BYTES * self.form[1]
        check_overlap((self.address, self.address, address), (own, own, num_bytes))
