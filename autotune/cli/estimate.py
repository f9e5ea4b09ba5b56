"""`autotune estimate`: what a program of torch could gain, before there is a table, or a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import typer

from .. import target_finder as targets
from ..estimate.counted_program import REFUSED
from ..estimate.counts import CALLS, FP32, ON_HOST, TF32, UNSUPPORTED, WORK
from ..facts.gemm import Gemm
from ..files.errors import EnvironmentProblem, UsageError
from ..files.output_file import check_writable, write_file
from ..files.words import counted, short
from ..shipped.expected_times import Predicted, ShippedFigures
from ..suite import by_shape, read_calls
from . import common, console
from .ctrl_c import SIGNALLED
from .facts_table import facts_table
from .requests import EstimateRequest

_GRACE_PERIODS_S = (15.0, 5.0)  # for a program that was interrupted, and once more
_TORCH = "a program of torch is run with torch: install it where autotune is, {python}"
_SHORT_US = 10.0  # a call of less takes its host longer than the GPU
_NOTHING = {  # why nothing is gained there, and what would change that
    TF32: "the tensor cores multiply, less exactly: faster than any FP32 kernel",
    UNSUPPORTED: "cuBLAS copies the operands first",
    ON_HOST: "move them to the GPU",
    "convolutions": "by cuDNN",
    "attention in one kernel": "of torch (scaled_dot_product_attention)",
    "recurrent layers": "by cuDNN",
    "products of a matrix and a vector": "bound by memory",
    "factorizations and solves": "by cuSOLVER",
}
_TIMES = ("cublas_us", "untuned_us", "tuned_us")
_PREDICTED = {
    "predicted for": "gpu", "cuBLAS": "cublas_us", "untuned table": "untuned_us", "tuned table": "tuned_us",
    "untuned gain": "untuned_speedup", "tuned gain": "tuned_speedup",
}  # fmt: skip
_COMPARED = ("cublas_us", "tuned_us")  # of each shape
_HALF = "autocast (AMP), or the model's own: the tensor cores multiply"
_OTHER_DTYPE = "kernels are for float32"
_DESCRIPTION = (
    "Predicted, not measured here: the GPU's time for these products alone, from times of kernels and cuBLAS "
    "that ship with autotune. untuned: a table that never saw the program; cuBLAS serves where no kernel is "
    "clearly faster. tuned: the best kernel that ships for each shape, with which a search begins. Left out: "
    "the host's time for a call, operands that are not packed, a bias. Of shapes measured elsewhere, 4 in 5 "
    "were predicted within 20% (studies/results/shipped-accuracy.txt)."
)


class _Ended(NamedTuple):
    """How a program ended: as a shell reports it, and whether the user interrupted it."""

    code: int
    was_interrupted: bool


class _Kind(NamedTuple):
    """One shape of the program, its calls, and a call's times on each GPU model."""

    gemm: Gemm
    calls: int
    predicted: tuple[Predicted, ...]

    @property
    def flops(self) -> int:
        return self.calls * self.gemm.flops


def run(request: EstimateRequest, *, is_json: bool) -> None:
    """Run the program, count, predict, and end as the program does. Raises UsageError, EnvironmentProblem."""
    _check(request)
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        ended = _run_counted(request, Path(folder))
        work = _work(Path(folder), ended)
        calls = _calls(Path(folder) / CALLS, work)
        if calls:
            write_file(request.out, (Path(folder) / CALLS).read_bytes())
    kinds, figures = _predicted(calls)
    facts = _facts(request, work, kinds, figures, ended)
    console.answer(facts, lambda: _text(facts), is_json=is_json)
    raise typer.Exit(ended.code)


def _check(request: EstimateRequest) -> None:
    name = request.program[0]
    if not request.is_module and not Path(name).is_file():
        raise UsageError(f"no program at {name}; name a Python file, or a module behind -m")
    if Path(f"{request.out}.d").exists():
        raise UsageError(f"calls were recorded in {request.out}.d already; name another file with --out")
    check_writable(request.out)
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentProblem(f"torch is missing; {_TORCH.format(python=sys.executable)}")


# -------------------------------------------------------------------------------------- the program


def _run_counted(request: EstimateRequest, folder: Path) -> _Ended:
    """Run the program in a process of its own. What it prints goes to stderr: stdout is for the result."""
    module = ("-m",) if request.is_module else ()
    # -P: a folder named autotune where the user is must not be found before this one
    command = [sys.executable, "-P", "-m", "autotune.estimate.counted_program", str(folder)]
    program = (str(request.seconds), *module, *request.program)
    own = os.environ.get("OPENBLAS_NUM_THREADS") == "1"  # as the command line sets it for itself
    environment = {k: v for k, v in os.environ.items() if not (own and k == "OPENBLAS_NUM_THREADS")}
    with subprocess.Popen([*command, *program], stdout=2, env=environment) as child:
        try:
            return _Ended(_exit_code(child.wait()), False)
        except KeyboardInterrupt:
            return _Ended(_interrupted(child), True)


