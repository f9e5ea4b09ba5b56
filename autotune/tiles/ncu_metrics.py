"""What Nsight Compute counts of a launch, beside what the model counts of it.

Whether both agree is asked on a GPU by benchmarks/counts_vs_ncu.py; pages show the command that asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..kernel.config import Config
from .drawn_parts import Drawing
from .launch_counts import AccessKey
from .warp_access import AccessCounts

KERNEL = "sgemm"  # the one of a call's kernels that is counted
TOLERANCE = 0.02
WIDE = 4  # floats of a copy that bypasses L1

Counts = Mapping[AccessKey, AccessCounts]
Field = Literal["accesses", "sectors", "wavefronts", "conflicts"]


@dataclass(frozen=True)
class NcuMetric:
    """A metric of ncu, what it means, and which accesses of the model's kernel `sgemm` it counts."""

    name: str
    description: str
    space: str
    kinds: tuple[str, ...]
    field: Field
    relation: Literal["equal", "at least"] = "equal"
    is_wide: bool | None = None  # of copies: those of 16 bytes bypass L1, others go through it
    of: Field | None = None  # what 2 % are taken of; None: of what is expected

    def expected(self, counts: Counts, wide: Iterable[str]) -> int:
        """What the model says. `wide`: operands that are copied 16 bytes at a time."""
        return self._sum(self.field, counts, wide)

    def tolerance(self, counts: Counts, wide: Iterable[str]) -> float:
        """How far from it a measured value may be."""
        return TOLERANCE * self._sum(self.of or self.field, counts, wide)

    def holds(self, measured: float, expected: int, tolerance: float) -> bool:
        """Whether a measured value is what it should be."""
        if self.relation == "at least":
            return measured >= expected - tolerance
        return abs(measured - expected) <= tolerance

    def _sum(self, field: Field, counts: Counts, wide: Iterable[str]) -> int:
        return sum(
            int(getattr(found, field))
            for key, found in counts.items()
            if key.kernel == KERNEL
            and (key.space, key.kind in self.kinds) == (self.space, True)
            and (self.is_wide is None or (key.what in wide) == self.is_wide)
        )


_COPIED = "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_"
METRICS = (
    NcuMetric("smsp__inst_executed_op_global_ld.sum", "instructions of warps that load from global memory",
              "global", ("load",), "accesses"),
    NcuMetric("smsp__inst_executed_op_global_st.sum", "instructions of warps that store to global memory",
              "global", ("store",), "accesses"),
    # Turned off: copies of slices behind the end of k, and three loads that ptxas puts before each burst
    NcuMetric("smsp__inst_executed_op_ldgsts.sum", "cp.async instructions of warps",
              "shared", ("copy",), "accesses", "at least"),
    NcuMetric("smsp__inst_executed_op_shared_ld.sum", "instructions of warps that load from shared memory",
              "shared", ("load",), "accesses", "at least"),
    NcuMetric("smsp__inst_executed_op_shared_st.sum", "instructions of warps that store to shared memory",
              "shared", ("store",), "accesses"),
    NcuMetric("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sectors that loads and cp.async look up",
              "global", ("load", "copy"), "sectors"),
    NcuMetric("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sectors that stores pass through L1",
              "global", ("store",), "sectors"),
    NcuMetric(f"{_COPIED}access.sum", "sectors that cp.async of 4 and 8 bytes looks up in L1",
              "global", ("copy",), "sectors", is_wide=False),
    NcuMetric(f"{_COPIED}bypass.sum", "sectors that cp.async of 16 bytes asks L2 for, past L1",
              "global", ("copy",), "sectors", "at least", is_wide=True),
    NcuMetric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "passes of loads through the banks",
              "shared", ("load",), "wavefronts"),
    NcuMetric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "passes of stores through the banks",
              "shared", ("store",), "wavefronts"),
    # 2 % of all passes: the banks serve other units of the SM, too
    NcuMetric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "passes of loads in excess",
              "shared", ("load",), "conflicts", of="wavefronts"),
    NcuMetric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", "passes of stores in excess",
              "shared", ("store",), "conflicts", of="wavefronts"),
    # a copy passes through the banks as L1 is read, and as shared memory is written: the longer of the two
    NcuMetric("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum", "passes of cp.async",
              "shared", ("copy",), "wavefronts", "at least"),
)  # fmt: skip


def wide_operands(config: Config) -> tuple[str, ...]:
    """Those that are copied 16 bytes at a time."""
    return tuple(what for what, vec in (("A", config.vec_a), ("B", config.vec_b)) if vec == WIDE)


def drawn(counts: Counts, config: Config) -> list[Drawing]:
    """Every metric, with what the model expects of it."""
    wide = wide_operands(config)
    return [
        {
            "name": metric.name,
            "meaning": metric.description,
            "expected": metric.expected(counts, wide),
            "relation": metric.relation,
        }
        for metric in METRICS
    ]
