"""Judges a table on shapes that nobody tuned: against cuBLAS, and against the best possible for each.

    python benchmarks/any_shape.py --gpu 0 --table FOLDER --seed 77 --out a.json.xz [--live] [--batches]
    python benchmarks/any_shape.py --gpu 0 --part alone --seed 77 --db alone.db
    python benchmarks/any_shape.py --gpu 0 --part reference --table FOLDER --seed 77 --db alone.db --out ...
    python benchmarks/any_shape.py --report any_shape.json.xz [more ...]

Shapes are drawn by a seed as autotune/facts/distribution.py says: half NN, the others NT, TN and TT in turn.
Of each layout half are round (whole 16s, from 16 on), a quarter has an odd extent, a quarter odd leading
dimensions. A table that was made with one of them is refused. Each part continues where it ended, also
after --seconds. `--batches` draws strided batches, packed, of 2 ... 1024 products, half of them round;
of a table without times of cuBLAS on batches, which leaves them to it, the launch ranked first is timed.

    pick        (200 shapes) what the table picks, the launches that settling times, and cublasSgemm in
                pedantic FP32, in the same rounds; and the errors of all of these against float64. With --live
                the shape is settled on calls before (live_calls.py), and what is slower than cuBLAS is timed
                three times more
    alone       (the first 60) a search of the shape alone, into a database; where leading dimensions are odd,
                of the nearest packed shape with as narrow vectors. It needs no table: another GPU may do it
    reference   (the same 60) every kernel of the table that may serve the shape, in every number of splits
                that the model weighs, each at a glance; then the best of these, the best that are as
                accurate as a table has to be, the kernel that was found alone, the pick, what settling times
                and cuBLAS, in the same rounds; and the errors of all of these

Launches are the runtime's own, on cold operands. The settled choice, the best kernel of the table and the
reference (the best of all but cuBLAS) are chosen by half of the rounds and told by the other half. Kernels
whose error is too large are neither the table's best nor the reference; what they would be is told, too.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import any_shape_figures
import reports
from contest import Arena
from live_calls import LiveCalls
from strided_errors import relative_errors
from table_arena import CUBLAS, Chosen, Runner, TableArena, name_of

from autotune import search
from autotune import target_finder as targets
from autotune.cli import bench, common, console
from autotune.facts import distribution
from autotune.facts.accuracy_class import STRICT
from autotune.facts.fitted import MAX_ERROR, MOST_DRAWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import AutotuneError, UsageError, is_sticky
from autotune.gpu.driver import device_limits, find_gpu
from autotune.kernel.config import Config
from autotune.runtime.choose.chooser import Call
from autotune.runtime.table.table import TABLE_FILE, Table
from autotune.search import Options
from autotune.store import Store

PARTS = ("pick", "alone", "reference")
SORTS = ("round", "odd size", "odd leading dimensions")
_OF_TURN = (SORTS[0], SORTS[1], SORTS[0], SORTS[2])
_MOST_BYTES = 1 << 30  # of the operands of a batch
_LONGEST = 1 << 18  # rows or columns of --long
_SEEDS_APART = 1_000_003  # no search is told such a seed
_MOST_PAD = 31  # elements behind a row
_LEAST_ODD = 3  # extent of what is tuned instead: one row or column has kernels of its own
LEAST_ROUNDS, TIMES_AGAIN = 2, 3
NEAR_BEST, MOST_RACED = 1.05, 6  # of the kernels that are timed at a glance: these, and so many, are raced
ACCURATE, AT_ONCE, CHECKED = 3, 6, 24  # so many accurate ones, too: looked for among the best, some at a time


# ------------------------------------------------------------------------------------------------
# Shapes


@dataclass(frozen=True)
class JudgedCall:
    """A product that nobody tuned, and which of its sizes are odd."""

    call: Call
    sort: str

    def __str__(self) -> str:
        text = str(self.call.gemm)
        return text if self.call.is_packed else f"{text} ld {','.join(map(str, self.call.lds))}"


def drawn_calls(
    num: int,
    seed: int,
    fma_tflops: float,
    bandwidth_gbs: float,
    least: int = 1,
    *,
    is_batched: bool = False,
    is_long: bool = False,
) -> list[JudgedCall]:
    """So many products, or batches, for a GPU of such a roofline, of extents that are not less. The first of
    more are those of fewer. `is_long`: products with more rows or columns than a search draws."""
    draw = _batches if is_batched else partial(_of_layout, most=_LONGEST if is_long else MOST_DRAWN)
    sources = {x: draw(x, seed, i, fma_tflops, bandwidth_gbs) for i, x in enumerate(LAYOUTS)}
    turns = cycle([layout for other in LAYOUTS[1:] for layout in (LAYOUTS[0], other)])
    found: dict[Call, JudgedCall] = {}
    while len(found) < num:
        evaluated = next(sources[next(turns)])
        gemm = evaluated.call.gemm
        if min(gemm.m, gemm.n, gemm.k) >= least and (not is_long or max(gemm.m, gemm.n) > MOST_DRAWN):
            found.setdefault(evaluated.call, evaluated)
    return list(found.values())


def _of_layout(
    layout: str, seed: int, number: int, fma_tflops: float, bandwidth_gbs: float, *, most: int
) -> Iterator[JudgedCall]:
    own = len(LAYOUTS) * (_SEEDS_APART + seed) + number
    rng = random.Random(f"{own} leading dimensions")
    raw = distribution.drawn(own, fma_tflops, bandwidth_gbs, layouts=(layout,), most=most)
    for gemm, sort in zip(raw, cycle(_OF_TURN), strict=False):
        extents = [gemm.m, gemm.n, gemm.k]
        if sort != "odd size":
            extents = [x if x < distribution.ROUND else -(-x // 16) * 16 for x in extents]
        elif not any(x % 2 for x in extents):
            extents[rng.randrange(3)] |= 1
        m, n, k = extents
        call = Call.packed(Gemm(m, n, k, gemm.trans_a, gemm.trans_b))
        if sort == "odd leading dimensions":
            call = Call(call.gemm, _odd_lds(call, rng))
        yield JudgedCall(call, sort)


def _batches(
    layout: str, seed: int, number: int, fma_tflops: float, bandwidth_gbs: float
) -> Iterator[JudgedCall]:
    own = len(LAYOUTS) * (_SEEDS_APART + seed) + number
    raw = distribution.drawn(
        own, fma_tflops, bandwidth_gbs, layouts=(layout,), is_mixed=True, more=distribution.products
    )
    for gemm in raw:
        if gemm.num_bytes <= _MOST_BYTES:
            is_round = not any(x % distribution.ROUND for x in (gemm.m, gemm.n, gemm.k))
            yield JudgedCall(Call.packed(gemm), SORTS[0] if is_round else SORTS[1])


def _odd_lds(call: Call, rng: random.Random) -> tuple[int, int, int]:
    """One or more of those of A, B and C that have a next row are odd and larger than packed."""
    gemm = call.gemm
    rows = (gemm.k if gemm.trans_a else gemm.m, gemm.n if gemm.trans_b else gemm.k, gemm.m)
    can_be = [i for i in range(3) if rows[i] > 1]
    chosen = [i for i in can_be if rng.random() < 0.5] or [rng.choice(can_be)]
    lds = list(call.lds)
    for i in chosen:
        lds[i] = lds[i] + 1 + rng.randrange(_MOST_PAD) | 1
    return lds[0], lds[1], lds[2]


def tuned_as(call: Call) -> Gemm:
    """The packed shape that is tuned in its place: the same, or one shorter (of as many tiles) where a row
    would begin at a whole vector and must not."""
    gemm = call.gemm
    extents = {"m": gemm.m, "n": gemm.n, "k": gemm.k}
    along = ("m" if gemm.trans_a else "k", "k" if gemm.trans_b else "n", "n")
    for name, ld in zip(along, call.lds, strict=True):
        if ld % 2 and extents[name] % 2 == 0:
            extents[name] = max(extents[name] - 1, _LEAST_ODD)
    return Gemm(extents["m"], extents["n"], extents["k"], gemm.trans_a, gemm.trans_b)


def check_unseen(evaluated: Sequence[JudgedCall], table: Table) -> None:
    """Raises UsageError where a table knows one of these shapes."""
    known = {str(entry.gemm) for entry in table.entries}
    known |= {f"{m}x{n}x{k}:{x}" for x, places in table.places.items() for m, n, k in places}
    seen = [str(one.call.gemm) for one in evaluated if str(one.call.gemm) in known]
    if seen:
        raise UsageError(f"the table was made with {', '.join(seen)}; name another --seed")


# ------------------------------------------------------------------------------------------------
# What is kept


class KeptReport:
    """The report as far as it is, written after each shape. Raises UsageError where a file is of something
    else."""

    def __init__(self, out: Path, head: dict[str, Any], evaluated: Sequence[JudgedCall]) -> None:
        self._out = out
        shapes = [_head_of(one) for one in evaluated]
        self.report = (
            reports.read(out, "any_shape") if out.exists() else {**head, "sessions": [], "shapes": shapes}
        )
        apart = [name for name in head if self.report.get(name) != head[name]]
        if (
            apart
            or [{name: s.get(name) for name in _head_of(evaluated[0])} for s in self.report["shapes"]]
            != shapes
        ):
            raise UsageError(f"{out} is of another {' and '.join(apart or ['draw'])}; name another --out")

    def begin(self, session: dict[str, Any]) -> None:
        self.report["sessions"].append(session)

    def __getitem__(self, number: int) -> dict[str, Any]:
        facts: dict[str, Any] = self.report["shapes"][number]
        return facts

    def keep(self, number: int, part: str, facts: dict[str, Any]) -> None:
        """Stores the results of a part for a shape."""
        self[number][part] = facts | {"session": len(self.report["sessions"]) - 1}
        reports.keep(self._out, self.report)


def _head_of(one: JudgedCall) -> dict[str, Any]:
    return {"shape": str(one.call.gemm), "lds": list(one.call.lds), "sort": one.sort}


# ------------------------------------------------------------------------------------------------
# The parts


class Deadline:
    """Of one command."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._started_s = seconds, time.monotonic()

    def is_over(self, num_done: int, num: int) -> bool:
        """Tells how far it came, if it is over."""
        if self._seconds is None or time.monotonic() - self._started_s < self._seconds:
            return False
        console.note(f"{num_done} of {num} shapes are done; run the same command again to resume")
        return True


