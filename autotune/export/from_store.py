"""Reads an export's data from a database: one study per shape, its final ranking, all its times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from ..facts.accuracy_class import STRICT
from ..facts.device import DeviceLimits, Environment
from ..facts.fitted import MAX_ERROR
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy
from ..facts.other_problem import untyped
from ..files.errors import DispatchError, UsageError
from ..files.words import command
from ..kernel import templates
from ..kernel.scaled_config import AnyConfig
from ..kernel.where import ANY, Where
from ..store import Final, Store, StudyRef, by_problem
from ..target import Baseline
from .tuned import TunedPoint, TunedResults, TunedShape, spread

# Of a study, and of all: what is slower than so many is in no portfolio, and a model learns no more.
MOST_TIMES, MOST_OF_ALL = 2000, 250_000
_AT_ONCE = 200  # studies whose rankings are read


def read_results(
    store: Store,
    environment: Environment,
    limits: DeviceLimits,
    measured: Sequence[StudyRef] | None = None,
    *,
    policy: CachePolicy = CachePolicy.COLD,
    gemms: Collection[Gemm] | None = None,
    max_error: float | None = MAX_ERROR,
    where: Where = ANY,
    drawn_origin: str = "",
    foreign_origins: Collection[str] = (),
    accuracy: str = STRICT,
) -> TunedResults:
    """The newest results for GPUs of this model (or this recording), of one kernel source, that of a class.

    `measured`: the studies with an accurate ok trial, where they were read. `gemms` restricts the shapes
    (None: all). Kernels whose error is more than `max_error` times cuBLAS's are left out (None: no limit),
    and those that do not obey `where`. A shape without a final and with trials of `drawn_origin` was drawn:
    its times count, but it has no ranking unless it is among `gemms`. Trials of `foreign_origins` are of
    kernels found on other shapes. Raises DispatchError if none of the shapes, or not all of those asked for,
    was tuned, or if the results are of kernels that are not autotune's; StoreError if they are all damaged.
    """
    if measured is None:
        measured = store.measured_studies(max_error)
    found = by_problem(measured, environment, policy, accuracy)
    studies = [found[gemm] for gemm in sorted(found) if gemms is None or gemm in gemms]
    modelled = spread(ones[0].gemm for ones in studies)
    most = min(MOST_TIMES, MOST_OF_ALL // max(1, len(modelled)))
    drawn, parse = "" if gemms else drawn_origin, cache(templates.parse)
    tuned: list[TunedShape] = []
    for at in range(0, len(studies), _AT_ONCE):
        some = studies[at : at + _AT_ONCE]
        wheres = {ones[0]: where.on(ones[0].gemm, limits) for ones in some}
        finals, baselines = store.finals(wheres, max_error), store.baselines(wheres)
        for ones in some:
            shape = _shape(
                store,
                ones,
                (finals.get(ones[0].id), baselines.get(ones[0].id)),
                most if ones[0].gemm in modelled else 0,
                max_error,
                wheres[ones[0]],
                foreign_origins,
                drawn,
                parse,
            )
            tuned += [] if shape is None else [shape]
    missing = sorted(set(gemms or ()) - {shape.gemm for shape in tuned})
    if missing or not tuned:
        store.bad_rows.refuse()
        what = ", ".join(map(str, missing)) or "any shape"
        matching, same = f" that obey {where.description}" if where else "", where.options
        if accuracy != STRICT:
            matching, same = f" of accuracy {accuracy}{matching}", f"{same} --accuracy {accuracy}"
        raise DispatchError(
            f"no results{matching} for {what} on {environment.gpu_name}; run {command('search', same)} for it"
        )
    return TunedResults(
        environment=studies[-1][0].environment,
        limits=limits,
        source_hash=untyped(studies[-1][0].source_hash),
        policy=studies[-1][0].policy.value,
        policy_version=studies[-1][0].policy_version,
        shapes=tuple(tuned),
        cublas_us=store.cublas_times(environment, policy),
        adding_us=store.cublas_times(environment, policy, has_bias=True),
        batched_us=store.cublas_times(environment, policy, is_batched=True),
    )


def _shape(
    store: Store,
    studies: Sequence[StudyRef],
    stored: tuple[Final | None, Baseline | None],
    most: int,
    max_error: float | None,
    where: Where,
    foreign_origins: Collection[str],
    drawn_origin: str,
    parse: Callable[[str], AnyConfig],
) -> TunedShape | None:
    """The final ranking if there was one, else only the fastest trial, or none for a drawn shape; None if
    every trial is damaged, or none obeys. `studies`: those of a problem on GPUs of a model, the newest first,
    whose times all count, so many of each at `most`. `stored`: of the newest."""
    study = studies[0]
    final, baseline = stored
    try:
        found: dict[AnyConfig, float] = {}
        own: set[AnyConfig] = set()
        for one in reversed(studies) if most else ():
            timed = store.timed(one, max_error, most, where)
            found |= {parse(key): time_us for key, (time_us, _) in timed.items()}
            own |= {parse(key) for key, (_, origin) in timed.items() if origin not in foreign_origins}
        if final is None:
            ranked = tuple(
                TunedPoint(templates.read(best.point), best.measurement.time_us, True)
                for best in store.best(study, 1, max_error, where=where)
                if best.measurement.time_us is not None
            )
        else:
            ranked = tuple(
                TunedPoint(templates.read(e.point), e.time_us, e.is_tied, e.joules) for e in final.entries
            )
    except UsageError as error:
        raise DispatchError(
            f"the results for {study.gemm} are not of autotune's kernel ({error}); they cannot be exported"
        ) from error
    if not ranked:
        return None
    if final is None and drawn_origin and store.has_trial_of(study, drawn_origin):
        ranked = ()
    cublas_us = baseline.time_us if baseline else None
    return TunedShape(study.gemm, ranked, tuple(found.items()), cublas_us, frozenset(own))
