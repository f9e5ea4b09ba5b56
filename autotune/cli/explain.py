"""`autotune explain`: what kernels do with memory, as one HTML file: the ladder, winners, or any config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..facts.device import DeviceLimits, known_limits, limits_by_name
from ..facts.gemm import Gemm
from ..files.answers import kept
from ..files.errors import UsageError
from ..files.output_file import check_writable, write_file
from ..files.words import counted
from ..kernel.config import PARAMETER, Config, values_in
from ..kernel.rules import broken_rules
from ..kernel.rungs import steps
from ..kernel.scaled_config import kind_of
from ..kernel.template import kernel_dir
from ..recording.replay import ReplayTarget
from ..target_finder import recordings, studies_dir
from ..tiles.kernel_picture import Subject, explorer_page
from . import console, expected
from .requests import ExplainRequest

if TYPE_CHECKING:
    from ..report.numbers import StudyNumbers

_COUNTED = "Counts are of the kernel's text, executed on the host; no time in them was measured."
REQUESTED, LADDER, WINNERS = "asked for", "the ladder", "winners that ship"


def run(request: ExplainRequest, *, is_json: bool) -> None:
    """Write the page: what was asked for first, then the ladder, then winners. Raises UsageError for a
    config, shape or GPU that is none, and where `out` cannot be written."""
    gemm, limits, out = Gemm.parse(request.shape), known_limits(request.gpu), request.out
    requested = [_requested(number, text, gemm) for number, text in enumerate(request.configs, 1)]
    check_writable(out)
    question, sources = ("explained", requested, gemm, limits, request.gpu), (studies_dir(), kernel_dir())
    page, drawn = kept(question, sources, lambda: _explained(requested, gemm, limits, request.gpu))
    write_file(out, page)
    if is_json:
        console.show_json({"out": str(out), **drawn, "expected": expected.facts(limits, gemm)})
        return
    for name, rules in drawn["broken_rules"].items():
        message = "; ".join(f"{rule['sentence']} ({rule['id']})" for rule in rules)
        console.note(
            f"{name} breaks these rules: {message}. `autotune space --explain CONFIG` gives the numbers."
        )
    count = counted(len(drawn["kernels"]), "kernel")
    console.show(f"wrote {out}: {count}, {len(page.encode()) / 1e6:.1f} MB; open it in a browser")
    console.show(console.wrap_text(expected.text(limits, gemm)))


def _explained(
    requested: Sequence[Subject], gemm: Gemm, limits: DeviceLimits, gpu: str
) -> tuple[str, dict[str, Any]]:
    """The page, and what it shows, for machines."""
    rungs = _ladder(gemm)
    selected = [*requested, *rungs, *_winners(gemm, limits, len(rungs))]
    if not selected:
        raise UsageError(f"no kernel that ships is known for {gemm} on {limits.name}; name one with --config")
    known = expected.text(limits, gemm)
    footer = f"Written by autotune explain for {gemm} on {limits.name}. {_COUNTED} {known}"
    kernels = [{"name": s.name, "family": s.family, "shape": str(s.gemm)} for s in selected]
    drawn = {"kernels": kernels, "broken_rules": _broken(requested, limits)}
    return explorer_page(selected, limits, gpu, footer), drawn


def trial_page(study: StudyNumbers, trial_id: int) -> str | None:
    """The page of one trial's kernel; None for a GPU, trial or config that is not known."""
    gemm, gpu = study.study.gemm, study.study.environment.gpu_name
    limits = limits_by_name(gpu)
    trial = next((trial for trial in study.records.trials if trial.id == trial_id), None)
    if limits is None or trial is None or trial.point.keys() != set(PARAMETER):
        return None
    subject = Subject(f"trial {trial_id}", f"of {gemm}", REQUESTED, Config.from_dict(trial.point), gemm)
    return explorer_page([subject], limits, gpu, f"Trial {trial_id} of {gemm} on {gpu}. {_COUNTED}")


def _requested(number: int, text: str, gemm: Gemm) -> Subject:
    if kind_of(values_in(text)) is not Config:
        raise UsageError(
            f"config {number} is of the kernel on tensor cores, which is not drawn; `autotune space "
            "--explain` tells which rules it breaks"
        )
    return Subject(f"config {number}", "the config that was asked for", REQUESTED, Config.parse(text), gemm)


def _broken(requested: Sequence[Subject], limits: DeviceLimits) -> dict[str, list[dict[str, str]]]:
    """The rules that configs break, by their name."""
    found = {}
    for subject in requested:
        if isinstance(subject.kernel, Config):
            rules = broken_rules(subject.kernel, limits, subject.gemm)
            if rules:
                found[subject.name] = [{"id": r.id, "kind": r.kind, "sentence": r.sentence} for r in rules]
    return found


def _ladder(gemm: Gemm) -> list[Subject]:
    """The rungs, where the problem has them: single NN products."""
    if gemm.is_batched or gemm.layout != "NN":
        return []
    return [
        Subject(f"{number}. {step.name}", step.adds, LADDER, step.kernel, gemm)
        for number, step in enumerate(steps(gemm), 1)
    ]


def _winners(gemm: Gemm, limits: DeviceLimits, rungs: int) -> list[Subject]:
    """The best recorded config of each problem on this GPU, that of `gemm` first: it is the last rung."""
    found = []
    for path in recordings():
        recorded = ReplayTarget(path)
        if recorded.limits.name != limits.name:
            continue
        for own in sorted(recorded.gemms, key=lambda other: other != gemm):
            point, time_us = recorded.optimum(own)
            cublas_us = recorded.baseline(own).time_us
            adds = f"the fastest of a recorded search, {time_us:,.1f} us"
            adds += f" where cuBLAS takes {cublas_us:,.1f} us" if cublas_us else ""
            is_rung = own == gemm and bool(rungs)
            name, family = (f"{rungs + 1}. tuned", LADDER) if is_rung else (f"tuned for {own}", WINNERS)
            found.append(Subject(name, adds, family, Config.from_dict(point), own))
    return found