def _run(args: argparse.Namespace) -> None:
    if args.report:
        console.show(any_shape_figures.text(*(reports.read(path, "any_shape") for path in args.report)))
        return
    if args.seed is None:
        raise UsageError("name a --seed that decided nothing, or a --report to print")
    if args.rounds < LEAST_ROUNDS:
        raise UsageError(f"--rounds {args.rounds} are too few to choose by half of them; name {LEAST_ROUNDS}")
    limits = device_limits(find_gpu(args.gpu).index)
    roofline = limits.fma_tflops, limits.bandwidth_gbs
    kinds = {"is_batched": args.batches, "is_long": args.long}
    evaluated = drawn_calls(args.num, args.seed, *roofline, args.least, **kinds)
    if args.part == "alone":
        tune_alone(args, list(dict.fromkeys(tuned_as(one.call) for one in evaluated[: args.alone])))
        return
    if args.table is None or args.out is None:
        raise UsageError(f"--part {args.part} needs a --table, a folder made by export-table, and an --out")
    arena = Arena(args.gpu, CachePolicy.COLD, with_torch=False)
    tables = TableArena(arena, args.table, args.accuracy)
    check_unseen(evaluated, tables.table)
    kept = KeptReport(args.out, _head(args, tables), evaluated)
    identity = reports.identity(arena, "any_shape", args.rounds)
    kept.begin({name: identity[name] for name in ("date", "environment", "policy_version", "num_rounds")})
    measure = measure_pick if args.part == "pick" else measure_reference
    measure(args, tables, evaluated, kept)
    console.show(any_shape_figures.text(kept.report))


