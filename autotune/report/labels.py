"""Labels for configs that stand side by side: short, and no two alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..kernel.config import Value

Point = Mapping[str, Value]


def labels(points: Sequence[Point], describe: Callable[[Point], str]) -> list[str]:
    """What `describe` says of each; behind it, where several share that, the parameters that differ."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(describe(point), []).append(point)
    return [" ".join([describe(point), *_distinct(point, groups[describe(point)])]) for point in points]


def _distinct(point: Point, groups: Sequence[Point]) -> list[str]:
    """`name=value` of each parameter that does not have one value in all of them."""
    return [
        f"{name}={value}"
        for name, value in point.items()
        if any(other.get(name) != value for other in groups)
    ]
