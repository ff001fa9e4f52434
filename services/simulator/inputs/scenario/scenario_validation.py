"""Checks a scenario for what no decoder sees: unknown references, events without effect. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from schemas.duration import decode_hook
from schemas.event_subjects import facts
from schemas.launch_offers import Offering
from schemas.operations import REQUESTS
from services.operator_text.quantities import first_of
from services.settings.yaml_document import Path_
from services.simulator.engine import fault_kinds
from services.simulator.inputs.scenario import scenario_format as f

Problem = tuple[Path_, str]
"""What is wrong, after its place in the file."""

VERBS: Final[dict[str, str]] = {
    "cordon": "cordon",
    "uncordon": "uncordon",
    "drain": "drain",
    "terminate": "replace",
    "replace": "replace",
    "reset_gpu": "reset-gpu",
    "reboot": "reboot",
    "hold": "hold",
    "release": "release",
}
"""Command -> its request to the pool."""
SHOWN_MAX: Final = 10
FREE: Final = frozenset({"wait", "log", "stop_fleet", "start_fleet"})
"""Actions without a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """Names that may be used, although their section could not be read."""

    ids: Collection[str]
    pools: Collection[str]
    started: bool = False
    """Whether an unreadable event may start the fleet."""
    offered: Collection[Offering] = ()
    """The offerings that can be launched; none: unknown."""


def problems(scenario: f.Scenario, known: KnownNames) -> Iterator[Problem]:
    """Yield every problem of a scenario."""
    pools, ids = {*known.pools, *applied_pools(scenario)}, known.ids
    if not ids and not pools and scenario.stress is None:
        yield ("fleet",), "there is nothing to play with; name nodes here, or give `pools`"
    yield from _fleet_problems(scenario, pools)
    if (scenario.duration or 0) > f.TIME_SECONDS_MAX:
        yield ("duration",), "must be 720h at most"
    started = known.started or scenario.stress is not None
    gpus = {node.id: node.gpu_count for node in scenario.fleet}
    offers = () if pools != {*known.pools} else known.offered
    for number, event in by_time(scenario.events):
        here: Path_ = ("events", number)
        if event.at > f.TIME_SECONDS_MAX:
            yield (*here, "at"), "must be 720h at most"
        if event.action == "start_fleet":
            started = True
        elif not started and event.action not in FREE:
            yield here, "nothing runs before `action: start_fleet`; add that, with `at: 0s`"
        yield from within(here, event_problems(event, ids, pools))
        yield from within(here, _gpu(event, gpus))
        yield from within((*here, "params"), _place(event.params, offers))
    if scenario.assertions and not started:
        yield ("assertions",), "nothing runs without an event `action: start_fleet`; add it"
    for number, each in enumerate(scenario.assertions):
        here = ("assertions", number)
        yield from within(here, assertion_problems(each, ids, pools))
        yield from within(here, _moment(each, scenario))
        yield from within(here, _place(each, offers))


