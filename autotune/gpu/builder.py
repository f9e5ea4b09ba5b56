"""Makes kernels of configs for one GPU, or gives the reason why not: a broken rule, the compiler, spilled
registers, a block that does not fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..facts.device import DeviceLimits
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.measurement import Measurement, Outcome
from ..files.errors import TrialFailure, UsageError
from ..kernel import template, templates
from ..kernel.compiler import Compiler, Cubin, Helpers
from ..kernel.launch import LaunchSpec
from ..kernel.scaled_config import AnyConfig
from ..target import Point
from . import instance
from .protocol import KernelCode

CHECKS_FILE = "checks.cu"
CHECKS_ENTRY = "reference_tiles"
MAX_RECENT = 64  # kernels kept for comparisons


@dataclass(frozen=True)
class Built:
    """The result of building a config: a kernel, or none, and then `facts` say why."""

    facts: Measurement
    code: KernelCode | None = None


BuildFn = Callable[[], Built]  # waits for the compiler


class KernelBuilder:
    """Compiles in threads, through a cache. `note` receives why the cache cannot be used. Raises
    EnvironmentProblem if the compiler is missing, or too old or new for this GPU."""

    def __init__(
        self, limits: DeviceLimits, *, cache_dir: Path | None, note: Callable[[str], None],
        helpers: Helpers | None = None,
    ) -> None:  # fmt: skip
        self._limits = limits
        self.compiler = Compiler(limits.arch, cache_dir=cache_dir, helpers=helpers, note=note)
        self._recent = OrderedDict[tuple[Gemm, AnyConfig], KernelCode]()  # that were in comparisons

    def rejection(self, gemm: Gemm, config: AnyConfig) -> str:
        """Why a config is not compiled for this problem, or ""."""
        return instance.rejection(config, self._limits, gemm)

    def begin(self, gemm: Gemm, config: AnyConfig) -> Future[Cubin]:
        """Compile a config on a thread. The future raises TrialFailure if it does not compile."""
        return self.compiler.submit(config, instance.variant(gemm))

    def begin_all(self, wanted: Sequence[tuple[Gemm, AnyConfig]]) -> list[BuildFn]:
        """Compile these, each kernel once; the results come later."""
        compiles: dict[Hashable, Future[Cubin]] = {}
        build_fns: list[BuildFn] = []
        for gemm, config in wanted:
            if rejection := self.rejection(gemm, config):
                build_fns.append(partial(Built, Measurement(Outcome.ILLEGAL, rejection)))
                continue
            kernel = (config.kernel, instance.variant(gemm))
            if kernel not in compiles:
                compiles[kernel] = self.begin(gemm, config)
            build_fns.append(partial(self.built, gemm, config, compiles[kernel].result))
        return build_fns

    def load(self, gemm: Gemm, config: AnyConfig) -> Cubin:
        """A kernel that was compiled before: from the cache, bypassing the compiler's queue. Raises
        TrialFailure if it must be compiled again and does not compile."""
        return self.compiler.compile(config, instance.variant(gemm))

    def built(self, gemm: Gemm, config: AnyConfig, cubin: Callable[[], Cubin]) -> Built:
        """What came of a legal config; `cubin` waits for it."""
        try:
            compiled = cubin()
        except TrialFailure as failure:
            return Built(Measurement(Outcome(failure.outcome), failure.reason))
        code = instance.code(gemm, config, compiled, self._limits)
        facts = Measurement(
            Outcome.OK,
            **picked(compiled, "registers spill_bytes code_hash compile_s"),
            smem_bytes=code.spec.smem_bytes + compiled.static_smem_bytes,
        )
        if reason := instance.spills(compiled):
            return Built(replace(facts, outcome=Outcome.SPILLED, reason=reason))
        if reason := instance.mismatch(compiled, config, code.spec, self._limits, gemm):
            return Built(replace(facts, outcome=Outcome.DOES_NOT_FIT, reason=reason))
        return Built(facts, code)

    def recent(self, gemm: Gemm, config: AnyConfig) -> KernelCode:
        """A kernel that ran before, and may be needed again soon. Raises what `load` does."""
        if (gemm, config) not in self._recent:
            cubin = self.load(gemm, config)
            self._recent[gemm, config] = instance.code(gemm, config, cubin, self._limits)
            while len(self._recent) > MAX_RECENT:
                self._recent.popitem(last=False)
        self._recent.move_to_end((gemm, config))
        return self._recent[gemm, config]

    def kernels(self, gemm: Gemm, points: Sequence[Point]) -> list[KernelCode]:
        """Points that ran before, compiled side by side. Raises UsageError for one that is illegal,
        TrialFailure for one that does not compile."""
        configs = [templates.read(point) for point in points]
        for config in configs:
            if rejection := self.rejection(gemm, config):
                raise UsageError(f"{config} is not legal for {gemm}: {rejection}")
        compiled = [self.begin(gemm, config) for config in configs]
        pairs = zip(configs, compiled, strict=True)
        return [instance.code(gemm, config, future.result(), self._limits) for config, future in pairs]

    def build(self, gemm: Gemm, config: AnyConfig) -> KernelCode:
        """One config, whether it spills or not. Raises UsageError where it is illegal for the problem or does
        not fit the device, TrialFailure where it does not compile."""
        if rejection := self.rejection(gemm, config):
            raise UsageError(rejection)
        cubin = self.begin(gemm, config).result()
        code = instance.code(gemm, config, cubin, self._limits)
        if reason := instance.mismatch(cubin, config, code.spec, self._limits, gemm):
            raise UsageError(reason)
        return code

    def build_source(self, source: str, entry: str, spec: LaunchSpec) -> KernelCode:
        """A kernel with the template's arguments that is no instance of it. Raises TrialFailure."""
        cubin = self.compiler.compile_source(source, entry=entry)
        return KernelCode(cubin.code, cubin.sha256, spec, entry)

    def checks(self) -> bytes:
        """The cubin of kernels/checks.cu, by which the worker verifies."""
        return self.compiler.compile_source(template.source(CHECKS_FILE), entry=CHECKS_ENTRY).code

    def close(self) -> None:
        """Drop what is queued and wait for what compiles."""
        self.compiler.close()
