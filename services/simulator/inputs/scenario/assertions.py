"""Evaluates the assertions of scenarios and stress runs. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas.launch_offers import Offering
from schemas.messages import Message
from schemas.node_events import FACTS as NODE_FACTS
from schemas.node_events import NodeEvent
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import RequestRefused, ScaleRefused
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaStarted
from services.simulator.engine import fault_kinds
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.observed_status import ObservedNode
from services.simulator.inputs.scenario.scenario_outcome import AssertionResult, PlayedEvent
from services.simulator.report.report_format import StressReport

FACTS: Final[Mapping[type[Message], str]] = dict([*NODE_FACTS.items(), *POOL_FACTS.items()])
SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """What the assertions of a scenario are evaluated over."""

    nodes: Mapping[str, ObservedNode]
    pools: Mapping[str, PoolRecord]
    machines: Sequence[tuple[str, Offering]]
    """Each machine that exists at the cloud: its pool and its offering."""
    launches: Mapping[tuple[str, Offering], int]
    """Pool and offering -> how often the cloud was asked for it."""
    dollars: Mapping[str, float]
    """Pool -> what its instances cost an hour."""
    sagas: Sequence[SagaStarted]
    story: Sequence[tuple[float, Message]]


def expected(params: f.ExpectParams, target: str, view: FleetView) -> str:
    """What is not as expected of a node, or of all; empty: nothing."""
    names = [target] if target != fault_kinds.ALL else [*view.nodes]
    wrong = []
    for name in names:
        found = view.nodes.get(name)
        if found is None:
            wrong.append(f"{name} is not recorded")
        elif params.expected_status and found.status != params.expected_status:
            wrong.append(f"{name} is {found.status}: {found.reason}".rstrip(": "))
        elif params.expected_health and found.health != params.expected_health:
            wrong.append(f"the health of {name} is {found.health}")
    if not names:
        wrong.append("there is no node")
    return _shortened(wrong)


def judged(each: f.Assertion, view: FleetView) -> AssertionResult:
    """Whether an assertion holds."""
    if each.type in f.COUNTS:
        return _counted(each, _count(each, view))
    about = "" if each.target == fault_kinds.ALL else f" of {each.target}"
    text = each.message or f"{each.type}{about} is {each.expected}"
    if each.type == "breaker":
        record = view.pools.get(each.target)
        state = record.breaker.state if record else "not recorded"
        why = f": {record.breaker.reason}" if record and record.breaker.reason else ""
        return AssertionResult(text=text, ok=state == each.expected, found=f"{state}{why}")
    if each.type == "advice":
        record = view.pools.get(each.target)
        advice = record.advice if record else None
        kept = advice.limited_by if advice else "followed"
        why = f": {advice.nodes} nodes asked for; {advice.detail}" if advice else ""
        return AssertionResult(text=text, ok=kept == each.expected, found=f"{kept}{why}")
    params = (
        f.ExpectParams(expected_status=each.expected)  # type: ignore[arg-type]
        if each.type == "node_status"
        else f.ExpectParams(expected_health=each.expected)  # type: ignore[arg-type]
    )
    wrong = expected(params, each.target, view)
    return AssertionResult(text=text, ok=not wrong, found=wrong)


def answered_why(each: f.Assertion, answer: str) -> AssertionResult:
    """Whether the answer of `navarch why` has these words in it."""
    text = each.message or f"why {each.target} answers: {each.contains}"
    found = " ".join(answer.split())
    return AssertionResult(text=text, ok=each.contains in found, found=found)


def _counted(each: f.Assertion, count: float) -> AssertionResult:
    bounds = []
    ok = True
    if isinstance(each.expected, int):
        ok, bounds = count == each.expected, [f"is {each.expected}"]
    if each.at_least is not None:
        ok, bounds = ok and count >= each.at_least, [*bounds, f"is {each.at_least} or more"]
    if each.at_most is not None:
        ok, bounds = ok and count <= each.at_most, [*bounds, f"is {each.at_most} or fewer"]
    words = (each.status, each.health, each.saga, each.event, str(each.place))
    what = " ".join(word for word in words if word)
    about = "" if each.target == fault_kinds.ALL else f" of {each.target}"
    text = (
        each.message or f"{each.type}{f' ({what})' if what else ''}{about} {' and '.join(bounds)}"
    )
    return AssertionResult(text=text, ok=ok, found=f"{count:g}")


def _count(each: f.Assertion, view: FleetView) -> float:
    everywhere = each.target == fault_kinds.ALL
    match each.type:
        case "node_count":
            return sum(
                (everywhere or node.pool == each.target)
                and (node.status == each.status if each.status else node.status != "terminated")
                and each.health in ("", node.health)
                for node in view.nodes.values()
            )
        case "instance_count":
            return sum(
                (everywhere or pool == each.target) and each.place.covers(offering)
                for pool, offering in view.machines
            )
        case "launch_count":
            return sum(
                count
                for (pool, offering), count in view.launches.items()
                if (everywhere or pool == each.target) and each.place.covers(offering)
            )
        case "dollars":
            found = (of for pool, of in view.dollars.items() if everywhere or pool == each.target)
            return round(sum(found), 2)
        case "desired":
            record = view.pools.get(each.target)
            return record.desired if record else 0
        case "saga_count":
            return sum(
                (everywhere or saga.params.pool == each.target) and each.saga in ("", saga.kind)
                for saga in view.sagas
            )
        case _:
            return sum(
                FACTS.get(type(message)) == each.event
                and (everywhere or each.target in _about(message))
                for _, message in view.story
            )


def _about(message: Message) -> tuple[str, ...]:
    """Whom a fact is about: its pool, and its node."""
    node = message.node if isinstance(message, NodeEvent) else ""
    return (getattr(message, "pool", ""), node)


def answered(step: PlayedEvent, story: Sequence[tuple[float, Message]]) -> PlayedEvent:
    """A step that asked for something, once its answer is known: refused, or as it was."""
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


def judge_report(each: f.Assertion, report: StressReport) -> AssertionResult:
    """Whether an assertion about a stress run holds.

    Of nodes `expected` is how many are in service at least.
    """
    last, demand = report.timeline[-1], report.demand
    values: dict[str, tuple[float, str]] = {
        "node_count": (last["healthy"] + last["degraded"], "nodes are in service"),
        "job_wait": (demand.wait_seconds.p99 if demand else 0.0, "s is the p99 of the jobs' wait"),
        "dollars": (report.summary.dollars, "dollars were paid"),
    }
    value, what = values[each.type]
    found, least = f"{value:g} {what}", each.at_least
    if least is None and each.expected is not None:
        least = int(each.expected)
    bounds = [f"at least {least:g}"] if least is not None else []
    bounds += [f"at most {each.at_most:g}"] if each.at_most is not None else []
    ok = (least is None or value >= least) and (each.at_most is None or value <= each.at_most)
    text = each.message or f"{each.type} is {' and '.join(bounds)}"
    return AssertionResult(text=text, ok=ok, found=found)


def _shortened(wrong: Iterable[str]) -> str:
    found = list(wrong)
    more = f"; and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    return "; ".join(found[:SHOWN_MAX]) + more
