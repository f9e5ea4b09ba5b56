"""`autotune coverage`: what a table does for the calls of a program, by number and by time, beside cuBLAS."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from ..facts.cublas_calls import adds_bias_within
from ..facts.device import DeviceLimits
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..files.errors import DispatchError
from ..files.words import counted
from ..kernel.launch import BIAS, PLAIN, name_of
from ..perf_model import cublas_model
from ..runtime.calls.product import Product
from ..runtime.choose.chooser import Call, Chooser, Pick
from ..runtime.table.gpu_models import load_models
from ..runtime.table.table import Table
from ..suite import ALIGNED, CallSignature, Suite, read_calls
from . import common, console
from .facts_table import facts_table
from .requests import CoverageRequest

_COLUMNS = {
    "served": "way", "kinds": "num_kinds", "calls": "num_calls", "of calls": "share_of_calls",
    "time": "seconds", "of time": "share_of_seconds", "by cuBLAS": "cublas_seconds", "gain": "speedup",
}  # fmt: skip
MATCHES = ("tuned", "modelled", "cublas", "missed")
_US = 1e-6
_PROGRESS_EVERY = 256  # call signatures: some hundredths of a second
_THREADS = 2
_DESCRIPTION = (
    "tuned: by a kernel that was timed on the shape; modelled: by the one that is expected to be fastest; "
    "cublas: by cuBLAS, which is expected to be as fast; missed: by a kernel that serves anything, or none. "
    "Times are of the table and its models; where these say nothing, what the hardware takes at least. "
    "by cuBLAS: what it takes alone, as it was timed or modelled, with a bias as torch calls it; gain: over "
    "the table, on the same calls."
)


class ServedSignature(NamedTuple):
    """One call signature. `time_us`: of a call; `cublas_us`: of one by cuBLAS alone, None if unknown."""

    kind: CallSignature
    calls: int
    way: str
    time_us: float
    cublas_us: float | None

    @property
    def seconds(self) -> float:
        return _US * self.calls * self.time_us

    @property
    def cublas_s(self) -> float | None:
        return None if self.cublas_us is None else _US * self.calls * self.cublas_us


def run(request: CoverageRequest, *, is_json: bool) -> None:
    """Tell how each table of a folder serves what was recorded, and up to so many call signatures that are
    not tuned, those that take most first. Records do not say on which GPU a call was made: each table is told
    of all of them. Raises UsageError, DispatchError."""
    with console.Progress() as progress:

        def tell(what: str, done: int, of: int) -> None:
            progress.update(f"{what}: {done:,} of {of:,}")

        suite = read_calls(request.calls, console.note, partial(tell, "records read"))
        look_up = partial(tell, "call signatures looked up")
        tables = [table for _, table in load_models(request.table)]
        first, *others = (_facts(table, suite, request.limit, look_up) for table in tables)
    head = {"calls": str(request.calls), "table": str(request.table)}
    if is_json:
        console.show_json({**head, **first, "other_gpus": others})
        return
    for facts in (first, *others):
        console.show(_text({**head, **facts}))
    if any(facts["ways"]["tuned"]["num_kinds"] < facts["num_kinds"] for facts in (first, *others)):
        console.show(f"Next: autotune search --suite {shlex.quote(str(request.calls))}, and export-table")


def _facts(table: Table, suite: Suite, limit: int, tell: Callable[[int, int], None]) -> dict[str, Any]:
    chooser = Chooser(table)
    _ = chooser.core  # raises DispatchError where there is none, for which no call is missed
    served = _served(chooser, table.limits, [*suite.calls.items()], tell)
    not_tuned = sorted((one for one in served if one.way != "tuned"), key=lambda one: -one.seconds)
    return {
        "gpu": table.environment.gpu_name,
        "num_kinds": len(served),
        "num_calls": sum(one.calls for one in served) + suite.others,
        "seconds": sum(one.seconds for one in served),
        **_compare_to_cublas(served),
        "ways": _matches(served, suite.others),
        "not_tuned": [_kind_facts(one, _why(chooser, one.kind)) for one in not_tuned[:limit]],
    }


def _served(
    chooser: Chooser,
    limits: DeviceLimits,
    calls: Sequence[tuple[CallSignature, int | None]],
    tell: Callable[[int, int], None],
) -> list[ServedSignature]:
    """Each in turn, by two threads: while the core chooses for one, Python goes on with the other."""

    def some_of(at: int) -> list[ServedSignature]:
        some = calls[at : at + _PROGRESS_EVERY]
        return [ServedSignature(kind, count or 1, *_way(chooser, limits, kind)) for kind, count in some]

    served, pool = list[ServedSignature](), ThreadPoolExecutor(_THREADS)
    try:
        for some in pool.map(some_of, range(0, len(calls), _PROGRESS_EVERY)):
            served += some
            if len(some) == _PROGRESS_EVERY:
                tell(len(served), len(calls))
    finally:
        pool.shutdown(cancel_futures=True)
    return served


def _way(chooser: Chooser, limits: DeviceLimits, kind: CallSignature) -> tuple[str, float, float | None]:
    """How a call signature is served, in us of a call, in us of cuBLAS alone."""
    gemm = kind.gemm
    if not (gemm.m and gemm.n):
        return "tuned", 0.0, 0.0  # the result has no elements
    try:
        pick = _pick(chooser, kind)
    except DispatchError:
        return "missed", cublas_model.least_us(gemm, limits), None
    way, time_us = _way_of(pick), _time_us(pick) or cublas_model.least_us(gemm, limits)
    return way, time_us, time_us if way == "cublas" else pick.cublas_us


def _pick(chooser: Chooser, kind: CallSignature) -> Pick:
    """Raises DispatchError where nothing serves."""
    gemm, low = kind.gemm, [alignment % ALIGNED for alignment in kind.alignment]
    packed, at = Product(gemm, kind.lds, gemm.operand_bytes, gemm.strides), (low[0], low[1], low[2])
    served = chooser.served_as(packed, at)
    adds_bias = kind.epilogue == BIAS and adds_bias_within(gemm)  # torch has cuBLAS do so
    own = adds_bias, kind.epilogue != PLAIN
    pick = chooser.pick(Call(served.gemm, served.lds, at, served.batch, *own))
    if kind.epilogue != PLAIN:  # the reason is the plain kernel's
        chooser.with_epilogue(pick, kind.epilogue)
    return pick


def _why(chooser: Chooser, kind: CallSignature) -> str:
    """Why it is served so: of the few that are shown, as saying so takes as long as choosing."""
    try:
        return _pick(chooser, kind).reason
    except DispatchError as error:
        return str(error)


def _way_of(pick: Pick) -> str:
    if pick.provider == "cublas":
        return "cublas"
    if pick.is_looped:
        return "missed"
    return {"exact": "tuned", "default": "missed"}.get(pick.how, "modelled")


def _time_us(pick: Pick) -> float | None:
    return pick.cublas_us if pick.provider == "cublas" else pick.expected_us


def _compare_to_cublas(served: Iterable[ServedSignature]) -> dict[str, float | None]:
    """What cuBLAS takes alone, and how many times as fast the table is: of the kinds of which that is known,
    which take `known_share` of the table's time."""
    pairs = [(one.cublas_s, one.seconds) for one in served]
    known = [(cublas_s, own_s) for cublas_s, own_s in pairs if cublas_s is not None]
    cublas_s, own_s = (sum(column) for column in zip(*known, strict=True)) if known else (None, None)
    share = common.share(own_s, sum(seconds for _, seconds in pairs))
    return {"cublas_seconds": cublas_s, "speedup": common.share(cublas_s, own_s), "known_share": share}


