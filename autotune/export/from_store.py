"""Reads an export's data from a database: one study per shape, its final ranking, all its times."""

from __future__ import annotations

from collections.abc import Collection

from ..facts.defaults import MAX_ERROR
from ..facts.device import DeviceLimits, Environment
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy
from ..files.errors import DispatchError, UsageError
from ..files.words import command
from ..kernel.config import Config
from ..kernel.where import ANY, Where
from ..store import Store, StudyRef
from .tuned import TunedPoint, TunedResults, TunedShape

MOST_TIMES = 5000  # of a study: what is slower than so many is in no portfolio, and a model learns no more


def read_results(
    store: Store,
    environment: Environment,
    limits: DeviceLimits,
    *,
    policy: CachePolicy = CachePolicy.COLD,
    gemms: Collection[Gemm] | None = None,
    max_error: float | None = MAX_ERROR,
    where: Where = ANY,
    drawn_origin: str = "",
    foreign_origins: Collection[str] = (),
) -> TunedResults:
    """The newest results for GPUs of this kind (or this recording), of one kernel source.

    `gemms` restricts the shapes (None: all). Kernels whose error is more than `max_error` times cuBLAS's are
    left out (None: no limit), and those that do not obey `where`. A shape without a final and with trials of
    `drawn_origin` was drawn: its times count, but it has no ranking unless it is among `gemms`. Trials of
    `foreign_origins` are of kernels found on other shapes. Raises DispatchError if none of the shapes, or not
    all of those asked for, was tuned, or if the results are of kernels that are not autotune's; StoreError if
    they are all damaged.
    """
    latest = store.latest_studies(environment, policy, max_error)
    shapes = [
        _shape(store, s, max_error, where.on(s.gemm, limits), "" if gemms else drawn_origin, foreign_origins)
        for s in latest
        if gemms is None or s.gemm in gemms
    ]
    tuned = tuple(shape for shape in shapes if shape is not None)
    missing = sorted(set(gemms or ()) - {shape.gemm for shape in tuned})
    if missing or not tuned:
        store.damages.refuse()
        what = ", ".join(map(str, missing)) or "any shape"
        obeying, same = f" that obey {where.told}" if where else "", where.options
        raise DispatchError(
            f"no results{obeying} for {what} on {environment.gpu_name}; run {command('search', same)} for it"
        )
    return TunedResults(
        environment=latest[-1].environment,
        limits=limits,
        source_hash=latest[-1].source_hash,
        policy=latest[-1].policy.value,
        policy_version=latest[-1].policy_version,
        shapes=tuned,
        cublas_us=store.cublas_times(environment, policy),
    )


def _shape(
    store: Store,
    study: StudyRef,
    max_error: float | None,
    where: Where,
    drawn_origin: str,
    foreign_origins: Collection[str],
) -> TunedShape | None:
    """The final ranking if there was one, else only the fastest trial, or none for a drawn shape; None if
    every trial is damaged, or none obeys."""
    final, baseline = store.final(study, max_error, where), store.baseline(study)
    try:
        found: dict[str, float] = {}
        searched: set[str] = set()
        for one in store.with_twins(study):  # times of other GPUs of the kind count, too
            found |= store.times(one, max_error, None if where else MOST_TIMES)
        for one in store.with_twins(study):
            searched |= store.keys(one, foreign_origins, found)
        read = {key: (Config.parse(key), time_us) for key, time_us in found.items()}
        timed = {key: (c, us) for key, (c, us) in read.items() if where.holds(c.to_dict())}
        if final is None:
            ranked = tuple(
                TunedPoint(Config.from_dict(best.point), best.measurement.time_us, True)
                for best in store.best(study, 1, max_error, where=where)
                if best.measurement.time_us is not None
            )
        else:
            ranked = tuple(
                TunedPoint(Config.from_dict(e.point), e.time_us, e.is_tied, e.joules) for e in final.entries
            )
    except UsageError as error:
        raise DispatchError(
            f"the results for {study.gemm} are not of autotune's kernel ({error}); they cannot be exported"
        ) from error
    if not ranked:
        return None
    if final is None and drawn_origin and store.has_trial_of(study, drawn_origin):
        ranked = ()
    own = frozenset(config for key, (config, _) in timed.items() if key in searched)
    times, cublas_us = tuple(timed.values()), baseline.time_us if baseline else None
    return TunedShape(study.gemm, ranked, times, cublas_us, own)