def _head(args: argparse.Namespace, tables: TableArena) -> dict[str, Any]:
    """The identity of a file, in which all sessions that write to it agree."""
    table = tables.table
    digest = hashlib.sha256((args.table / TABLE_FILE).read_bytes()).hexdigest()
    return {
        "benchmark": "any_shape",
        "seed": args.seed,
        "gpu": tables.arena.environment.gpu_name,
        "policy": tables.arena.policy.value,
        **({"is_batched": True} if args.batches else {}),
        **({"is_long": True} if args.long else {}),
        "table": {
            "sha256": digest,
            "created_at": table.created_at,
            "source_hash": table.source_hash,
            "num_kernels": {x: sum(k.layout == x for k in table.kernels) for x in LAYOUTS},
            "num_tuned": len(table.entries),
        },
    }


def measure_pick(
    args: argparse.Namespace, tables: TableArena, evaluated: Sequence[JudgedCall], kept: KeptReport
) -> None:
    """Part `pick`: each shape that has no figures yet."""
    deadline = Deadline(args.seconds)
    live = LiveCalls.on(tables.arena, args.table) if args.live else None
    for number, one in enumerate(evaluated):
        if "pick" in kept[number]:
            continue
        if deadline.is_over(number, len(evaluated)):
            return
        with _Faults(kept, number, "pick"):
            kept.keep(number, "pick", pick_facts(tables, one.call, args.rounds, args.seed, live))
            console.note(f"{number + 1}/{len(evaluated)} {one}: {any_shape_figures.line(kept[number])}")


