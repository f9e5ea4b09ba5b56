"""From the results of searches to an exported table: winners, tied sets, and kernels for what was not tuned.

tuned.py             cut_to_chosen         wishes.py                          figures.py  package.py
tuned shapes ─────► one of the tied each ─► + a default per layout ─► cubins ─► model ────► folder
matrices of times ─► portfolio.py ─────────┘        held_out.py: what that is worth on shapes left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from .. import __version__
from ..facts.accuracy_class import CLASSES, STRICT
from ..facts.fitted import MAX_KERNELS, MAX_MEGABYTES
from ..facts.frozen import picked
from ..facts.gemm import LAYOUTS, Gemm
from ..files.errors import DispatchError
from ..files.strict import Mismatch
from ..files.words import command, counted, few, option
from ..kernel import same_code, template, templates
from ..kernel.compiler import Compiler
from ..kernel.config import Config
from ..kernel.launch import Epilogue
from ..kernel.summation_order import most_k
from ..kernel.templates import has_kernels, searched_for
from ..kernel.tensor_config import TensorConfig
from ..kernel.where import ANY, Where
from ..recording.matrix import TimeMatrix
from ..runtime.table.soundness import check_identity
from ..runtime.table.table import Entry, Kernel, RankedKernel, Table
from . import cover, figures
from .figures import known_of_cublas, times_as_it_adds, times_of_batches, times_of_cublas
from .held_out import figures_of, held_out
from .package import need_writable, prepare, write_folder
from .portfolio import TimedKernel, candidates, for_batches, portfolio
from .tuned import TunedPoint, TunedResults, TunedShape, spread
from .wishes import (
    Compiling,
    OnCompiled,
    Wish,
    all_wishes,
    defaults,
    on_tensor_cores,
    winners_of,
    with_epilogues,
    within,
)

MEGABYTE = 1e6  # bytes
MAX_TIED = 4  # kernels kept per shape: the chosen one, and tied ones that the table holds anyway


def export_table(
    results: TunedResults,
    folder: Path,
    compiler: Compiler,
    *,
    tensor: TunedResults | None = None,
    matrices: Sequence[TimeMatrix] = (),
    where: Where = ANY,
    max_kernels: int = MAX_KERNELS,
    max_megabytes: float = MAX_MEGABYTES,
    calls: Mapping[Gemm, int] = MappingProxyType({}),
    epilogues: Sequence[Epilogue] = (),
    called: Mapping[Gemm, Iterable[Epilogue]] = MappingProxyType({}),
    with_c: bool = False,
    adds: bool = False,
    created_at: datetime | None = None,
    note: Callable[[str], None] = lambda _: None,
    on_step: Callable[[str], None] = lambda _: None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> Path:
    """Write the importable folder for these results; returns it.

    `tensor`: results of kernels on tensor cores, for a table that serves their class of accuracy, too.
    `matrices`: times of kernels on other GPUs or by other searches. These and the times of `results` decide
    the kernels for shapes that were not tuned: at most `max_kernels` beside the winners, half of them
    for batches, too; their cubins take at most `max_megabytes`. They are of those that obey `where` in some
    number of splits. `calls`: how often a program calls for each shape, tuned or not: these kernels are
    chosen for its shapes, too. `epilogues`: each kernel is also written with each of these, beyond
    `max_megabytes`; `called`: those that may serve such a shape with these, as calls for it ask for them.
    `with_c`, `adds` and `note` are those of `write_folder`; a note also tells of a recording that was made
    with another source of the kernel. `on_step` hears what is done next, `on_compiled` the compiler's
    progress. Raises what `write_folder` does, and DispatchError if there is nothing to export, or if results
    are of another kernel source or GPU architecture than is compiled here.
    """
    need_writable(prepare(folder, note, adds=adds))
    _check(results, tensor, compiler, note)
    results = replace(results, source_hash=same_code.kept_as(template.source_hash()))
    tuned = cut_to_chosen(results)
    _tell_replaced(results, tuned, note)
    fast = None
    if tensor is not None:
        fast = cut_to_chosen(tensor)
        _tell_replaced(tensor, fast, note)
    limits, compiling = results.limits, Compiling(compiler)
    accuracy = STRICT if tensor is None else templates.accuracy_of(tensor.source_hash)
    its = searched_for(accuracy, limits)
    winners = all_wishes(tuned, {}, {}, where.order)
    compiling.begin(winners)
    most = max_kernels // len(LAYOUTS)
    calls = {gemm: count for gemm, count in calls.items() if not gemm.is_batched}
    if most:
        on_step(f"choosing kernels for shapes that were not tuned ({option('max_kernels')} 0: none)")
    known = _known(results, matrices, where, None if most else {w.config.in_any_splits for w in winners})
    chosen = {x: portfolio(x, found, limits, most, calls) for x, found in known.items()}
    # it is in no order that anyone promises: no model picks it beside kernels of one
    cublas = {} if where.order else times_of_cublas(results, matrices)
    cublas_us = {x: cublas[x].times_us if x in cublas else {} for x in LAYOUTS}
    batched = {x: for_batches(x, found, chosen[x], limits) for x, found in known.items()}
    requested = all_wishes(tuned, chosen, batched, where.order)
    compiling.begin(requested)
    if most:
        on_step("judging how well these serve shapes that nobody tuned, while they are compiled")
    evaluated = [one for x in LAYOUTS for one in held_out(known[x], cublas_us[x], limits, most, calls)]
    on_step(f"compiling {counted(len(requested), 'kernel')}, those of tuned shapes first")
    cubins = compiling.wait(requested, on_compiled)
    wishes = within(requested, cubins, max_megabytes * MEGABYTE)
    samples = {x: {one.config: one.samples for one in found} for x, found in known.items()}
    kernels, places, levels = figures.kernels(results, wishes, cubins, samples)
    if fast is not None:
        more = on_tensor_cores() if most and its is TensorConfig and has_kernels(accuracy, limits) else ()
        requested = list({wish.id: wish for wish in (*more, *winners_of(fast))}.values())
        if requested:
            on_step(f"compiling {counted(len(requested), 'kernel')} on tensor cores")
        cubins |= compiling.wait(requested, on_compiled)
        requested = within(requested, cubins, max_megabytes * MEGABYTE)
        kernels += figures.on_tensor_cores(fast, requested, cubins, templates.source_hash(its))
        wishes += requested
    added = with_epilogues(wishes, epilogues, called)
    on_step(f"compiling {counted(len(added), 'variant')} of these that add a bias or an activation")
    cubins |= compiling.wait(added, on_compiled)
    kernels += figures.with_epilogues(results, added, cubins)
    code = {cubins[wish.id].sha256: cubins[wish.id].code for wish in (*wishes, *added)}
    _check_compiled(kernels, code)
    order = str(where.order) if where.order else None
    kernels = [
        replace(k, spec=replace(k.spec, max_workspace=where.max_workspace, max_k=most_k(k.config, order)))
        for k in kernels
    ]
    table = Table(
        made_by=f"autotune {__version__}",
        created_at=(created_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        **picked(results, "source_hash policy policy_version environment limits power_limit_w"),
        compiler=compiler.version,
        kernels=tuple(sorted(kernels, key=lambda k: (CLASSES.index(k.accuracy), k.id))),
        places=places,
        levels=levels,
        defaults={wish.layout: wish.id for wish in defaults(results.limits, where.order)},
        cublas=known_of_cublas(cublas, limits),
        cublas_adding=known_of_cublas({} if where.order else times_as_it_adds(results), limits),
        cublas_batched=known_of_cublas({} if where.order else times_of_batches(results), limits),
        entries=tuple(_entries(tuned, fast)),
        left_out=figures_of(evaluated),
        epilogues=tuple(epilogues),
        max_workspace=where.max_workspace,
        order=order,
        accuracy=accuracy,
        tensor_source_hash=templates.source_hash(its) if any(k.accuracy != STRICT for k in kernels) else "",
    )
    return write_folder(table, code, folder, note, with_c=with_c, adds=adds)


def _known(
    results: TunedResults,
    matrices: Sequence[TimeMatrix],
    where: Where,
    only: Collection[Config] | None = None,
) -> dict[str, list[TimedKernel]]:
    """The candidates for shapes that were not tuned, by layout: those that obey in some number of splits. Or,
    where none is chosen, `only` those whose times the models of a table need."""
    modelled = spread(one.gemm for one in results.shapes if not one.gemm.is_batched)
    single = tuple(one for one in results.shapes if one.gemm in modelled)
    return {
        x: [
            one if where.max_workspace is None else replace(one, max_workspace=where.max_workspace)
            for one in candidates(x, single, matrices, results.limits, only)
            if where.in_least_splits(one.config)
        ]
        for x in LAYOUTS
    }


def _check(
    results: TunedResults, tensor: TunedResults | None, compiler: Compiler, note: Callable[[str], None]
) -> None:
    if tensor is not None and not templates.is_current(tensor.source_hash):
        accuracy = templates.accuracy_of(tensor.source_hash)
        raise DispatchError(
            f"the results of accuracy {accuracy} are of another kernel source; run {command('search')} "
            f"--accuracy {accuracy} again with this autotune"
        )
    if not results.shapes and tensor is None:
        raise DispatchError(f"no tuned shape to export; run {command('search')} first")
    if not same_code.is_same(results.source_hash, template.source_hash()):
        where = (
            f"kernel source {results.source_hash[:12]}..., this autotune has {template.source_hash()[:12]}..."
        )
        if not results.environment.is_recorded:
            raise DispatchError(
                f"the results are of {where}, and nothing shows that both compile to the same code; run "
                f"{command('search')} again with this one, or export with the autotune that searched"
            )
        # recorded times must not look like those of a GPU of this machine
        note(f"recorded with {where}: the times are of that one, the kernels of this one")
    if compiler.arch != results.limits.arch:
        raise DispatchError(
            f"the results are for {results.limits.arch}, the compiler is for {compiler.arch}; pass one for it"
        )


def _check_compiled(kernels: Sequence[Kernel], code: Mapping[str, bytes]) -> None:
    """The compiled kernels are those that are written."""
    try:
        for sha256, content in code.items():
            check_identity(kernels, sha256, content)
    except Mismatch as mismatch:
        raise DispatchError(f"the compiler gave other kernels than were asked for: {mismatch}; nothing was "
                            "written: empty the kernel cache and export again") from mismatch  # fmt: skip


def cut_to_chosen(results: TunedResults) -> TunedResults:
    """The same results, with each shape's ranking cut down to what a table holds: first the kernel chosen
    among the tied (`cover.choose`), then the tied kernels that the table holds for other shapes anyway. A
    recording names one winner everywhere: it is that."""
    tied = {
        s.gemm: {_name(s.gemm, p): p for at, p in enumerate(s.ranked) if not at or p.is_tied}
        for s in results.shapes
    }
    options = {
        gemm: [
            cover.Option(name, p.time_us, p.joules, number == 0)
            for number, (name, p) in enumerate(points.items())
            if not number or not results.environment.is_recorded
        ]
        for gemm, points in tied.items()
    }
    chosen = {gemm: option.kernel for gemm, option in cover.choose(options).items()}
    taken = set(chosen.values())

    def cut(shape: TunedShape) -> TunedShape:
        points = tied[shape.gemm]
        names = sorted((n for n in points if n in taken), key=lambda n: n != chosen[shape.gemm])
        return replace(shape, ranked=tuple(points[name] for name in names[:MAX_TIED]))

    return replace(results, shapes=tuple(map(cut, results.shapes)))


def _tell_replaced(results: TunedResults, tuned: TunedResults, note: Callable[[str], None]) -> None:
    """Tell for which shapes the search announced another kernel than the one that is exported."""
    served = Counter(_name(shape.gemm, shape.ranked[0]) for shape in tuned.shapes if shape.ranked)
    notes = []
    for before, after in zip(results.shapes, tuned.shapes, strict=True):
        if after.ranked and after.ranked[0].config != before.ranked[0].config:
            num = served[_name(after.gemm, after.ranked[0])]
            why = f"serves {num} shapes" if num > 1 else "needs less energy"
            notes.append(f"{after.gemm} (place {before.ranked.index(after.ranked[0]) + 1}; {why})")
    if notes:
        note(f"Not the winner but a kernel that is tied with it is exported for {few(notes)}")


def _name(gemm: Gemm, point: TunedPoint) -> cover.Kernel:
    """A name that is equal for points that one kernel of a table serves."""
    kernel = gemm.layout, point.config.key
    return (*kernel, "batched") if gemm.is_batched else kernel


def _entries(strict: TunedResults, fast: TunedResults | None) -> Iterator[Entry]:
    """Of all tuned shapes, kernels of the faster class first. Each was timed beside cuBLAS by its own search:
    times of the second are taken over its cuBLAS's then, times that of the first."""
    wider = {} if fast is None else {shape.gemm: _entry(shape, fast) for shape in fast.shapes if shape.ranked}
    for shape in strict.shapes:
        if not shape.ranked:
            continue
        entry, other = _entry(shape, strict), wider.pop(shape.gemm, None)
        if other is None:
            yield entry
            continue
        scale = entry.cublas_us / other.cublas_us if entry.cublas_us and other.cublas_us else 1.0
        theirs = tuple(replace(one, time_us=one.time_us * scale) for one in other.ranked)
        both = sorted((entry.ranked, theirs), key=lambda ranked: ranked[0].time_us)
        cublas_us, adding_us = entry.cublas_us or other.cublas_us, entry.adding_us or other.adding_us
        yield Entry(entry.gemm, cublas_us, (*both[0], *both[1]), adding_us)
    yield from wider.values()


def _entry(shape: TunedShape, results: TunedResults) -> Entry:
    wanted = partial(Wish, layout=shape.gemm.layout, is_batched=shape.gemm.is_batched)
    ranked = tuple(RankedKernel(wanted(p.config).id, p.time_us, p.is_tied) for p in shape.ranked)
    return Entry(shape.gemm, shape.cublas_us, ranked, results.adding_us.get(shape.gemm))
