"""The identity of a compiled kernel, written in its cubin: family and hash of its source, layout, config.

The compiler is given this text as a constant of the module, `sgemm_identity`. It is among the module's other
constants, in no kernel's code, and no kernel reads it. So a cubin shows which kernel it holds, whatever a
table says. In the file it follows MARK and ends with a NUL, so that reading it needs no driver.

Sources with the same code share one hash (same_code.py), so that equal kernels have equal cubins. Copied into
exported tables: standard library only.
"""

from __future__ import annotations

from ..facts.gemm import FP32
from .launch import Variant
from .scaled_config import AnyConfig

MARK = "autotune kernel: "
MAX_LENGTH = 2048  # of a text; today's have some 340 characters
FAMILY = "sgemm"  # of kernels, as same_code.json names it, too; others have the name of their file


def of(source_hash: str, config: AnyConfig, variant: Variant) -> str:
    """The identity of the kernel that this config is compiled to."""
    layout = ("T" if variant.trans_a else "N") + ("T" if variant.trans_b else "N")
    added = ["wide"] * variant.is_wide + ["batched"] * variant.is_batched + [str(variant.epilogue)]
    added += [f"a_{variant.a_type}"] if variant.a_type != FP32 else []
    family = config.main_file.removesuffix(".cu")
    return f"{family} {source_hash} {'-'.join([layout, *filter(None, added)])} {config.kernel.key}"


def declaration(identity: str) -> str:
    """The declaration, compiled after the kernel's source, that puts this text into the cubin."""
    return f'\nextern "C" __device__ const char {FAMILY}_identity[] = "{MARK}{identity}";\n'


def read(code: bytes) -> str:
    """The identity in a cubin, or in any bytes; "" if there is none, more than one, or no plain text."""
    mark = MARK.encode()
    start = code.find(mark) + len(mark)
    end = code.find(b"\0", start, start + MAX_LENGTH)
    if code.count(mark) != 1 or end < 0:
        return ""
    text = code[start:end].decode("ascii", "replace")
    return text if text.isascii() and text.isprintable() else ""
