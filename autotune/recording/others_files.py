"""What the files of other tools have in common: results of configs, of which some cannot be read.

What is sound is taken. A config without a usable time counts as one that failed; a result whose config cannot
be read, or is there twice, is left out, and a sentence names it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..facts import stats
from ..facts.device import KNOWN, DeviceLimits, Environment
from ..facts.gemm import MAX_EXTENT, Gemm
from ..facts.measurement import CachePolicy, Measurement, Outcome
from ..facts.other_problem import KERNEL_TUNER, OTHER, OtherProblem, is_product, read_problem
from ..files.errors import UsageError
from ..files.strict import text
from ..files.words import LARGEST, shown
from ..kernel.config import Value
from ..target import Baseline, Point
from .recorded_space import LEAST_US, MOST_S, MOST_US, Recording, collect
from .recording_file import read_record

NO_DATE = "undated"  # most files do not say when they were recorded
UNNAMED = "unnamed GPU"
_MARK = 6  # hexadecimal digits
_REMEMBERED = 4096  # items
_NAMED = 3  # results left out that a note names
_LONGEST_SIZE = 60  # of a size that is no number, in characters
_MOST_SIZES = 3
_MADE = {"shape", "source_hash", "environment", "policy"}  # all of it: a name alone others may use, too


class Tried(NamedTuple):
    """A trial that is written; `timestamp` is ISO 8601, as exact as it is known."""

    items: Sequence[str]  # JSON of each parameter and its value
    values: Sequence[str]  # as text
    measurement: Any  # one, or what has its names
    timestamp: str

    @classmethod
    def of(cls, point: Point, measurement: Measurement, timestamp: str) -> Tried:
        items = [*map(_item, point, point.values())]
        return cls(items, [*map(str, point.values())], measurement, timestamp)


@lru_cache(_REMEMBERED, typed=True)
def _item(name: str, value: Value) -> str:
    return f"{json.dumps(name)}: {json.dumps(value)}"


@dataclass
class Results:
    """Results as they are read, each once."""

    trials: list[tuple[Point, Measurement]] = field(default_factory=list)
    _left_out: list[str] = field(default_factory=list)
    _known: set[tuple[Value, ...]] = field(default_factory=set)

    def add(self, where: str, read: Callable[[], tuple[Point, Measurement]]) -> None:
        """Take a result, or remember why its config cannot be taken."""
        try:
            point, measurement = read()
            values = tuple(point.values())
            if values in self._known:
                raise ValueError(f"{where}: its config is there before")
        except (ValueError, LookupError, ArithmeticError) as error:
            message = f"{where}: no {error}" if isinstance(error, KeyError) else str(error)
            self._left_out.append(message)
            return
        self._known.add(values)
        self.trials.append((point, measurement))

    @property
    def note(self) -> str:
        """How many results failed and why, how many are left out; "" if every config has a time."""
        failed = Counter(m.reason for _, m in self.trials if not m.is_ok)
        if not failed and not self._left_out:
            return ""
        named = failed.most_common(_NAMED)
        reasons = "; ".join(f"{count:,} times {reason}" if count > 1 else reason for reason, count in named)
        more = "; ..." if len(failed) > _NAMED else ""
        parts = [f"{len(self.trials) + len(self._left_out):,} results"]
        parts += [f"{failed.total():,} failed ({reasons}{more})"] if failed else []
        parts += [f"{len(self._left_out):,} left out ({self._named})"] if self._left_out else []
        return ", ".join(parts)

    @property
    def unnamed(self) -> str:
        """A GPU that a file does not name: told from others by the first time. A file that grows keeps it."""
        timed = next(((point, m.time_us) for point, m in self.trials if m.is_ok), None)
        mark = hashlib.sha256(repr(timed).encode()).hexdigest()[:_MARK]
        return f"{UNNAMED} {mark}" if timed else UNNAMED

    @property
    def _named(self) -> str:
        more = "; ..." if len(self._left_out) > _NAMED else ""
        return "; ".join(self._left_out[:_NAMED]) + more

    def recording(self, path: Path, made: Made) -> Recording:
        """All of it. Raises UsageError if no result could be taken."""
        if not self.trials:
            raise UsageError(f"no result can be read ({self._named or 'it holds none'})")
        problems = {made.problem: (Baseline(None), self.trials)}
        limits = _limits(made.environment.gpu_name)
        recording = collect(limits, made.environment, made.policy, made.source, problems)
        note = f"{path}: {self.note}" if self.note else ""
        return replace(recording, note=note, is_steady=False)


@dataclass(frozen=True)
class Made:
    """What results are of: the problem, the kernel's source, and what they were measured on."""

    problem: Gemm
    source: str
    environment: Environment
    policy: CachePolicy

    @classmethod
    def external(cls, problem: Gemm, kernel_name: str, device: str, recorded_on: str = NO_DATE) -> Made:
        """By another tool, which says no more."""
        limits = _limits(device)
        environment = Environment(limits.name, "", limits.compute_capability, "", "", "", "", recorded_on)
        source = OTHER + problem.name if isinstance(problem, OtherProblem) else KERNEL_TUNER + kernel_name
        return cls(problem, source, environment, CachePolicy.WARM)

    @classmethod
    def read(cls, found: Any, recorded_on: str) -> Made | None:
        """What `to_dict` wrote; None for what others say. Raises ValueError, LookupError, UsageError."""
        if not isinstance(found, dict) or not found.keys() >= _MADE:
            return None
        environment = read_record(Environment, found["environment"], "environment")
        timed = read_problem(text(found["shape"], "shape"))
        timed.need_output()
        return cls(
            timed,
            text(found["source_hash"], "source_hash"),
            replace(environment, recorded_on=environment.recorded_on or recorded_on),
            CachePolicy(found["policy"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the kernel's name and the problem in words; which card it was is left out."""
        name = self.problem.name if isinstance(self.problem, OtherProblem) else "sgemm"
        return {
            "kernel": name.partition(":")[0],
            "problem": _in_words(self.problem),
            "shape": str(self.problem),
            "source_hash": self.source,
            "policy": self.policy,
            "environment": replace(self.environment, gpu_uuid="").to_dict(),
        }


def _in_words(gemm: Gemm) -> dict[str, Any]:
    """A single product is told without a batch."""
    if isinstance(gemm, OtherProblem):
        return {"sizes": [size for size in (gemm.m, gemm.n, gemm.k) if size]}
    single = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "layout": gemm.layout}
    batch = {"batch": gemm.batch, "shares_a": gemm.shares_a, "shares_b": gemm.shares_b}
    return {**single, **(batch if gemm.is_batched else {})}


def _limits(device: str) -> DeviceLimits:
    """Of a known GPU; of others nothing is known, and no roofline bounds their times."""
    known = {limits.name: limits for limits in KNOWN.values()}
    nothing = DeviceLimits(device, (0, 0), 0, 0, 0, 0, 0, 0, 0, math.inf, math.inf)
    return known.get(device, nothing)


def problem(kernel_name: str, problem_size: Any) -> Gemm:
    """What a kernel was tuned on: a product where its name says so and its size is [m, n, k], or [m, m] with
    k = m; else what it is called, with its sizes."""
    listed = problem_size if isinstance(problem_size, list) else [problem_size]
    sizes = [_size(size) for size in listed]
    whole = tuple(size for size in sizes if size is not None)
    if len(whole) < len(sizes) or not 1 <= len(whole) <= _MOST_SIZES:
        given = "x".join(str(size)[:_LONGEST_SIZE] for size in listed[: _MOST_SIZES + 1] if size is not None)
        return OtherProblem.of(text(f"{kernel_name}:{given}" if given else kernel_name, "problem_size"), ())
    m, n, k = (*whole, 1, 1)[:3]
    if is_product(kernel_name) and k > 1:
        return Gemm(m, n, k)
    if is_product(kernel_name) and m == n and len(whole) > 1:
        return Gemm(m, n, m)
    return OtherProblem.of(kernel_name, whole)


def _size(size: Any) -> int | None:
    """A size, which some files write as text or as a float; None for anything else."""
    if isinstance(size, str) and size.isascii() and size.isdecimal():
        size = int(size[:20])
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    return size if type(size) is int and 1 <= size <= MAX_EXTENT else None


def point(names: Iterable[str], found: Mapping[str, Any], where: str) -> dict[str, Value]:
    """The values of these parameters. Raises ValueError for what is none, KeyError for a missing one."""
    return {name: _value(found[name], f"{where}: {name}") for name in names}


def _value(value: Any, where: str) -> Value:
    """A word or a number; a flag counts as one, and what has parts is named by its JSON."""
    if isinstance(value, str):
        return text(value, where)
    if isinstance(value, list | dict) or value is None:
        return text(json.dumps(value, separators=(",", ":")), where)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{where}: {shown(value)} is no value of a parameter")
    return int(value)


def seconds(value: Any, unit_s: float) -> float:
    """A time that a step took, 0 where that is not known."""
    is_known = type(value) in (int, float) and 0 <= value <= MOST_S / unit_s
    return value * unit_s if is_known else 0.0


def measured(samples: Any, time: Any, unit_us: float, took_s: dict[str, Any]) -> Measurement:
    """Of samples, or of the one time where there is none. Without a usable time the config failed."""
    if not _is_time(time, unit_us):
        return failed(f"time {shown(time)}" if time is not None else "without a time", took_s)
    listed = samples if isinstance(samples, list) else []
    times = [sample for sample in listed if _is_time(sample, unit_us)] or [time]
    samples_us = tuple(sample * unit_us for sample in times)
    return Measurement(Outcome.OK, time_us=stats.median(samples_us), samples_us=samples_us, **took_s)


def failed(reason: str, took_s: dict[str, Any], outcome: Outcome = Outcome.FAULTED) -> Measurement:
    """A config without a time; of what was done only the compile counts."""
    return Measurement(outcome, text(reason, "reason"), compile_s=took_s.get("compile_s", 0.0))


def _is_time(value: Any, unit_us: float) -> bool:
    return type(value) in (int, float) and LEAST_US / unit_us <= value <= MOST_US / unit_us


def names_of(found: Sequence[Any] | Mapping[str, Any]) -> tuple[str, ...]:
    """Names of parameters, each once. Raises ValueError."""
    names = tuple(text(name, "a parameter's name") for name in found)
    if not names or len(set(names)) < len(names):
        raise ValueError("expected names of parameters, each once")
    return names