def pick_facts(
    tables: TableArena, call: Call, rounds: int, seed: int, live: LiveCalls | None
) -> dict[str, Any]:
    """The pick, what settling times and what is settled on calls against cuBLAS, and how far all of these
    are from float64."""
    sets = tables.sets(call)
    pick, picked = tables.picked(call, sets)
    first = tables.first(call, pick)
    cublas = tables.cublas(call)
    on_calls: dict[str, Any] = live.settled(call, sets) if live else {"name": CUBLAS}
    runners = [picked, *(tables.launched(one, call, sets) for one in first)]
    if on_calls["name"] != CUBLAS:
        runners.append(tables.launched(Chosen.named(on_calls["name"]), call, sets))
    everyone = _once([*runners, cublas])
    samples = tables.race(everyone, sets, rounds, seed)
    if live and any_shape_figures.speed(samples, on_calls["name"], CUBLAS) < any_shape_figures.SLOWER:
        both = [runners[-1], cublas]
        again = (tables.race(both, sets, rounds, seed + 1 + number) for number in range(TIMES_AGAIN))
        on_calls["again_us"] = [_rounded(one) for one in again]
    facts = {
        "name": picked.name,
        "how": pick.how,
        "reason": pick.reason,
        "provider": pick.provider,
        "cublas_us": pick.cublas_us,
        "expected_us": pick.expected_us,
        "first": {name_of(one): one.expected_us for one in first},
        "state": asdict(tables.session.timer.state),
        "samples_us": _rounded(samples),
        **({"live": on_calls} if live else {}),
    }
    facts["errors"] = relative_errors(tables.session, call, everyone)
    return facts


def measure_reference(
    args: argparse.Namespace, tables: TableArena, evaluated: Sequence[JudgedCall], kept: KeptReport
) -> None:
    """Part `reference`: each shape that was tuned alone and has no figures yet."""
    if args.db is None:
        raise UsageError("--part reference needs the --db that --part alone wrote")
    deadline, missing = Deadline(args.seconds), 0
    num = min(args.alone, len(evaluated))
    with common.open_existing(args.db) as store:
        arena = tables.arena
        latest = store.latest_studies(arena.environment, arena.policy, arena.max_error)
        found = {study.gemm: bench.winner(store, study, arena.max_error) for study in latest}
    for number, one in enumerate(evaluated[:num]):
        point = found.get(tuned_as(one.call))
        if "reference" in kept[number]:
            continue
        if point is None:
            missing += 1
            continue
        if deadline.is_over(number, num):
            return
        with _Faults(kept, number, "reference"):
            config = Config.from_dict(point)
            facts = reference_facts(tables, one.call, config, args.rounds, args.seed)
            kept.keep(number, "reference", facts)
            console.note(f"{number + 1}/{num} {one}: {any_shape_figures.line(kept[number])}")
    if missing:
        console.note(f"{missing} shapes were not tuned alone yet; run --part alone, then this again")


def reference_facts(tables: TableArena, call: Call, config: Config, rounds: int, seed: int) -> dict[str, Any]:
    """All that the table has for a call, and the kernel that was found for it alone."""
    sets = tables.sets(call)
    pick, picked = tables.picked(call, sets)
    first = tables.first(call, pick)
    runners = [picked, *(tables.launched(one, call, sets) for one in first)]
    every = {name_of(one): one for one in tables.every(call)}
    best_kernels = [name_of(one) for one in (pick, *first)]
    order = [every[name] for name in sorted(every, key=lambda name: name not in best_kernels)]
    trial_totals = tables.trial_totals(order, call, sets)
    best_us = min(trial_totals.values())
    ranked = [
        tables.launched(every[name], call, sets)
        for name in sorted(trial_totals, key=trial_totals.__getitem__)
    ]
    runners += [one for one in ranked if trial_totals[one.name] <= NEAR_BEST * best_us][:MOST_RACED]
    runners += [tables.tuned(config, call, sets), tables.cublas(call)]
    accurate, errors = accurate_of(tables, call, ranked, _once(runners))
    everyone = _once([*runners, *accurate])
    samples = tables.race(everyone, sets, rounds, seed)
    return {
        "name": picked.name,
        "first": [name_of(one) for one in first],
        "alone": config.key,
        "num_launches": len(every),
        "glances_us": {name: round(time_us, 4) for name, time_us in trial_totals.items()},
        "state": asdict(tables.session.timer.state),
        "samples_us": _rounded(samples),
        "errors": {kind: {one.name: found[one.name] for one in everyone} for kind, found in errors.items()},
    }