def _interrupted(child: subprocess.Popen[bytes]) -> int:
    """A terminal interrupts the program, too; else this passes it on. Once more, and it is killed."""
    with suppress(KeyboardInterrupt):
        for grace_s in _GRACE_PERIODS_S:
            with suppress(subprocess.TimeoutExpired):
                return _exit_code(child.wait(grace_s))
            child.send_signal(signal.SIGINT)
    child.kill()
    return _exit_code(child.wait())


def _exit_code(code: int) -> int:
    return SIGNALLED - code if code < 0 else code


def _work(folder: Path, ended: _Ended) -> dict[str, Any]:
    """What the program did. Raises EnvironmentProblem if it could not be run with torch."""
    rejected = folder / REFUSED
    if rejected.exists():
        why = rejected.read_text(encoding="utf-8")
        raise EnvironmentProblem(f"torch cannot be used ({why}); {_TORCH.format(python=sys.executable)}")
    try:
        work: dict[str, Any] = json.loads((folder / WORK).read_bytes())
    except FileNotFoundError:  # killed before it did anything
        work = {"work": [{"what": FP32, "calls": 0, "flops": 0}], "is_cut_short": False}
    return work


def _calls(path: Path, work: dict[str, Any]) -> dict[Gemm, int]:
    fp32 = next(one for one in work["work"] if one["what"] == FP32)
    if not fp32["calls"]:
        return {}
    return {gemm: count or 1 for gemm, count in by_shape(read_calls(path).calls).items()}


# ----------------------------------------------------------------------------------- the prediction


def _predicted(calls: dict[Gemm, int]) -> tuple[list[_Kind], list[ShippedFigures]]:
    """The kinds of which cuBLAS takes most, first."""
    figures = ShippedFigures.of_models(targets.matrices()) if calls else []
    kinds = [_Kind(g, count, tuple(f.predict(g) for f in figures)) for g, count in calls.items()]
    return sorted(kinds, key=lambda kind: -kind.calls * kind.predicted[0].cublas_us), figures


def _facts(
    request: EstimateRequest,
    work: dict[str, Any],
    kinds: Sequence[_Kind],
    figures: Sequence[ShippedFigures],
    ended: _Ended,
) -> dict[str, Any]:
    flops = sum(one["flops"] for one in work["work"])
    done = sorted(work["work"], key=lambda one: (one["what"] != FP32, -one["flops"]))
    return {
        "program": shlex.join(request.program),
        "exit_code": ended.code,
        "was_interrupted": ended.was_interrupted,
        "is_cut_short": work["is_cut_short"],
        "calls": str(request.out) if kinds else None,
        "num_calls": sum(kind.calls for kind in kinds),
        "num_shapes": len(kinds),
        "flops": flops,
        "work": [_work_facts(one, flops) for one in done],
        "predicted": [_gpu_facts(f.limits.name, at, kinds) for at, f in enumerate(figures)] if kinds else [],
        "here": _here(work) if kinds else None,
        "shapes": [_shape_facts(kind, figures) for kind in kinds[: request.limit]],
    }


def _work_facts(one: dict[str, Any], flops: int) -> dict[str, Any]:
    what = one["what"]
    why = "" if what == FP32 else _NOTHING.get(what, _HALF if what.endswith("float16") else _OTHER_DTYPE)
    return {**one, "share_of_flops": common.share(one["flops"], flops), "why_no_gain": why or None}


def _here(work: dict[str, Any]) -> dict[str, Any] | None:
    """What was measured on a GPU of this machine: the share of its products in the program's time."""
    here: dict[str, Any] | None = work.get("here")
    return here and here | {"share": min(1.0, here["products_s"] / max(here["seconds"], 1e-9))}


def _gpu_facts(gpu: str, at: int, kinds: Sequence[_Kind]) -> dict[str, Any]:
    """Seconds of all products on one GPU model."""
    found = [(kind.calls, kind.predicted[at]) for kind in kinds]
    cublas_s, untuned_s, tuned_s = (
        sum(calls * getattr(one, name) for calls, one in found) / 1e6 for name in _TIMES
    )
    short = sum(calls for calls, one in found if one.cublas_us < _SHORT_US)
    return {
        "gpu": gpu,
        "cublas_s": cublas_s,
        "untuned_s": untuned_s,
        "tuned_s": tuned_s,
        "untuned_speedup": cublas_s / untuned_s,
        "tuned_speedup": cublas_s / tuned_s,
        "share_of_short_calls": short / sum(calls for calls, _ in found),
    }