def _matches(served: Sequence[ServedSignature], others: int) -> dict[str, dict[str, Any]]:
    """Kinds, calls and seconds of each way, and their shares. Calls of which nothing is known are missed."""
    num_calls = sum(one.calls for one in served) + others
    seconds = sum(one.seconds for one in served)
    found = {}
    for way in MATCHES:
        own = [one for one in served if one.way == way]
        calls = sum(one.calls for one in own) + (others if way == "missed" else 0)
        own_s = sum(one.seconds for one in own)
        found[way] = {
            "num_kinds": len(own),
            "num_calls": calls,
            "share_of_calls": common.share(calls, num_calls),
            "seconds": own_s,
            "share_of_seconds": common.share(own_s, seconds),
            **_compare_to_cublas(own),
        }
    return found


def _kind_facts(one: ServedSignature, why: str) -> dict[str, Any]:
    gemm, lds, alignment, epilogue = one.kind
    return {
        "shape": str(gemm),
        "epilogue": None if epilogue == PLAIN else name_of(epilogue),
        "ld": lds,
        "align": alignment,
        "count": one.calls,
        "served": one.way,
        **picked(one, "time_us cublas_us seconds"),
        "why": why,
    }


def _text(facts: dict[str, Any]) -> str:
    head = (
        f"{facts['calls']}: {counted(facts['num_calls'], 'call')} of {counted(facts['num_kinds'], 'kind')}, "
        f"{console.seconds_text(facts['seconds'])} as expected, by {facts['table']} for {facts['gpu']}"
        f"{_gain_text(facts)}"
    )
    matches = facts_table([{"way": way, **found} for way, found in facts["ways"].items()], _COLUMNS)
    parts = [console.wrap_text(head), matches, console.wrap_text(_DESCRIPTION)]
    if facts["not_tuned"]:
        rows = [_row(one, facts["seconds"]) for one in facts["not_tuned"]]
        columns = ("not tuned", "calls", "of time", "served", "why")
        parts.append(console.table(columns, rows, right=(1, 2), ends_in_text=True))
    return "\n".join(parts)


def _gain_text(facts: dict[str, Any]) -> str:
    if facts["speedup"] is None:
        return "; what cuBLAS takes is not known: `autotune search --any 80` adds that"
    share, gain = facts["known_share"], console.ratio_text(facts["speedup"])
    known = "" if share > 1 - 1e-9 else f", of the {share:.0%} of the time for which that is known"
    return f"; {console.seconds_text(facts['cublas_seconds'])} by cuBLAS alone, {gain}{known}"


def _row(one: dict[str, Any], seconds: float) -> tuple[str, ...]:
    share = console.ratio_text(common.share(one["seconds"], seconds), "%")
    why = one["why"].removeprefix(f"{one['shape']} ").removeprefix("was not tuned: ")  # beside the shape
    return _name(one), f"{one['count']:,}", share, one["served"], why


def _name(one: dict[str, Any]) -> str:
    """The shape, and what is not as it is tuned."""
    shape: str = one["shape"]
    packed = CallSignature.packed(Gemm.parse(shape))
    ld = "" if one["ld"] == packed.lds else " ld " + ",".join(map(str, one["ld"]))
    align = "" if one["align"] == packed.alignment else " align " + ",".join(map(str, one["align"]))
    epilogue = f" {one['epilogue']}" if one["epilogue"] else ""
    return shape + epilogue + ld + align
