"""Figures from the measurements of any_shape.py: by kind of shape, beside the bars that a table has to reach.

Ratios are speeds: above 1 is faster. Each is the median of the ratios within rounds, each mean a geometric
one.
Where cuBLAS serves, the ratio is 1 by definition: the runtime makes the very call that is the yardstick.
What was chosen by times was chosen by the even rounds, and its ratios are of the odd ones.
The best kernel of a table, and the reference, are the best of those that are accurate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from statistics import geometric_mean as mean
from typing import Any

from table_arena import ALONE, CUBLAS

from autotune.cli import console
from autotune.facts import stats
from autotune.facts.distribution import KINDS, signature_of_shape
from autotune.facts.gemm import LAYOUTS, Gemm

Facts = Mapping[str, Any]
Samples = Mapping[str, Sequence[float]]
SLOWER, NEVER = 0.98, 0.93  # times cuBLAS's speed: few shapes may be below the first, none below the second
MOST_ERROR = 1.5  # times cuBLAS's
MOST_COST = 3.0  # settled calls that all samples of a shape may lose
NUM_WORST = 5  # shapes that are named
CHOOSE, TELL = slice(0, None, 2), slice(1, None, 2)  # rounds


def speed(samples: Samples, name: str, other: str, rounds: slice = slice(None)) -> float:
    """How many times as fast a launch is as another."""
    pairs = zip(samples[other][rounds], samples[name][rounds], strict=True)
    return stats.median([theirs / ours for theirs, ours in pairs])


def fastest(samples: Samples, names: Sequence[str]) -> str:
    """By the rounds that choose."""
    return min(names, key=lambda name: stats.median(samples[name][CHOOSE]))


@dataclass(frozen=True)
class Against:
    """A shape against cuBLAS."""

    shape: Facts
    modelled: float  # the kernel that is picked
    served: float  # the same, or 1 where cuBLAS is picked as the provider: it is the same call of it
    settled: float  # the fastest of cuBLAS and the accurate launches that settling times
    errors: dict[str, float]  # of the kernel that is picked, by kind of numbers, times cuBLAS's
    settled_on: str  # the name of this launch
    settled_error: float | None  # its worst error, likewise; None where it was not measured
    cublas_us: float

    @classmethod
    def of(cls, shape: Facts) -> Against:
        facts = shape["pick"]
        samples = facts["samples_us"]
        chosen = fastest(samples, [*facts["first"], CUBLAS])
        known = {  # older files have the error of the pick alone, under this name
            kind: {facts["name"]: found["pick"], CUBLAS: found[CUBLAS]} if "pick" in found else found
            for kind, found in facts["errors"].items()
        }
        errors = {kind: _times(found[facts["name"]], found[CUBLAS]) for kind, found in known.items()}
        of_settled = [_times(found[chosen], found[CUBLAS]) for found in known.values() if chosen in found]
        modelled = speed(samples, facts["name"], CUBLAS)
        served = 1.0 if facts["provider"] == CUBLAS else modelled
        settled = speed(samples, chosen, CUBLAS, TELL)
        settled_error, cublas_us = max(of_settled, default=None), stats.median(samples[CUBLAS])
        return cls(shape, modelled, served, settled, errors, chosen, settled_error, cublas_us)

    def is_left(self, how: str) -> bool:
        """Whether cuBLAS serves the shape, `served` or `settled`."""
        provider: str = self.shape["pick"]["provider"]
        return (provider if how == "served" else self.settled_on) == CUBLAS

    @property
    def error(self) -> float:
        """The worst error of the kernel, over both kinds of numbers."""
        return max(self.errors.values())


def is_accurate(errors: Mapping[str, Mapping[str, float]], name: str) -> bool:
    """Whether a launch is as accurate as a table has to be, by the errors of each kind of numbers."""
    return all(_times(found[name], found[CUBLAS]) <= MOST_ERROR for found in errors.values())


def _times(error: float, cublas: float) -> float:
    return error / cublas if cublas else math.inf if error else 1.0


@dataclass(frozen=True)
class Reached:
    """A shape that was tuned alone: speeds against the reference, and within the table."""

    shape: Facts
    over_cublas: float  # of the reference
    portfolio: float  # the table's best kernel, over the reference
    modelled: float  # the pick, over the table's best kernel
    settled: float
    modelled_in_all: float  # over the reference
    settled_in_all: float

    @classmethod
    def of(cls, shape: Facts, *, of_any_error: bool = False) -> Reached:
        facts = shape["reference"]
        samples, errors = facts["samples_us"], {} if of_any_error else facts.get("errors", {})
        every = [name for name in samples if name not in (CUBLAS, ALONE)]
        ours = [name for name in every if is_accurate(errors, name)] or every
        alone = [ALONE] if is_accurate(errors, ALONE) else []
        portfolio, reference = fastest(samples, ours), fastest(samples, [*ours, *alone])
        pick = facts["name"]
        settled = fastest(samples, facts["first"] or [pick])

        def message(name: str, other: str) -> float:
            return speed(samples, name, other, TELL)

        return cls(
            shape,
            message(reference, CUBLAS),
            message(portfolio, reference),
            message(pick, portfolio),
            message(settled, portfolio),
            message(pick, reference),
            message(settled, reference),
        )


@dataclass(frozen=True)
class OnCalls:
    """A shape that was settled on calls: speeds in the rounds that tell."""

    against: Against
    is_settled: bool
    over_cublas: float
    over_settled: float  # over what settling at first use chooses
    cost_calls: float  # that the samples lost, in calls of what serves in the end
    stays_slower: bool  # than cuBLAS, in each measurement more

    @property
    def shape(self) -> Facts:
        return self.against.shape

    @classmethod
    def of(cls, against: Against) -> OnCalls:
        facts = against.shape["pick"]
        samples, live = facts["samples_us"], facts["live"]
        name, again = live["name"], live.get("again_us", [])
        stays = bool(again) and all(speed(one, name, CUBLAS) < SLOWER for one in again)
        over_cublas = speed(samples, name, CUBLAS, TELL)
        over_settled = speed(samples, name, against.settled_on, TELL)
        return cls(against, live["is_settled"], over_cublas, over_settled, live["cost_calls"], stays)


def line(shape: Facts) -> str:
    """A shape in a few words, while others are measured."""
    words = []
    if "samples_us" in shape.get("pick", ()):
        against = Against.of(shape)
        ways = f"{against.modelled:.3f}x cuBLAS, served {against.served:.3f}x, settled {against.settled:.3f}x"
        words.append(f"{ways}, error {against.error:.2f}x")
        if "live" in shape["pick"]:
            words.append(f"on calls {OnCalls.of(against).over_cublas:.3f}x")
    if "samples_us" in shape.get("reference", ()):
        reached = Reached.of(shape)
        words.append(
            f"portfolio {reached.portfolio:.3f}, pick {reached.modelled:.3f}, settled {reached.settled:.3f}"
        )
    return "; ".join(words)


# ------------------------------------------------------------------------------------------------
# Tables


def text(*reports: Facts) -> str:
    """All tables of one report or of several together, the worst shapes by name, and the bars."""
    shapes = [shape for report in reports for shape in report["shapes"]]
    evaluated = [
        [Against.of(s) for s in report["shapes"] if "samples_us" in s.get("pick", ())] for report in reports
    ]
    against = [one for some in evaluated for one in some]
    reached = [Reached.of(s) for s in shapes if "samples_us" in s.get("reference", ())]
    faults = [s for s in shapes if any("fault" in s.get(part, ()) for part in ("pick", "reference"))]
    parts = [_head(report) for report in reports]
    parts.append(f"{len(against)} of {len(shapes)} shapes against cuBLAS, {len(reached)} against a reference")
    if len(reports) == 2 and (both := _of_both(*evaluated)):
        parts.append(both)
    if against:
        parts += [_against_table(against), _whole_table(against)]
        on_calls = on_calls_of(against)
        parts += [_on_calls_table(on_calls)] if on_calls else []
        parts.append(_worst("against cuBLAS", against, lambda one: one.served))
        errors = [*(_errors(against, kind) for kind in against[0].errors), _settled_errors(against)]
        parts.append("\n".join(errors))
    if reached:
        parts += [_reached_table(reached), _of_any_error(shapes)]
        parts.append(_worst("pick over reference", reached, lambda one: one.modelled_in_all))
        parts.append(_worst("portfolio over reference", reached, lambda one: one.portfolio))
    for shape in faults:
        message = (shape[part]["fault"] for part in ("pick", "reference") if "fault" in shape.get(part, ()))
        parts.append(f"{name_of(shape)} FAILED: {'; '.join(message)}")
    is_of_one = all(report["table"]["num_tuned"] == 1 for report in reports)
    found = bars(against, reached, len(faults), is_of_one=is_of_one)
    parts.append(_bars_text(found))
    return "\n\n".join(parts)


def name_of(shape: Facts) -> str:
    """Its extents and layout, and its leading dimensions where these are not packed."""
    is_packed = shape["sort"] != "odd leading dimensions"
    return shape["shape"] if is_packed else f"{shape['shape']} ld {','.join(map(str, shape['lds']))}"


def _head(report: Facts) -> str:
    table, sessions = report["table"], report["sessions"]
    kernels = ", ".join(f"{num} {layout}" for layout, num in table["num_kernels"].items())
    dates = sorted({session["date"][:10] for session in sessions})
    versions = sorted({session["environment"]["cublas_version"] for session in sessions})
    return (
        f"{report['gpu']}, cuBLAS {', '.join(versions)}, {' to '.join(dates[:1] + dates[1:][-1:])}; seed "
        f"{report['seed']}, {report['policy']} operands\n"
        f"table of {table['created_at']}: kernels {kernels}; {table['num_tuned']} tuned shapes"
    )


def _of_both(first: Sequence[Against], second: Sequence[Against]) -> str | None:
    """How much longer picks and cuBLAS take in the second report, on the products that both judged: of one
    seed, two GPU models draw many in common."""

    def times_us(against: Sequence[Against]) -> dict[tuple[Any, ...], tuple[float, float]]:
        return {
            (one.shape["shape"], *one.shape["lds"]): (one.cublas_us / one.modelled, one.cublas_us)
            for one in against
        }

    before, after = times_us(first), times_us(second)
    shared = before.keys() & after.keys()
    if not shared:
        return None
    ours, cublas = (mean([after[x][i] / before[x][i] for x in shared]) for i in range(2))
    return (
        f"{len(shared)} products are in both: in the second, kernels that are picked take {ours:.3f} times "
        f"as long as in the first, cuBLAS {cublas:.3f} times"
    )


def groups(found: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """By kind, by what is odd, by layout, and all."""
    pairs = [(one, Gemm.parse(one.shape["shape"])) for one in found]
    split = [(kind, [one for one, gemm in pairs if signature_of_shape(gemm) == kind]) for kind in KINDS]
    for sort in dict.fromkeys(one.shape["sort"] for one in found):
        split.append((sort, [one for one in found if one.shape["sort"] == sort]))
    split += [(layout, [one for one, gemm in pairs if gemm.layout == layout]) for layout in LAYOUTS]
    split.append(("all", list(found)))
    return [(name, some) for name, some in split if some]


def tenth(speeds: Sequence[float]) -> float:
    """The tenth percentile: that many are slower."""
    return sorted(speeds)[len(speeds) // 10]


def share_below(speeds: Sequence[float], least: float) -> float:
    return sum(one < least for one in speeds) / len(speeds)


def _against_table(against: Sequence[Against]) -> str:
    headers = ["over cuBLAS", "shapes"]
    ways = ("modelled", "served", "settled")
    headers += [f"{how}{x}" for how in ways for x in ("", f" < {SLOWER}", " worst")]
    rows = []
    for name, some in groups(against):
        cells: list[str] = [name, str(len(some))]
        for speeds in ([getattr(one, how) for one in some] for how in ways):
            cells += [f"{mean(speeds):.3f}", f"{share_below(speeds, SLOWER):.1%}", f"{min(speeds):.3f}"]
        rows.append(cells)
    return console.table(headers, rows, right=range(1, len(headers)))


def _whole_table(against: Sequence[Against]) -> str:
    """What a geometric mean does not tell: how many shapes cuBLAS serves, the middle one, and seconds."""
    ways, message = ("served", "settled"), (" by cuBLAS", " median", " total time")
    headers = ["1 where cuBLAS serves", "shapes", *(f"{how}{what}" for how in ways for what in message)]
    rows = []
    for name, some in [pair for pair in groups(against) if pair[0] in (*KINDS, "all")]:
        cells = [name, str(len(some))]
        for how in ways:
            share = sum(one.is_left(how) for one in some) / len(some)
            middle = stats.median([getattr(one, how) for one in some])
            cells += [f"{share:.0%}", f"{middle:.3f}", f"{of_total_time(some, how):.3f}"]
        rows.append(cells)
    return console.table(headers, rows, right=range(1, len(headers)))


def of_total_time(against: Sequence[Against], how: str) -> float:
    """How many times as fast one call of each shape is as with cuBLAS alone: long shapes decide it."""
    kernel_us: float = sum(one.cublas_us / getattr(one, how) for one in against)
    return sum(one.cublas_us for one in against) / kernel_us


def on_calls_of(against: Sequence[Against]) -> list[OnCalls]:
    return [OnCalls.of(one) for one in against if "live" in one.shape["pick"]]


def _on_calls_table(found: Sequence[OnCalls]) -> str:
    headers = [
        "settled on calls", "shapes", "not settled", "over cuBLAS", "over first use", "its total time",
        "cost in calls", "most", f"stay < {SLOWER}",
    ]  # fmt: skip
    rows = [
        [
            name, str(len(some)), str(sum(not one.is_settled for one in some)),
            f"{mean([one.over_cublas for one in some]):.3f}",
            f"{mean([one.over_settled for one in some]):.3f}", f"{of_total_time_settled(some):.3f}",
            f"{fmean(one.cost_calls for one in some):.2f}", f"{max(one.cost_calls for one in some):.2f}",
            str(sum(one.stays_slower for one in some)),
        ]
        for name, some in groups(found)
    ]  # fmt: skip
    return console.table(headers, rows, right=range(1, len(headers)))


def of_total_time_settled(found: Sequence[OnCalls]) -> float:
    """How many times as fast one call of each shape is as where it was settled at first use."""
    pairs = [(one.against.cublas_us / one.against.settled, one.over_settled) for one in found]
    return sum(us for us, _ in pairs) / sum(us / over for us, over in pairs)


def _reached_table(reached: Sequence[Reached]) -> str:
    headers = [
        "tuned alone too", "shapes", "reference / cuBLAS", "portfolio / reference", "pick / portfolio",
        "settled / portfolio", "pick / reference", "settled / reference",
        "10 % of picks below, / portfolio", "/ reference",
    ]  # fmt: skip
    names = ("over_cublas", "portfolio", "modelled", "settled", "modelled_in_all", "settled_in_all")
    rows = []
    for name, some in groups(reached):
        means = [mean([getattr(one, x) for one in some]) for x in names]
        low = [tenth([getattr(one, x) for one in some]) for x in ("modelled", "modelled_in_all")]
        rows.append([name, str(len(some)), *(f"{figure:.3f}" for figure in (*means, *low))])
    return console.table(headers, rows, right=range(1, len(headers)))


def _of_any_error(shapes: Sequence[Facts]) -> str:
    reached = [Reached.of(s, of_any_error=True) for s in shapes if "samples_us" in s.get("reference", ())]
    names = ("portfolio", "modelled", "settled")
    figures = [mean([getattr(one, name) for one in reached]) for name in names]
    return (
        f"beside kernels of any error: portfolio / reference {figures[0]:.3f}, pick / portfolio "
        f"{figures[1]:.3f}, settled / portfolio {figures[2]:.3f}"
    )


def _worst(what: str, found: Sequence[Any], value: Callable[[Any], float]) -> str:
    ranked = sorted(found, key=value)[:NUM_WORST]
    message = ", ".join(f"{name_of(one.shape)} {value(one):.3f}" for one in ranked)
    return f"worst {what}: {message}"


def _errors(against: Sequence[Against], kind: str) -> str:
    """A line about one kind of numbers."""
    ranked = sorted(against, key=lambda one: one.errors[kind], reverse=True)
    above = [one for one in ranked if one.errors[kind] > MOST_ERROR]
    named = ", ".join(f"{name_of(one.shape)} {one.errors[kind]:.2f}" for one in above[:NUM_WORST])
    middle, most = mean([one.errors[kind] for one in against]), ranked[0].errors[kind]
    return (
        f"error on {kind} numbers, times cuBLAS's: mean {middle:.2f}, most {most:.2f}; "
        f"{len(above)} shapes above {MOST_ERROR}" + (named and f": {named}")
    )


def _settled_errors(against: Sequence[Against]) -> str:
    """A line about the kernels that shapes are settled on."""
    by_kernels = [one for one in against if not one.is_left("settled")]
    known = [one.settled_error for one in by_kernels if one.settled_error is not None]
    above, unknown = sum(error > MOST_ERROR for error in known), len(by_kernels) - len(known)
    return (
        f"error of settled kernels, times cuBLAS's: most {max(known, default=0.0):.2f}; {above} of "
        f"{len(known)} above {MOST_ERROR}" + (f"; not measured on {unknown} others" if unknown else "")
    )


# ------------------------------------------------------------------------------------------------
# Bars


@dataclass(frozen=True)
class Goal:
    """A figure and its goal: a least or a largest value."""

    what: str
    figure: float
    least: float | None = None
    most: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.least is None or self.figure >= self.least) and (
            self.most is None or self.figure <= self.most
        )


def bars(
    against: Sequence[Against], reached: Sequence[Reached], num_faults: int, *, is_of_one: bool
) -> list[Goal]:
    """Of what was measured. Those of the reference hold for each kind; the worst kind is told. Of a table
    from a search of one shape less is asked (`is_of_one`)."""
    found = [Goal("shapes that failed", num_faults, most=0)]
    modelled, served, settled = (
        [getattr(one, how) for one in against] for how in ("modelled", "served", "settled")
    )
    if against:
        largest = max(one.error for one in against)
        by_kernels = [one.error for one in against if one.shape["pick"]["provider"] != CUBLAS]
        largest_served = max(by_kernels, default=1.0)
        found += [
            Goal("modelled over cuBLAS, mean", mean(modelled), least=1.10 if is_of_one else 1.20),
            Goal("with cuBLAS as a provider, mean", mean(served), least=1.10 if is_of_one else 1.20),
            Goal("largest error of a kernel, times cuBLAS's", largest, most=MOST_ERROR),
            Goal("the same with cuBLAS as a provider", largest_served, most=MOST_ERROR),
        ]
    if against and not is_of_one:
        found += [
            Goal(f"share of shapes below {SLOWER}, served", share_below(served, SLOWER), most=0.02),
            Goal(f"share of shapes below {SLOWER}, settled", share_below(settled, SLOWER), most=0.005),
            Goal("least over cuBLAS, served", min(served), least=NEVER),
            Goal("least over cuBLAS, settled", min(settled), least=NEVER),
            Goal("share of shapes left to cuBLAS", fmean(one.is_left("served") for one in against), most=0.4),
        ]
    if on_calls := on_calls_of(against):
        found += [
            Goal(
                "settled on calls over first use, mean", mean([x.over_settled for x in on_calls]), least=0.98
            ),
            Goal("the same, total time", of_total_time_settled(on_calls), least=0.98),
            Goal(
                "samples cost at most, in calls",
                max(x.cost_calls for x in on_calls),
                most=MOST_COST,
            ),
            Goal(f"shapes that stay below {SLOWER}", sum(x.stays_slower for x in on_calls), most=0),
            Goal("settled on calls over cuBLAS, mean", mean([x.over_cublas for x in on_calls]), least=1.15),
        ]
    if reached and not is_of_one:
        of_kinds = [(name, some) for name, some in groups(reached) if name in KINDS]
        for what, name, least in (
            ("portfolio / reference", "portfolio", 0.93),
            ("pick / portfolio, modelled", "modelled", 0.95),
            ("pick / portfolio, settled", "settled", 0.985),
            ("pick / reference, modelled", "modelled_in_all", 0.88),
            ("pick / reference, settled", "settled_in_all", 0.92),
        ):
            figure, kind = min((mean([getattr(o, name) for o in some]), kind) for kind, some in of_kinds)
            found.append(Goal(f"{what} ({kind})", figure, least=least))
        for what, name, least in (
            ("pick / portfolio", "modelled", 0.97),
            ("pick / reference", "modelled_in_all", 0.93),
        ):
            speeds = [getattr(one, name) for one in reached]
            found.append(Goal(f"{what}, mean of all", mean(speeds), least=least))
            found.append(Goal(f"{what}, tenth percentile", tenth(speeds), least=0.90))
    return found


def _bars_text(found: Sequence[Goal]) -> str:
    rows = [
        [
            bar.what,
            f"{bar.figure:.3f}",
            f">= {bar.least}" if bar.most is None else f"<= {bar.most}",
            "met" if bar.is_met else "MISSED",
        ]
        for bar in found
    ]
    return console.table(["bar", "figure", "has to be", ""], rows, right=(1, 2))
