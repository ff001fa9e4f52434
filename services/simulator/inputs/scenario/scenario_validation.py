"""What no decoder sees in a scenario: references to what is not there, and steps without sense.

Pure: a scenario in, what is wrong with it out, each with its place in the file.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from schemas.duration import decode_hook
from schemas.launch_offers import Offering
from schemas.node_events import FACTS as NODE_FACTS
from schemas.operator_requests import REQUESTS
from schemas.pool_events import FACTS as POOL_FACTS
from services.simulator.engine import fault_kinds
from services.simulator.inputs.scenario import scenario_format as f

OfferingSelector = tuple[str | int, ...]
Problem = tuple[OfferingSelector, str]

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
"""Command -> the request that it is, in a pool that has its own mind."""
SHOWN_MAX: Final = 10
FREE: Final = frozenset({"wait", "log", "stop_fleet", "start_fleet"})
"""Actions without a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """What may be referred to, although it could not be read."""

    ids: Collection[str]
    pools: Collection[str]
    started: bool = False
    """Whether the fleet may be started by something that could not be read."""
    offered: Collection[Offering] = ()
    """What there is to launch; none: that is not known."""


def problems(scenario: f.Scenario, known: KnownNames) -> Iterator[Problem]:
    """Everything that is wrong."""
    pools, ids = {*known.pools, *applied(scenario)}, known.ids
    if not ids and not pools and scenario.stress is None:
        yield ("fleet",), "there is nothing to play with; name nodes here, or give `pools`"
    yield from _of_fleet(scenario, pools)
    if (scenario.duration or 0) > f.TIME_SECONDS_MAX:
        yield ("duration",), "must be 720h at most"
    started = known.started or scenario.stress is not None
    gpus = {node.id: node.gpu_count for node in scenario.fleet}
    offers = () if pools != {*known.pools} else known.offered
    for number, event in in_order(scenario.events):
        here: OfferingSelector = ("events", number)
        if event.at > f.TIME_SECONDS_MAX:
            yield (*here, "at"), "must be 720h at most"
        if event.action == "start_fleet":
            started = True
        elif not started and event.action not in FREE:
            yield here, "nothing runs before `action: start_fleet`; add that, with `at: 0s`"
        found = (
            *event_problems(event, ids, pools),
            *_gpu(event, gpus),
            *((("params", *inside), text) for inside, text in _placed(event.params, offers)),
        )
        yield from (((*here, *inside), text) for inside, text in found)
    if scenario.assertions and not started:
        yield ("assertions",), "nothing runs without an event `action: start_fleet`; add it"
    for number, each in enumerate(scenario.assertions):
        of_it = (
            *assertion_problems(each, ids, pools),
            *_moment(each, scenario),
            *_placed(each, offers),
        )
        yield from ((("assertions", number, *inside), text) for inside, text in of_it)


def applied(scenario: f.Scenario) -> Iterator[str]:
    """Pools that a request of the scenario makes."""
    for event in scenario.events:
        if isinstance(event.params, f.RequestParams) and event.params.verb == "apply":
            yield event.target


def in_order(events: tuple[f.Event, ...]) -> list[tuple[int, f.Event]]:
    """The events as they are played, each with its number in the file; the order is kept."""
    return sorted(enumerate(events), key=lambda each: each[1].at)


def _of_fleet(scenario: f.Scenario, known: Collection[str]) -> Iterator[Problem]:
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
    """What is wrong with an event, where these nodes and pools are."""
    params = event.params
    match event.action:
        case "wait" | "log" | "start_fleet" | "stop_fleet":
            if event.target not in ("", fault_kinds.ALL):
                yield ("target",), f"{event.action} is about nothing in particular; take it out"
        case "inject_failure" | "recover_failure":
            assert isinstance(params, f.FailureParams | f.RecoverParams)
            yield from _failure(event.target, params.failure_type, ids)
        case "issue_command":
            assert isinstance(params, f.CommandParams)
            yield from _node(event.target, ids)
            yield from _command(params, event.target)
        case "wait_for_status" | "assert":
            assert isinstance(params, f.ExpectParams)
            if event.target != fault_kinds.ALL:
                yield from _node(event.target, ids, f"or {fault_kinds.ALL!r}")
            if not params.expected_status and not params.expected_health:
                yield ("params",), "expects nothing; add `expected_status` or `expected_health`"
        case "request":
            assert isinstance(params, f.RequestParams)
            yield from _pool(event.target, pools)
            try:
                msgspec.convert(params.body, REQUESTS[params.verb], dec_hook=decode_hook)
            except msgspec.ValidationError as error:
                yield ("params", "body"), f"is no request {params.verb!r}: {error}"
        case "set_load":
            yield from _pool(event.target, pools)


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
    """Whether what breaks is there."""
    params, count = event.params, gpus.get(event.target)
    if not isinstance(params, f.FailureParams) or count is None:
        return
    if params.failure_type in f.OF_A_GPU and params.gpu_index >= count:
        last = f"the last is {count - 1}" if count else "take the failure out"
        yield ("params", "gpu_index"), f"{event.target} has {count} GPUs; {last}"


