"""An exported table as maps over m, n and k: which kernel serves what, against cuBLAS, and how surely.

What may be lost (`risk`) is the mean of how much longer the pick takes than the fastest of the first
launches, if each kernel's time is off by its model's own error, log-normal and independent of the others'.
Errors of kernels go together, so it is more than what is lost: the table's own figures on shapes that were
left out (docs/decisions/0045) say how much more. Pure but for reading the folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..facts.frozen import picked
from ..facts.gemm import LAYOUTS, Gemm
from ..kernel.config import Config, brief
from ..runtime.choose.chooser import NUM_FIRST, Call, Chooser, Pick
from ..runtime.table.gpu_models import load_models
from ..runtime.table.table import Kernel, Table
from .documents import Document, column, significant
from .numbers import StudyNumbers

SIDES = tuple(2**i for i in range(15))  # m and n
DEPTHS = (64, 256, 1024, 4096, 16384)  # k
NUM_DRAWS = 256  # of errors, for a mean that holds to about a tenth of itself


@dataclass(frozen=True)
class MapCell:
    """What serves one product. Times in us, None where nothing is modelled."""

    kernel: str
    split_k: int
    how: str
    provider: str
    expected_us: float | None
    cublas_us: float | None
    error: float | None  # of the kernel's model, relative
    risk: float | None  # share by which the pick is expected to be slower than the best of the first launches


@dataclass(frozen=True)
class ServedShape:
    """A shape of the database and what the table does for it. `regret`: how much longer the picked launch
    took than the fastest of the database, cuBLAS included; None where it was not timed on this shape."""

    study: int
    shape: str
    cell: MapCell
    best_us: float | None
    picked_us: float | None
    regret: float | None


class Maps:
    """The cells of a table. `_draws`: normal errors (NUM_DRAWS, NUM_FIRST), the same for all cells, so that
    neighbours differ by what is known of them alone."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._chooser = Chooser(table)
        self._kernels = {kernel.id: kernel for kernel in table.kernels}
        self._draws = np.random.default_rng(0).standard_normal((NUM_DRAWS, NUM_FIRST))

    def cell(self, gemm: Gemm) -> MapCell:
        """What a packed call of this shape gets."""
        call = Call.packed(gemm)
        pick = self._chooser.pick(call)
        is_modelled = pick.how == "modelled" and not gemm.is_batched
        risk = self._risk(self._chooser.ranked(call, NUM_FIRST)) if is_modelled else None
        own = picked(pick, "split_k how provider expected_us cublas_us")
        return MapCell(pick.kernel_id, **own, error=self._error(pick.kernel_id), risk=risk)

    def _error(self, kernel_id: str) -> float | None:
        model = self._kernels[kernel_id].model
        return model.relative_error if model else None

    def _risk(self, picks: Sequence[Pick]) -> float | None:
        """Of the first of these launches. Launches of one kernel share its error."""
        known = {pick.kernel_id: pick for pick in reversed(picks)}  # of each kernel the first
        times = [known[name].expected_us for name in dict.fromkeys(pick.kernel_id for pick in picks)]
        errors = [self._error(name) for name in dict.fromkeys(pick.kernel_id for pick in picks)]
        if any(value is None for value in (*times, *errors)):
            return None
        logs = np.log(np.array(times, float)) + self._draws[:, : len(times)] * np.array(errors, float)
        return float(np.exp(logs[:, 0] - logs.min(axis=1)).mean() - 1)

    def served(self, studies: Iterable[StudyNumbers]) -> list[ServedShape]:
        """What the table does for each shape that this database has of the same GPU model, as measured."""
        environment = self.table.environment
        same = (environment.gpu_name, environment.recorded_on)
        places = ((one, one.study.environment) for one in studies)
        return [self._served(one) for one, at in places if (at.gpu_name, at.recorded_on) == same]

    def _served(self, study: StudyNumbers) -> ServedShape:
        cell, gemm = self.cell(study.study.gemm), study.study.gemm
        if gemm.is_batched and cell.provider != "cublas" and self._chooser.pick(Call.packed(gemm)).is_looped:
            picked_us = None  # nobody timed a launch for each product
        elif cell.provider == "cublas":
            picked_us = study.cublas_us
        else:
            config = self._kernels[cell.kernel].config
            key = replace(config, split_k=cell.split_k).key if isinstance(config, Config) else config.key
            picked_us = next((t.measurement.time_us for t in study.ok if t.key == key), None)
            if study.final:
                picked_us = next((e.time_us for e in study.final.entries if e.key == key), picked_us)
        times = [time_us for time_us in (study.best_us, study.cublas_us, picked_us) if time_us]
        regret = picked_us / min(times) - 1 if picked_us else None
        return ServedShape(study.study.id, str(study.study.gemm), cell, study.best_us, picked_us, regret)


def table_document(folder: Path, studies: Iterable[StudyNumbers]) -> Document:
    """All that the page of an exported folder is drawn from: of several GPU models the one that most of the
    studies are of. Raises DispatchError where it cannot be read."""
    studies = list(studies)
    names = Counter(study.study.environment.gpu_name for study in studies)
    models = [table for _, table in load_models(folder)]
    table = max(models, key=lambda table: names[table.environment.gpu_name])  # the first of equals
    others = [other.environment.gpu_name for other in models if other is not table]
    maps = Maps(table)
    return {
        "folder": folder.name,
        "gpu": table.environment.gpu_name,
        "other_gpus": others,
        **picked(table, "recorded_on created_at policy"),
        "num_first": NUM_FIRST,
        "sides": list(SIDES),
        "depths": list(DEPTHS),
        "kernels": [_kernel(kernel) for kernel in table.kernels if kernel.is_plain],
        "layouts": {layout: _layout(maps, layout) for layout in LAYOUTS},
        "tuned": [_place(entry.gemm) for entry in table.entries],
        "served": [asdict(one) for one in maps.served(studies)],
        "left_out": [asdict(group) for group in table.left_out],
    }


def _place(gemm: Gemm) -> Document:
    return picked(gemm, "m n k layout")


def _kernel(kernel: Kernel) -> Document:
    return {
        **picked(kernel, "id registers blocks_per_sm"),
        "config": brief(kernel.config.to_dict()),
        "error": significant(kernel.model.relative_error, 3) if kernel.model else None,
        "num_samples": kernel.model.num_samples if kernel.model else None,
    }


def _layout(maps: Maps, layout: str) -> Document:
    """Columns of cells: of each k, of each m, of each n."""
    plain = (kernel for kernel in maps.table.kernels if kernel.is_plain)
    number = {kernel.id: at for at, kernel in enumerate(plain)}
    trans, limits = (layout[0] == "T", layout[1] == "T"), maps.table.limits
    gemms = [Gemm(m, n, k, *trans) for k in DEPTHS for m in SIDES for n in SIDES]
    cells = [maps.cell(gemm) for gemm in gemms]
    limit_us = [gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs) for gemm in gemms]

    def of(tell: Callable[[MapCell], Any]) -> Any:
        return column([tell(cell) for cell in cells])

    return {
        "kernel": of(lambda cell: number[cell.kernel]),
        "split_k": of(lambda cell: cell.split_k),
        "how": of(lambda cell: cell.how),
        "provider": of(lambda cell: cell.provider),
        "us": of(lambda cell: significant(cell.expected_us, 4)),
        "cublas_us": of(lambda cell: significant(cell.cublas_us, 4)),
        "error": of(lambda cell: significant(cell.error, 3)),
        "risk": of(lambda cell: significant(cell.risk, 3)),
        "limit_us": [significant(us, 4) for us in limit_us],
    }