def accurate_of(
    tables: TableArena, call: Call, ranked: Sequence[Runner], others: Sequence[Runner]
) -> tuple[list[Runner], dict[str, dict[str, float]]]:
    """The first launches that are as accurate as a table has to be, cuBLAS being among the others; and the
    errors, by kind of numbers and by name, of all that were looked at."""
    errors = relative_errors(tables.session, call, others)
    unknown = [one for one in ranked[:CHECKED] if one.name not in {other.name for other in others}]
    while True:
        known = set(next(iter(errors.values())))
        accurate = [
            one for one in ranked if one.name in known and any_shape_figures.is_accurate(errors, one.name)
        ]
        if len(accurate) >= ACCURATE or not unknown:
            return accurate[:ACCURATE], errors
        for kind, found in relative_errors(tables.session, call, unknown[:AT_ONCE]).items():
            errors[kind] |= found
        del unknown[:AT_ONCE]


def _once(runners: Sequence[Runner]) -> list[Runner]:
    """Each launch once: the first of a name."""
    return list({runner.name: runner for runner in reversed(runners)}.values())[::-1]


def _rounded(samples: dict[str, tuple[float, ...]]) -> dict[str, list[float]]:
    return {name: [float(f"{time_us:.5g}") for time_us in found] for name, found in samples.items()}


class _Faults:
    """What goes wrong with one shape is kept in place of its figures, and counts against the table; the next
    shape goes on unless the context is lost."""

    def __init__(self, kept: KeptReport, number: int, part: str) -> None:
        self._kept, self._number, self._part = kept, number, part

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, AutotuneError):
            return False
        self._kept.keep(self._number, self._part, {"fault": str(error)})
        console.note(f"{self._kept[self._number]['shape']}: {error}")
        return not is_sticky(getattr(error, "code", 0))


# ------------------------------------------------------------------------------------------------
# Searches of one shape each


def tune_alone(args: argparse.Namespace, gemms: Sequence[Gemm]) -> None:
    """Search each shape that has no final yet, with only a search's starting points and the database."""
    if args.db is None:
        raise UsageError("--part alone needs a --db for its trials")
    deadline = Deadline(args.seconds)
    with (
        closing(
            targets.open_target(args.gpu, CachePolicy.COLD, gemms, MAX_ERROR, note=console.note)
        ) as target,
        Store.open(args.db) as store,
        store.bad_rows.reported(console.note),
    ):
        latest = store.latest_studies(target.environment, target.policy, target.max_error)
        done = {study.gemm for study in latest if store.final(study, target.max_error)}
        for number, gemm in enumerate(gemms):
            if gemm in done:
                continue
            if deadline.is_over(number, len(gemms)):
                return
            found = search.tune(target, store, [gemm], Options(seconds=args.seconds_alone, seed=args.seed))
            verdict = found.shapes[0].verdict if found.shapes else None
            message = (
                f"{verdict.speedup:.2f} times cuBLAS" if verdict and verdict.speedup else "nothing found"
            )
            console.note(f"{number + 1}/{len(gemms)} {gemm}: {message}")
            if found.reason is search.StopReason.INTERRUPTED:
                return


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    message = "print what is in files, of several together; needs no GPU"
    parser.add_argument("--report", type=Path, nargs="+", metavar="FILE", help=message)
    parser.add_argument("--part", choices=PARTS, default="pick")
    parser.add_argument("--gpu", default="auto", help="a GPU: its index, UUID or auto")
    parser.add_argument("--table", type=Path, help="a folder made by export-table")
    parser.add_argument("--seed", type=int, help="of the shapes: one that was used for no decision")
    parser.add_argument("--num", type=int, default=200, help="shapes (default: 200)")
    parser.add_argument("--least", type=int, default=1, help="of each extent")
    parser.add_argument("--accuracy", default=STRICT, help="the class of what the table may pick")
    parser.add_argument("--batches", action="store_true", help="of part pick: strided batches")
    parser.add_argument("--long", action="store_true", help="products longer than what a search draws")
    parser.add_argument("--live", action="store_true", help="of part pick: settled on calls, too")
    parser.add_argument("--alone", type=int, default=60, help="of them so many tuned alone (default: 60)")
    parser.add_argument("--seconds-alone", type=float, default=8.0, help="each (default: 8)")
    parser.add_argument("--db", help="a database of searches of one shape each")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds: samples of each")
    parser.add_argument("--seconds", type=float, help="begin no shape after so many")
    parser.add_argument("--out", type=Path, help="JSON with raw samples; NAME.xz compresses it")
    return parser.parse_args()


if __name__ == "__main__":
    reports.run(_run, _arguments())