def _shape_facts(kind: _Kind, figures: Sequence[ShippedFigures]) -> dict[str, Any]:
    times = zip(figures, kind.predicted, strict=True)
    predicted = {f.limits.name: {name: getattr(one, name) for name in _TIMES} for f, one in times}
    return {"shape": str(kind.gemm), "count": kind.calls, "flops": kind.flops, "predicted": predicted}


# ----------------------------------------------------------------------------------------- the text


def _text(facts: dict[str, Any]) -> str:
    parts = [_head(facts)]
    if facts["flops"]:
        parts.append(_work_table(facts["work"]))
    if not facts["predicted"]:
        parts.append("No product of float32 matrices was made: autotune has nothing to gain in this program.")
        return "\n".join(parts)
    parts += [_gpu_table(facts["predicted"]), _DESCRIPTION]
    if facts["here"]:
        parts.append(_here_text(facts["here"], facts["predicted"]))
    calls = shlex.quote(facts["calls"])
    parts += [*_warnings(facts), _shape_table(facts)]
    parts.append(f"Next: autotune search --suite {calls} --seconds 120, and export-table --suite {calls}")
    return "\n".join(parts)


def _head(facts: dict[str, Any]) -> str:
    ends = "" if not facts["exit_code"] else f", which ended with exit code {facts['exit_code']}"
    if facts["was_interrupted"]:
        ends = ", until it was interrupted"
    elif facts["is_cut_short"]:
        ends = ", until its time was up"
    shapes = counted(facts["num_shapes"], "shape")
    return f"{facts['program']}{ends}: {counted(facts['num_calls'], 'product')} in float32 of {shapes}"


def _work_table(work: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            one["what"], f"{one['calls']:,}", short(one["flops"] / 1e9),
            console.ratio_text(one["share_of_flops"], "%"),
            "nothing to gain: " + one["why_no_gain"] if one["why_no_gain"] else "",
        )
        for one in work
        if one["calls"]
    ]  # fmt: skip
    return console.table(("work", "operations", "GFLOP", "of all", ""), rows, right=(1, 2, 3))


def _gpu_table(predicted: Sequence[dict[str, Any]]) -> str:
    times = ({name: 1e6 * one[f"{name[:-3]}_s"] for name in _TIMES} for one in predicted)
    rows = [{**one, **its} for one, its in zip(predicted, times, strict=True)]
    return facts_table(rows, _PREDICTED)


def _shape_table(facts: dict[str, Any]) -> str:
    gpus = [one["gpu"].split()[1] for one in facts["predicted"]]
    flops = next(one["flops"] for one in facts["work"] if one["what"] == FP32)
    rows = []
    for one in facts["shapes"]:
        times = (console.time_text(its[name]) for its in one["predicted"].values() for name in _COMPARED)
        rows.append((one["shape"], f"{one['count']:,}", f"{one['flops'] / flops:.0%}", *times))
    columns = (f"{gpu} {name.removesuffix('_us')}" for gpu in gpus for name in _COMPARED)
    headers = ("shape", "calls", "of FLOPs", *columns)
    return console.table(headers, rows, right=range(1, len(headers)))


def _here_text(here: dict[str, Any], predicted: Sequence[dict[str, Any]]) -> str:
    gain = max(one["tuned_speedup"] for one in predicted)
    whole = 1 / (1 - here["share"] * (1 - 1 / gain))
    products, program = console.seconds_text(here["products_s"]), console.seconds_text(here["seconds"])
    return (
        f"Measured on this {here['gpu']}: these products take cuBLAS {products} of the program's "
        f"{program}, {_percent(here['share'])}. Each was timed alone afterwards "
        f"({_percent(here['timed_share'])} of their FLOPs), and counting slows the program. At most the "
        f"whole program is {whole:.2f}x as fast."
    )


def _warnings(facts: dict[str, Any]) -> list[str]:
    """What makes the gain smaller than it looks."""
    first = facts["predicted"][0]
    fp32 = next(one for one in facts["work"] if one["what"] == FP32)
    found = []
    if (fp32["share_of_flops"] or 0) < 0.5:
        found.append(
            f"Most of the work is no float32 product: {_percent(fp32['share_of_flops'])} of it can gain."
        )
    if first["share_of_short_calls"] > 0.5:
        share = _percent(first["share_of_short_calls"])
        found.append(
            f"{share} of the products take less than {_SHORT_US:.0f} us on an {first['gpu']}: such a program "
            "mostly waits for its host, and gains less, or as a CUDA graph."
        )
    return found


def _percent(share: float | None) -> str:
    return f"{share or 0:.0%}"
