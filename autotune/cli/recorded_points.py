"""Which configs a recorded space holds: a sample of spaces too large to time, with their best parts in it.

Configs drawn at random are nearly all far from the optimum, and a space of them alone has no hill to climb.
So a sample has three parts: what searches tried, the best of it first; relatives of the best; and random
configs. The result is meant to look like a real space: many bad, some good, a few excellent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from ..facts.gemm import Gemm
from ..kernel.feasible_set import FeasibleSet
from ..search.propose.candidates import Candidates
from ..target import Point, point_key

TRIED_SHARE = 0.3  # of the sample, at most: what searches tried
KIN_SHARE = 0.2  # and at most: relatives of the best
NUM_PARENTS = 6  # best configs of each problem whose relatives are taken
MIXTURES = 300  # relatives that take several parameters from elsewhere
FAIR_SHARE = 2.0  # of the random part: at most so many times an equal share for one problem
_MOST_LISTED = 1 << 20  # points of a set that are shuffled as a list; from a larger one they are drawn


@dataclass(frozen=True)
class Source:
    """A problem of the recording: its feasible set, and what was tried in it, the fastest first."""

    gemm: Gemm
    space: FeasibleSet
    tried: Sequence[Point] = ()


def sample(
    sources: Sequence[Source], size: int, seed: int, allows: Callable[[Point], Collection[Gemm]]
) -> list[Point]:
    """At most `size` distinct points for all problems, fewer only where there are no more. `allows` tells on
    which problems a point may run. The same arguments give the same points in the same order: what was tried,
    relatives, random ones, problems taking turns in each."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, Point] = {}
    _take(chosen, (source.tried for source in sources), round(TRIED_SHARE * size))
    _take(chosen, (_kin(source, rng) for source in sources), len(chosen) + round(KIN_SHARE * size))
    _fill(chosen, sources, size, rng, allows)
    return list(chosen.values())


def whole(sources: Sequence[Source], seed: int) -> list[Point]:
    """Every point of every problem's set, each once, in an order that the seed decides."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, Point] = {}
    _take(chosen, (_shuffled(source.space, rng) for source in sources), sum(len(s.space) for s in sources))
    return list(chosen.values())


def _take(chosen: dict[str, Point], streams: Iterable[Iterable[Point]], size: int) -> None:
    """Take new points from the streams by turns until `size` are chosen."""
    for point in filter(None, chain.from_iterable(zip_longest(*streams))):
        if len(chosen) >= size:
            return
        chosen.setdefault(point_key(point), point)


def _kin(source: Source, rng: np.random.Generator) -> Iterator[Point]:
    """Points of the set that differ little from the best tried ones, shuffled."""
    numbers = [source.space.find(point) for point in source.tried]
    parents = np.array([n for n in numbers if n is not None][:NUM_PARENTS], dtype=np.int64)
    candidates = Candidates(source.space)
    near = candidates.neighbours(parents)
    mixed = candidates.mixtures(rng, parents, MIXTURES)
    for number in rng.permutation(np.union1d(near, mixed)):
        yield source.space.point(int(number))


def _fill(
    chosen: dict[str, Point],
    sources: Sequence[Source],
    size: int,
    rng: np.random.Generator,
    allows: Callable[[Point], Collection[Gemm]],
) -> None:
    """Random points until `size` are chosen, from the set of the problem that can run the fewest so far."""
    most = round(FAIR_SHARE * (size - len(chosen)) / len(sources)) if len(sources) > 1 else size
    streams = {source.gemm: _shuffled(source.space, rng) for source in sources}
    num_drawn = dict.fromkeys(streams, 0)
    num_allowed = dict.fromkeys(streams, 0)
    for gemm in chain.from_iterable(map(allows, chosen.values())):
        num_allowed[gemm] += 1
    while streams and len(chosen) < size:
        shape = min(streams, key=lambda gemm: num_allowed[gemm])
        point = _next_new(streams[shape], chosen)
        num_drawn[shape] += 1
        if point is None or num_drawn[shape] >= most:
            del streams[shape]
        if point is not None:
            chosen[point_key(point)] = point
            for gemm in allows(point):
                num_allowed[gemm] += 1


def _next_new(stream: Iterator[Point], chosen: Collection[str]) -> Point | None:
    return next((point for point in stream if point_key(point) not in chosen), None)


def _shuffled(space: FeasibleSet, rng: np.random.Generator) -> Iterator[Point]:
    """Points of a set in random order. From a large set they are drawn without end, some of them again."""
    if len(space) <= _MOST_LISTED:
        return (space.point(int(number)) for number in rng.permutation(len(space)))
    return (space.point(int(rng.integers(len(space)))) for _ in iter(int, 1))