def within(place: Path_, found: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the same problems, their places below `place`."""
    return (((*place, *inside), text) for inside, text in found)


def applied_pools(scenario: f.Scenario) -> Iterator[str]:
    """Pools that a request of the scenario creates."""
    for event in scenario.events:
        if isinstance(event.params, f.RequestParams) and event.params.verb == "apply":
            yield event.target


def by_time(events: tuple[f.Event, ...]) -> list[tuple[int, f.Event]]:
    """Return the events in order of time, each with its number in the file."""
    return sorted(enumerate(events), key=lambda each: each[1].at)


def _fleet_problems(scenario: f.Scenario, known: Collection[str]) -> Iterator[Problem]:
    pools = scenario.configuration.pools
    counts: dict[str, int] = {}
    for number, node in enumerate(scenario.fleet):
        if not node.pool:
            continue
        counts[node.pool] = counts.get(node.pool, 0) + 1
        if node.pool not in known:
            yield ("fleet", number, "pool"), f"no pool {node.pool!r} under `pools`; add it"
        elif node.pool in pools and counts[node.pool] > pools[node.pool].max_nodes:
            most = pools[node.pool].max_nodes
            text = f"is node {counts[node.pool]} of a pool whose max_nodes is {most}; raise that"
            yield ("fleet", number, "pool"), text


def event_problems(
    event: f.Event, ids: Collection[str], pools: Collection[str]
) -> Iterator[Problem]:
    """Problems of an event, given these nodes and pools."""
    target = event.target
    match event.params:
        case f.FailureParams(failure_type=kind) | f.RecoverParams(failure_type=kind):
            yield from _failure(target, kind, ids)
        case f.CommandParams() as params:
            yield from _node(target, ids)
            if params.command_type != "run_diagnostic":
                body = {"node": target, "reason": params.reason, **params.command_args}
                text = f"do not fit {params.command_type}"
                yield from _body(body, VERBS[params.command_type], "command_args", text)
        case f.ExpectParams() as params:
            if target != fault_kinds.ALL:
                yield from _node(target, ids, f"or {fault_kinds.ALL!r}")
            if not params.expected_status and not params.expected_health:
                yield ("params",), "expects nothing; add `expected_status` or `expected_health`"
        case f.RequestParams(verb=verb, body=body):
            yield from _pool(target, pools)
            yield from _body(body, verb, "body", f"is no request {verb!r}")
        case f.LoadParams() as params:
            yield from _load(target, params, ids, pools)
        case _ if target not in ("", fault_kinds.ALL):
            yield ("target",), f"{event.action} is about nothing in particular; take it out"


def _load(
    target: str, params: f.LoadParams, ids: Collection[str], pools: Collection[str]
) -> Iterator[Problem]:
    if target not in ids:
        yield from _pool(target, pools)
    elif params.pending_jobs is not None or params.queue_depth is not None:
        yield ("params",), "a node has no queue; set that of its pool"


def _body(body: dict[str, Any], verb: str, key: str, text: str) -> Iterator[Problem]:
    try:
        msgspec.convert(body, REQUESTS[verb], dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        yield ("params", key), f"{text}: {error}"


def _failure(target: str, kind: str, ids: Collection[str]) -> Iterator[Problem]:
    if target in fault_kinds.FAULTS_OF:
        known: Collection[str] = fault_kinds.FAULTS_OF[target]
    elif target in ids or target == fault_kinds.ALL:
        known = fault_kinds.NODE_FAULTS
    else:
        others = ", ".join(fault_kinds.FAULTS_OF)
        yield from _node(target, ids, f"or one of {others}")
        return
    if kind and kind not in known:
        words = ", ".join(sorted(known))
        text = f"{kind} does not occur on {target!r}; use one of {words}"
        yield ("params", "failure_type"), text


def _gpu(event: f.Event, gpus: Mapping[str, int]) -> Iterator[Problem]:
    """The GPU must exist."""
    params, count = event.params, gpus.get(event.target)
    if not isinstance(params, f.FailureParams) or count is None:
        return
    if params.failure_type in f.OF_A_GPU and params.gpu_index >= count:
        last = f"the last is {count - 1}" if count else "take the failure out"
        yield ("params", "gpu_index"), f"{event.target} has {count} GPUs; {last}"


def _place(where: msgspec.Struct, offers: Collection[Offering]) -> Iterator[Problem]:
    """A selected place must have an offering."""
    if not isinstance(where, f.Placed) or not offers or any(map(where.place.covers, offers)):
        return
    key = next(key for key in f.PLACE_KEYS if getattr(where, key))
    there = first_of([str(each) for each in offers], SHOWN_MAX)
    yield (key,), f"no pool may launch {where.place}; there are: {there}"


def _moment(each: f.Assertion, scenario: f.Scenario) -> Iterator[Problem]:
    if each.at is None:
        return
    if each.at > f.TIME_SECONDS_MAX:
        yield ("at",), "must be 720h at most"
    elif scenario.duration is not None and each.at > scenario.duration:
        yield ("at",), "is after the scenario's `duration`; make that longer"


def _node(target: str, ids: Collection[str], more: str = "") -> Iterator[Problem]:
    if target in ids:
        return
    known = ", ".join(sorted(ids)[:SHOWN_MAX]) or "none"
    rest = f" {more}" if more else ""
    if not target:
        yield (), f"`target` is missing: name a node ({known}){rest}"
    else:
        yield ("target",), f"no node {target!r} in `fleet`; there are: {known}{rest}"


def _pool(target: str, pools: Collection[str]) -> Iterator[Problem]:
    if target not in pools:
        known = ", ".join(sorted(pools)) or "none"
        yield ("target",) if target else (), f"`target` must be a pool; there are: {known}"


def assertion_problems(
    each: f.Assertion, ids: Collection[str], pools: Collection[str]
) -> Iterator[Problem]:
    """Problems of an assertion, given these nodes and pools."""
    match each.type:
        case "node_status" | "health_status":
            if each.target != fault_kinds.ALL:
                yield from _node(each.target, ids, f"or {fault_kinds.ALL!r}")
        case "desired" | "breaker" | "advice":
            yield from _pool(each.target, pools)
        case "job_wait" | "why":
            yield from _target_of_why(each, ids, pools)
        case _:
            if each.target not in (fault_kinds.ALL, *pools) and not (
                each.type == "event_count" and each.target in ids
            ):
                known = ", ".join((fault_kinds.ALL, *sorted(pools)))
                yield ("target",), f"no such pool; there are: {known}"
    for key, types in f.ASSERTION_KEYS.items():
        if getattr(each, key) not in ("", None) and each.type not in types:
            yield (key,), f"says nothing about {each.type}, but about {', '.join(sorted(types))}"
    yield from _expectation(each)
    if each.type == "event_count" and each.event not in facts():
        yield ("event",), f"no such event; there are: {', '.join(sorted(facts()))}"


def _target_of_why(
    each: f.Assertion, ids: Collection[str], pools: Collection[str]
) -> Iterator[Problem]:
    if each.type == "job_wait":
        yield ("type",), "job_wait is about a stress run's `workload`; there are no jobs here"
        return
    if each.target not in (*ids, *pools):
        known = ", ".join((*sorted(pools), *sorted(ids)[:SHOWN_MAX]))
        yield ("target",), f"`why` is asked of a node or a pool; there are: {known}"
    if not each.contains:
        yield (), "expects nothing; add `contains: words of the answer`"


def _expectation(each: f.Assertion) -> Iterator[Problem]:
    if each.type in f.COUNTS:
        given: list[Any] = [each.expected, each.at_least, each.at_most]
        if all(value is None for value in given):
            yield (), "expects nothing; add `expected: 2`, `at_least` or `at_most`"
        elif not isinstance(each.expected, int | None):
            yield ("expected",), f"{each.expected!r} is no number"
    elif each.type in f.WORDS and each.expected not in f.WORDS[each.type]:
        words = ", ".join(f.WORDS[each.type])
        yield ("expected",), f"must be one of {words}"
