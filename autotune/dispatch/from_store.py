"""Reads from a database what an export takes: one study per shape, its final ranking, all its times."""

from __future__ import annotations

from collections.abc import Collection

from ..config import Config
from ..device import DeviceLimits, Environment
from ..errors import DispatchError, UsageError
from ..gemm import Gemm
from ..measurement import CachePolicy
from ..store import Store, StudyRef
from .results import TunedPoint, TunedResults, TunedShape


def read_results(
    store: Store,
    environment: Environment,
    limits: DeviceLimits,
    *,
    policy: CachePolicy = CachePolicy.COLD,
    gemms: Collection[Gemm] | None = None,
) -> TunedResults:
    """The newest results for GPUs of this kind (or this recording), of one kernel source.

    `gemms` restricts the shapes (None: all). Raises DispatchError if none of them, or not all of those
    asked for, was tuned, or if the results are of kernels that are not autotune's.
    """
    studies = [s for s in store.latest_studies(environment, policy) if gemms is None or s.gemm in gemms]
    missing = sorted(set(gemms or ()) - {study.gemm for study in studies})
    if missing or not studies:
        what = ", ".join(map(str, missing)) or "any shape"
        raise DispatchError(f"no results for {what} on {environment.gpu_name}; run `autotune search` for it")
    return TunedResults(
        environment=studies[-1].environment,
        limits=limits,
        source_hash=studies[-1].source_hash,
        policy=studies[-1].policy.value,
        policy_version=studies[-1].policy_version,
        shapes=tuple(_shape(store, study) for study in studies),
    )


def _shape(store: Store, study: StudyRef) -> TunedShape:
    """The final ranking if there was one, else the fastest trial alone."""
    final, baseline = store.final(study), store.baseline(study)
    try:
        times = tuple((Config.parse(key), time_us) for key, time_us in store.times(study).items())
        if final is None:
            best = store.best(study)[0]
            fastest = best.measurement.time_us or min(time_us for _, time_us in times)
            ranked: tuple[TunedPoint, ...] = (TunedPoint(Config.from_dict(best.point), fastest, True),)
        else:
            ranked = tuple(
                TunedPoint(Config.from_dict(e.point), e.time_us, e.is_tied, e.joules) for e in final.entries
            )
    except UsageError as error:
        raise DispatchError(
            f"the results for {study.gemm} are not of autotune's kernel ({error}); they cannot be exported"
        ) from error
    return TunedShape(study.gemm, ranked, times, baseline.time_us if baseline else None)
