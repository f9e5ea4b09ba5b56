"""One kernel on one problem and GPU as plain data to draw: numbers, names and sentences, ready for JSON;
and the explorer as one HTML file that needs nothing beside it.

All arithmetic of the page is done in this room; what draws it (explorer/) places what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..files.errors import UsageError
from ..kernel import resources
from ..kernel.config import PARAMETERS, Config, lanes_k
from ..kernel.rules import Rule, broken_rules
from ..kernel.rungs import ReferenceKernel
from ..report.palette import ROOT
from . import drawn_accesses, drawn_parts, ncu_metrics
from .drawn_parts import Drawing
from .executed import HostLaunch
from .launch_counts import count
from .timeline import FILL, Timeline
from .warp_access import SECTOR


@dataclass(frozen=True)
class Subject:
    """A kernel to explain: its name, what is to be seen on it, and what kind of kernels it stands among."""

    name: str
    adds: str
    family: str
    kernel: Config | ReferenceKernel
    gemm: Gemm


def draw_all(selected: Sequence[Subject], limits: DeviceLimits) -> list[Drawing]:
    """The picture of each. Their kernels are compiled at once, on all cores."""
    valid = [one for one in selected if one.gemm.m * one.gemm.n * one.gemm.k and not _broken(one, limits)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: HostLaunch.of(one.kernel, one.gemm, limits).library, valid))
    return [picture(subject, limits) for subject in selected]


def _broken(subject: Subject, limits: DeviceLimits) -> tuple[Rule, ...]:
    """The rules that a config breaks."""
    if isinstance(subject.kernel, ReferenceKernel):
        return ()
    return broken_rules(subject.kernel, limits, subject.gemm)


def picture(subject: Subject, limits: DeviceLimits) -> Drawing:
    """All that is drawn of a kernel, or the rules that it breaks. Raises UsageError for an empty C or k."""
    gemm, kernel = subject.gemm, subject.kernel
    gemm.need_output()
    if not gemm.k:
        raise UsageError(f"{gemm}: k is 0, nothing is multiplied; choose k of at least 1")
    made: Drawing = {
        "name": subject.name,
        "adds": subject.adds,
        "family": subject.family,
        "shape": str(gemm),
        "gpu": f"{limits.name} ({limits.arch})",
        "broken": [],
        "parameters": [],
    }
    if isinstance(kernel, ReferenceKernel):
        return made | _reference(HostLaunch.of(kernel, gemm, limits), kernel, limits)
    made["parameters"] = _parameters(kernel)
    broken = _broken(subject, limits)
    if broken:
        return made | {"broken": [{"id": r.id, "kind": r.kind, "sentence": r.sentence} for r in broken]}
    return made | _template(HostLaunch.of(kernel, gemm, limits), kernel, limits)


def _parameters(config: Config) -> list[Drawing]:
    values = config.to_dict()
    return [
        {"name": p.name, "value": values[p.name], "meaning": p.description, "values": list(p.values)}
        for p in PARAMETERS
    ]


def _template(product: HostLaunch, config: Config, limits: DeviceLimits) -> Drawing:
    gemm = product.gemm
    resident = resources.residency(config, limits, gemm)
    counts = count(config, gemm, limits)
    return {
        "grid": drawn_parts.grid(product, resident * limits.num_sms),
        "tile": drawn_parts.tile(product, config),
        "timeline": _timeline(product, config),
        "accesses": drawn_accesses.of_kernel(product),
        "counts": drawn_parts.counts(counts, gemm, limits),
        "ncu": ncu_metrics.drawn(counts, config),
        "resources": drawn_parts.taken_of_sm(config, gemm, limits),
    }


def _reference(product: HostLaunch, kernel: ReferenceKernel, limits: DeviceLimits) -> Drawing:
    """A kernel of reference.cu: blocks of 32 x 32 threads, an element each."""
    found = drawn_parts.taken_by_reference(kernel, limits)
    counts = count(kernel, product.gemm, limits)
    note = _REFERENCE_NOTES[kernel.smem_bytes > 0]
    return {
        "grid": drawn_parts.grid(product, found["resident"] * limits.num_sms),
        "tile": drawn_parts.reference_tile(product),
        "timeline": {"note": note, "steps": [], "rows": [], "sentences": []},
        "accesses": drawn_accesses.of_kernel(product),
        "counts": drawn_parts.counts(counts, product.gemm, limits),
        "resources": found,
    }


_REFERENCE_NOTES = {
    False: "There are no stages: for each k, every thread reads its element of A and of B from global "
    "memory, and multiplies them.",
    True: "One stage: the block copies a tile of A and one of B, meets at a barrier, reads them, and meets "
    "again. Nothing is copied while tiles are multiplied.",
}


def _timeline(product: HostLaunch, config: Config) -> Drawing:
    """Places for tiles, as rows; steps, as columns; and what happens in each step, as sentences."""
    steps, lanes = int(product.steps()[0][0]), lanes_k(config)
    if lanes > 1:
        note = (
            f"The {lanes} lanes of a warp share out k and read it straight from global memory: "
            "there are no stages, and nothing is copied ahead."
        )
        return {"note": note, "steps": [], "rows": [], "sentences": []}
    line = Timeline(config, steps)
    shown = line.steps
    paths = {"A": config.copy_a, "B": config.copy_b}
    operands = ["A", "B"] if paths["A"] != paths["B"] else ["A"]
    rows = []
    for operand in operands:
        label = f" {operand}" if len(operands) > 1 else ""
        if paths[operand] == "register":
            cells = [asdict(line.registers(operand, t)) for t in shown]
            rows.append({"label": f"registers{label}", "cells": cells})
        for stage in range(config.stages):
            cells = [asdict(line.stage(stage, operand, t)) for t in shown]
            rows.append({"label": f"stage {stage}{label}", "cells": cells})
    note = f"The first block has {steps:,} steps of {config.bk} k each."
    if len(shown) <= steps:
        note += " The first and the last are drawn; those between go on as the ones before them."
    return {
        "note": note,
        "steps": ["fill" if t == FILL else t for t in shown],
        "rows": rows,
        "sentences": [line.descriptions(t) for t in shown],
    }


_FOLDER = Path(__file__).parent / "explorer"
_THEME = "../../report/static/theme"  # that of every page
# One script, in this order.
_SCRIPTS = (_THEME, "elements", "blocks", "tile", "steps", "lanes", "tables", "page")


def explorer_page(selected: Sequence[Subject], limits: DeviceLimits, gpu: str, footer: str) -> str:
    """The whole page, the first subject shown first. `gpu` is how the command line names the GPU. Raises
    UsageError where a subject's problem is empty."""
    data = {
        "views": draw_all(selected, limits),
        "gpu": gpu,
        "foot": footer,
        "sector": SECTOR,
    }
    whole = _read("page.html")
    for place, content in (
        ("/*STYLE*/", f"{ROOT}\n{_read('page.css')}"),
        ("/*SCRIPT*/", "\n".join(_read(f"{name}.js") for name in _SCRIPTS)),
        ("/*DATA*/", _as_json(data)),
    ):
        whole = whole.replace(place, content)
    return whole


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _as_json(data: object) -> str:
    """JSON that may stand within a script element: nothing in it ends the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
