"""Evaluates the assertions of scenarios and stress runs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq, ge, le
from typing import Final

import msgspec

from schemas.event_subjects import FACTS
from schemas.launch_offers import Offering
from schemas.messages import Message
from schemas.node_events import NodeEvent
from schemas.pool_events import RequestRefused, ScaleRefused
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaStarted
from services.simulator.engine import fault_kinds
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.scenario_outcome import (
    AssertionResult,
    ObservedNode,
    PlayedEvent,
)
from services.simulator.report.report_format import StressReport

SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The fleet as assertions see it."""

    nodes: Mapping[str, ObservedNode]
    pools: Mapping[str, PoolRecord]
    machines: Sequence[tuple[str, Offering]]
    """Each machine that exists at the cloud: its pool and its offering."""
    launches: Mapping[tuple[str, Offering], int]
    """Pool and offering -> how many launches requested it."""
    dollars: Mapping[str, float]
    """Pool -> its cost per hour."""
    sagas: Sequence[SagaStarted]
    story: Sequence[tuple[float, Message]]


def unmet(params: f.ExpectParams, target: str, view: FleetView) -> str:
    """Return what is not as expected of a node, or of all; empty: nothing."""
    names = [target] if target != fault_kinds.ALL else [*view.nodes]
    wrong = [] if names else ["there is no node"]
    for name in names:
        found = view.nodes.get(name)
        if found is None:
            wrong.append(f"{name} is not recorded")
        elif params.expected_status and found.status != params.expected_status:
            wrong.append(f"{name} is {found.status}: {found.reason}".rstrip(": "))
        elif params.expected_health and found.health != params.expected_health:
            wrong.append(f"the health of {name} is {found.health}")
    more = f"; and {len(wrong) - SHOWN_MAX} more" if len(wrong) > SHOWN_MAX else ""
    return "; ".join(wrong[:SHOWN_MAX]) + more


def evaluate(each: f.Assertion, view: FleetView) -> AssertionResult:
    """Evaluate an assertion about the fleet as it is now."""
    about = "" if each.target == fault_kinds.ALL else f" of {each.target}"
    if each.type in f.COUNTS:
        words = (each.status, each.health, each.saga, each.event, str(each.place))
        what = " ".join(word for word in words if word)
        name = f"{each.type}{f' ({what})' if what else ''}{about}"
        count = _count(each, view)
        return _within(each, name, count, f"{count:g}", each.at_least)
    text = each.message or f"{each.type}{about} is {each.expected}"
    record = view.pools.get(each.target)
    match each.type:
        case "breaker":
            value: str = record.breaker.state if record else "not recorded"
            why = record.breaker.reason if record else ""
        case "advice":
            advice = record.advice if record else None
            value = advice.limited_by if advice else "followed"
            why = f"{advice.nodes} nodes asked for; {advice.detail}" if advice else ""
        case _:
            key = "expected_status" if each.type == "node_status" else "expected_health"
            wrong = unmet(f.ExpectParams(**{key: each.expected}), each.target, view)  # type: ignore[arg-type]
            return AssertionResult(text=text, ok=not wrong, found=wrong)
    found = f"{value}: {why}" if why else value
    return AssertionResult(text=text, ok=value == each.expected, found=found)


def evaluate_why(each: f.Assertion, answer: str) -> AssertionResult:
    """Evaluate whether the answer of `navarch why` contains these words."""
    text = each.message or f"why {each.target} answers: {each.contains}"
    found = " ".join(answer.split())
    return AssertionResult(text=text, ok=each.contains in found, found=found)


def evaluate_report(each: f.Assertion, report: StressReport) -> AssertionResult:
    """Evaluate an assertion about a stress run; `expected` nodes are a minimum."""
    last, demand = report.timeline[-1], report.demand
    values: dict[str, tuple[float, str]] = {
        "node_count": (last.healthy + last.degraded, "nodes are in service"),
        "job_wait": (demand.wait_seconds.p99 if demand else 0.0, "s is the p99 of the jobs' wait"),
        "dollars": (report.summary.dollars, "dollars were paid"),
    }
    value, what = values[each.type]
    least = each.at_least
    if least is None and each.expected is not None:
        least = int(each.expected)
    each = msgspec.structs.replace(each, expected=None)
    return _within(each, each.type, value, f"{value:g} {what}", least)


def _within(
    each: f.Assertion, name: str, value: float, found: str, least: int | None
) -> AssertionResult:
    """Whether a number is as expected, or within its bounds."""
    wanted = each.expected if isinstance(each.expected, int) else None
    bounds = (
        (wanted, "is {}", eq),
        (least, "is {} or more", ge),
        (each.at_most, "is {} or fewer", le),
    )
    given = [(limit, text, holds) for limit, text, holds in bounds if limit is not None]
    text = " and ".join(text.format(limit) for limit, text, _ in given)
    ok = all(holds(value, limit) for limit, _, holds in given)
    return AssertionResult(text=each.message or f"{name} {text}", ok=ok, found=found)


def _count(each: f.Assertion, view: FleetView) -> float:
    def covers(pool: str) -> bool:
        return each.target in (fault_kinds.ALL, pool)

    match each.type:
        case "node_count":
            return sum(
                covers(node.pool)
                and (node.status == each.status if each.status else node.status != "terminated")
                and each.health in ("", node.health)
                for node in view.nodes.values()
            )
        case "instance_count":
            return sum(covers(pool) and each.place.covers(at) for pool, at in view.machines)
        case "launch_count":
            return sum(
                count
                for (pool, offering), count in view.launches.items()
                if covers(pool) and each.place.covers(offering)
            )
        case "dollars":
            return round(sum(of for pool, of in view.dollars.items() if covers(pool)), 2)
        case "desired":
            record = view.pools.get(each.target)
            return record.desired if record else 0
        case "saga_count":
            return sum(
                covers(saga.params.pool) and each.saga in ("", saga.kind) for saga in view.sagas
            )
        case _:
            return sum(
                FACTS.get(type(message)) == each.event and any(map(covers, _about(message)))
                for _, message in view.story
            )


def _about(message: Message) -> tuple[str, str]:
    """The pool and the node of an event."""
    node = message.node if isinstance(message, NodeEvent) else ""
    return (getattr(message, "pool", ""), node)


def with_refusal(step: PlayedEvent, story: Sequence[tuple[float, Message]]) -> PlayedEvent:
    """The step of a request, failed if it was refused and should not be, or the reverse."""
    if not step.request:
        return step
    refusals = (
        message.reason
        for _, message in story
        if isinstance(message, RequestRefused | ScaleRefused) and message.request == step.request
    )
    reason = next(refusals, None)
    if (reason is not None) == step.refused:
        return step
    detail = "not refused, as it was to be" if reason is None else f"refused: {reason}"
    return replace(step, ok=False, detail=detail)