def _placed(where: f.Params | f.Assertion, offers: Collection[Offering]) -> Iterator[Problem]:
    """Whether anything can be launched where something is to happen, or to be counted."""
    if not isinstance(where, f.Placed) or not offers or any(map(where.place.covers, offers)):
        return
    key = next(key for key in f.PLACE_KEYS if getattr(where, key))
    there = ", ".join(map(str, list(offers)[:SHOWN_MAX]))
    more = f" and {len(offers) - SHOWN_MAX} more" if len(offers) > SHOWN_MAX else ""
    yield (key,), f"no pool may launch {where.place}; there are: {there}{more}"


def _moment(each: f.Assertion, scenario: f.Scenario) -> Iterator[Problem]:
    if each.at is None:
        return
    if each.at > f.TIME_SECONDS_MAX:
        yield ("at",), "must be 720h at most"
    elif scenario.duration is not None and each.at > scenario.duration:
        yield ("at",), "is after the scenario's `duration`; make that longer"


def _command(params: f.CommandParams, target: str) -> Iterator[Problem]:
    if params.command_type == "run_diagnostic":
        return
    verb = VERBS[params.command_type]
    body = {"node": target, "reason": params.reason, **params.command_args}
    try:
        msgspec.convert(body, REQUESTS[verb], dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        yield ("params", "command_args"), f"do not fit {params.command_type}: {error}"


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
    """What is wrong with an assertion, where these nodes and pools are."""
    match each.type:
        case "node_status" | "health_status":
            if each.target != fault_kinds.ALL:
                yield from _node(each.target, ids, f"or {fault_kinds.ALL!r}")
        case "desired" | "breaker" | "advice":
            yield from _pool(each.target, pools)
        case "job_wait" | "why":
            yield from _asked(each, ids, pools)
        case _:
            if each.target not in (fault_kinds.ALL, *pools) and not (
                each.type == "event_count" and each.target in ids
            ):
                known = ", ".join((fault_kinds.ALL, *sorted(pools)))
                yield ("target",), f"no such pool; there are: {known}"
    for key, types in f.ASSERTION_KEYS.items():
        if getattr(each, key) not in ("", None) and each.type not in types:
            yield (key,), f"says nothing about {each.type}, but about {', '.join(sorted(types))}"
    yield from _expected(each)
    facts = {*NODE_FACTS.values(), *POOL_FACTS.values()}
    if each.type == "event_count" and each.event not in facts:
        yield ("event",), f"no such event; there are: {', '.join(sorted(facts))}"


def _asked(each: f.Assertion, ids: Collection[str], pools: Collection[str]) -> Iterator[Problem]:
    if each.type == "job_wait":
        yield ("type",), "job_wait is about a stress run's `workload`; there are no jobs here"
        return
    if each.target not in (*ids, *pools):
        known = ", ".join((*sorted(pools), *sorted(ids)[:SHOWN_MAX]))
        yield ("target",), f"`why` is asked of a node or a pool; there are: {known}"
    if not each.contains:
        yield (), "expects nothing; add `contains: words of the answer`"


def _expected(each: f.Assertion) -> Iterator[Problem]:
    if each.type in f.COUNTS:
        given: list[Any] = [each.expected, each.at_least, each.at_most]
        if all(value is None for value in given):
            yield (), "expects nothing; add `expected: 2`, `at_least` or `at_most`"
        elif not isinstance(each.expected, int | None):
            yield ("expected",), f"{each.expected!r} is no number"
    elif each.type in f.WORDS and each.expected not in f.WORDS[each.type]:
        words = ", ".join(f.WORDS[each.type])
        yield ("expected",), f"must be one of {words}"
