"""`autotune space`: counts what a GPU can run on a shape, prints the rules, explains a refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..facts.accuracy_class import STRICT
from ..facts.accuracy_class import read as read_class
from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..facts.other_problem import read_problem
from ..files.errors import UsageError
from ..files.words import counted
from ..kernel import templates
from ..kernel.config import Config, Parameter, values_in
from ..kernel.excess import excess
from ..kernel.feasible_set import FeasibleSet, feasible_set, tensor_set
from ..kernel.mma_config import MmaConfig
from ..kernel.resources import launch_spec, register_estimate, workspace_bytes
from ..kernel.rules import Rule, broken_rules, rules_of
from ..kernel.scaled_config import AnyConfig, HalvesConfig
from ..kernel.summation_order import has_order
from ..kernel.where import Where
from ..recording.replay import ReplayTarget
from ..target import point_key
from ..target_finder import REPLAY, limits_named
from . import common, console, expected
from .requests import SpaceRequest

KINDS = {
    "template": "the kernel does not compile otherwise",
    "device": "this GPU cannot run it",
    "shape": "this problem cannot be computed with it",
    "worth": "legal, but known not to pay: left out of a search",
}


def run(request: SpaceRequest, *, is_json: bool) -> None:
    """Print the space, or with `explain` what becomes of one config; under these conditions."""
    if request.gpu.startswith(REPLAY):
        _run_recorded(request, is_json=is_json)
        return
    gemm = Gemm.parse(request.shape)
    conditions = Where.parse(request.where, request.max_workspace, request.order)
    gemm.need_output()
    accuracy = read_class(request.accuracy)
    if accuracy != STRICT and conditions.order:
        raise UsageError(f"--accuracy {accuracy} and --order: only strict kernels have that; leave out one")
    limits = limits_named(request.gpu, note=console.note)
    its = templates.searched_for(accuracy, limits)
    conditions.check(its.values())
    conditions = conditions.on(gemm, limits)
    if request.explain is not None:
        _explain(request.explain, conditions, limits, gemm, is_json=is_json)
        return
    is_wide = request.is_wide
    if accuracy == STRICT:
        found = feasible_set(limits, gemm, is_wide=is_wide, order=conditions.order)
    else:
        templates.need_search_space(accuracy, limits)
        found = tensor_set(limits, gemm, its, is_wide=is_wide)
    rules = tuple(rule for rule in its.rules if not (is_wide and rule.kind == "worth"))
    expectation = expected.facts(limits, gemm) if accuracy == STRICT else None
    facts = _facts(found.where(conditions, gemm), conditions, limits, gemm, rules)
    facts |= {"accuracy": accuracy, "expected": expectation}
    parameters = its.parameters.values()
    console.answer(facts, lambda: _text(facts, conditions, limits, gemm, parameters), is_json=is_json)


def _facts(
    found: FeasibleSet, where: Where, limits: DeviceLimits, gemm: Gemm, rules: Sequence[Rule]
) -> dict[str, Any]:
    factors = [{"parameters": f.names, "num_rows": len(f)} for f in found.factors]
    reachable = {name: factor.reached(name) for factor in found.factors for name in factor.names}
    return {
        "gpu": limits.name,
        "arch": limits.arch,
        "shape": str(gemm),
        **common.conditions(where),
        "num_configs": found.num_points,
        "factors": factors,
        "values": reachable,
        "rules": [_rule_facts(rule) for rule in rules],
    }


def _text(
    facts: dict[str, Any], where: Where, limits: DeviceLimits, gemm: Gemm, parameters: Iterable[Parameter]
) -> str:
    factors = [(f"{f['num_rows']:,}", " ".join(f["parameters"])) for f in facts["factors"]]
    values = [(p.name, _reachable_text(p, facts["values"][p.name]), p.description) for p in parameters]
    rules = [(r["kind"], r["id"], r["sentence"]) for r in facts["rules"]]
    holding = f" that obey {where.description}" if where else ""
    return "\n".join(
        [
            f"{counted(facts['num_configs'], 'config')} for {gemm} on {limits.name} ({limits.arch}){holding}",
            *([console.wrap_text(expected.text(limits, gemm))] if facts["accuracy"] == STRICT else []),
            "",
            "They are all combinations of the rows of these factors"
            + (":" if where.max_workspace is None else ", less those with a larger workspace:"),
            console.table(("rows", "parameters"), factors, right=(0,)),
            "",
            console.table(("parameter", "values reached (of)", "meaning"), values),
            "",
            *(f"{kind}: {description}" for kind, description in KINDS.items()),
            console.table(("kind", "rule", "sentence"), rules),
        ]
    )


def _reachable_text(parameter: Parameter, values: list[int | str]) -> str:
    num_all = len(parameter.values)
    text = " ".join(map(str, values))
    return text if len(values) == num_all else f"{text} ({num_all})"


def _explain(text: str, where: Where, limits: DeviceLimits, gemm: Gemm, *, is_json: bool) -> None:
    config = templates.read(values_in(text))
    broken = broken_rules(config, limits, gemm) or broken_rules(config, limits, gemm, ("worth",))
    if where.order:
        own = {rule.id: rule for rule in rules_of(where.order)}
        broken = tuple(r for r in broken if r.id in own and not own[r.id].holds(config, limits, gemm))
    given = {item.partition("=")[0].strip() for item in text.split(",")}
    num_bytes = workspace_bytes(config, gemm, limits)
    violated = [str(one) for one in where.conditions if not Where((one,)).holds(config.to_dict())]
    if where.max_workspace is not None and num_bytes > where.max_workspace:
        violated.append(f"a workspace of at most {where.max_workspace_mib:g} MiB")
    if where.order and (not isinstance(config, Config) or not has_order(config, where.order, gemm.k)):
        violated.append(f"the order {where.order}")
    facts = {
        "gpu": limits.name,
        "shape": str(gemm),
        "config": config.to_dict(),
        "assumed": [name for name in config.to_dict() if name not in given],
        "is_legal": all(rule.kind == "worth" for rule in broken),
        "is_searched": not broken and not violated,
        "broken_rules": [
            _rule_facts(rule) | {"figures": excess(rule, config, limits, gemm)} for rule in broken
        ],
        "broken_conditions": violated,
        "workspace_bytes": num_bytes,
    }
    console.answer(facts, lambda: _explanation(config, limits, gemm, facts), is_json=is_json)


def _explanation(config: AnyConfig, limits: DeviceLimits, gemm: Gemm, facts: dict[str, Any]) -> str:
    broken, assumed, violated = facts["broken_rules"], facts["assumed"], facts["broken_conditions"]
    if not broken and violated:
        verdict = "in the space, but left out by conditions"
    elif not broken:
        verdict = "in the space"
    elif facts["is_legal"]:
        verdict = "legal, but left out of a search"
    else:
        verdict = "refused"
    lines = [f"{config}", f"on {limits.name} for {gemm}: {verdict}"]
    for rule in broken:
        lines += [f"  {rule['id']} ({rule['kind']}): {rule['sentence']}", f"    here {rule['figures']}"]
    lines += [f"  {condition} (not so)" for condition in violated]
    if not any(rule["kind"] == "template" for rule in broken):  # else there is no such kernel to describe
        workspace = console.workspace_text(facts["workspace_bytes"])
        lines.append(f"  {_needs(config, gemm, limits)}, {workspace} of workspace")
    if assumed:
        values = ", ".join(f"{name}={facts['config'][name]}" for name in assumed)
        lines.append(f"  not given, so assumed: {values}")
    return "\n".join(lines)


def _needs(config: AnyConfig, gemm: Gemm, limits: DeviceLimits) -> str:
    """Of a block."""
    spec, registers = launch_spec(config, gemm, limits), "all registers of an SM"
    if isinstance(config, Config):
        registers = f"at least {register_estimate(config)} registers"
    elif isinstance(config, MmaConfig | HalvesConfig):
        about = "at least" if isinstance(config, MmaConfig) else "some"
        registers = f"{about} {config.expected_registers} registers"
    needs = f"{counted(spec.threads, 'thread')}, {counted(spec.smem_bytes, 'byte')} of shared memory"
    return f"{needs}, {registers}"


def _rule_facts(rule: Rule) -> dict[str, str]:
    return {"id": rule.id, "kind": rule.kind, "sentence": rule.sentence}


def _run_recorded(request: SpaceRequest, *, is_json: bool) -> None:
    """Print the problems of a recording, or the one that is asked for: configs, values, times; with `explain`
    what became of the configs that have these values. Raises UsageError."""
    target = ReplayTarget(request.gpu.removeprefix(REPLAY))
    if target.note:
        console.note(target.note)
    where = Where.parse(request.where, request.max_workspace, request.order)
    requested = {read_problem(request.shape)} & set(target.gemms)
    spaces = [
        _recorded_facts(target, gemm, where, request.explain) for gemm in sorted(requested or target.gemms)
    ]
    source = common.source_text(target.environment)
    facts = {"gpu": target.environment.gpu_name, "source": source, "spaces": spaces}
    console.answer(facts, lambda: "\n\n".join(_recorded_text(one, source) for one in spaces), is_json=is_json)


def _recorded_facts(target: ReplayTarget, gemm: Gemm, where: Where, explain: str | None) -> dict[str, Any]:
    space = target.space(gemm)
    matching = space.where(where, gemm) if where else space
    given = [item.strip() for item in (explain or "").split(",") if item.strip()]
    trials = [
        (point, found)
        for point, found in target.trials(gemm).values()
        if matching.find(point) is not None and {f"{n}={v}" for n, v in point.items()}.issuperset(given)
    ]
    if not trials:
        known = ", ".join(space.names)
        raise UsageError(f"{explain}: no config recorded for {gemm} has these values (parameters: {known})")
    times = [(found.time_us, point) for point, found in trials if found.time_us]
    best_us, best = min(times, key=lambda pair: pair[0]) if times else (None, None)
    optimum_us = min((one.time_us for _, one in target.trials(gemm).values() if one.time_us), default=None)
    return {
        "shape": str(gemm),
        "num_configs": len(trials),
        "failed": Counter(found.outcome.value for _, found in trials if not found.is_ok),
        "best_us": best_us,
        "share_of_optimum": common.share(optimum_us, best_us),
        "best": None if best is None else point_key(best),
        "values": {
            name: [value for value in values if value in {point[name] for point, _ in trials}]
            for name, values in zip(space.names, space.values, strict=True)
        },
    }


def _recorded_text(facts: dict[str, Any], source: str) -> str:
    failed = ", ".join(f"{num:,} {outcome}" for outcome, num in facts["failed"].items())
    share = console.ratio_text(facts["share_of_optimum"], "%")
    best = f"best {console.time_text(facts['best_us'])}, {share} of its optimum: {facts['best']}"
    rows = [(name, " ".join(map(str, values))) for name, values in facts["values"].items()]
    return "\n".join(
        [
            f"{facts['shape']}: {counted(facts['num_configs'], 'config')}, {source}",
            *([f"failed: {failed}"] if failed else []),
            best if facts["best"] else "none has a time",
            console.table(("parameter", "values"), rows),
        ]
    )
