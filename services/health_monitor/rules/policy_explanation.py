"""Says what a policy makes of a fault, and why: for `navarch policy explain` and the documents.

Pure, and the same judging as the service's: nothing is decided here that is not decided there.
"""

from datetime import UTC, datetime
from typing import Final, get_args

import msgspec

from schemas.duration import format_duration
from schemas.enums import NVLINK_CODE, SUBCODES, XIDS_WITH_TEXT, Action, FaultKind, NvlinkClass
from schemas.fleet_queries import PolicyRuleView, PolicyView
from schemas.node_events import Fault
from services.health_monitor.rules.health_policy import Policy, Result, Rule
from services.health_monitor.rules.job_faults import when_forgiven

_ANY_MOMENT: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """Says what the same fault becomes when it repeats."""

    rule: str
    count: int
    window: str
    per: str
    result: Result
    action: Action
    why: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a policy makes of one fault, seen for the first time on a healthy node."""

    result: Result
    action: Action
    rule: str
    fatal: bool = False
    """True: at once, whatever the pool's `unhealthy_after`."""
    description: str = ""
    why: str = ""
    condition: str = ""
    lasts: str = ""
    """How long it lasts."""
    delay: str = ""
    """How long a condition is held before it counts; empty: it counts at once."""
    policy: str = ""
    file: str = ""
    repeats: tuple[Repeat, ...] = ()
    job: str = ""
    """When it is its job's and no fault signature of the node; empty: never."""


def explain(policy: Policy, fault: Fault) -> Explanation:
    """Say which rule decides about this fault, and what its repetition would come to."""
    repeats: list[Repeat] = []
    for rule in policy.matching(fault):
        if rule.window_seconds:
            repeats.append(_repeat(rule))
            continue
        return Explanation(
            result=rule.result,
            action=rule.action,
            rule=rule.name,
            fatal=rule.result == "unhealthy" and rule.fatal_for(fault),
            description=rule.description,
            why=rule.why,
            condition=rule.condition,
            lasts=lasts(rule, fault),
            delay=format_duration(rule.delay_seconds) if rule.delay_seconds else "",
            policy=policy.hash,
            file=policy.file,
            repeats=tuple(repeats),
            job="" if rule.fatal_for(fault) else when_forgiven(fault),
        )
    raise AssertionError("a policy's last rule matches everything")


def example(kind: FaultKind, code: int = 0, *, gpu_index: int = 0, subcode: str = "") -> Fault:
    """Make up a fault to explain."""
    return Fault(
        id="example",
        time=_ANY_MOMENT,
        pool="example",
        node="example",
        kind=kind,
        code=code,
        gpu_index=gpu_index,
        subcode=subcode,
    )


def known_subcodes(policy: Policy, kind: FaultKind, code: int) -> tuple[str, ...] | None:
    """Subcodes that such a fault may have besides none; None: any text."""
    if kind == "xid":
        if code in XIDS_WITH_TEXT:
            return None
        return get_args(NvlinkClass) if code == NVLINK_CODE else ()
    if kind not in SUBCODES:
        return None
    return (*SUBCODES[kind], *(each.name for each in policy.levels if each.kind == kind))


def _repeat(rule: Rule) -> Repeat:
    return Repeat(
        rule=rule.name,
        count=rule.count,
        window=format_duration(rule.window_seconds),
        per=rule.per,
        result=rule.result,
        action=rule.action,
        why=rule.why,
    )


def lasts(rule: Rule, fault: Fault | None = None) -> str:
    """Say how long a rule's result lasts, of this fault or of any."""
    match rule.result:
        case "degraded" if fault is not None and fault.condition:
            return "until the agent sees it no more"
        case "unhealthy":
            return "until the node is uncordoned or replaced"
        case "degraded":
            return f"{format_duration(rule.sticky_seconds)} after the last such fault"
        case "healthy":
            return ""


def policy_view(policy: Policy) -> PolicyView:
    """A policy as operators and programs see it."""
    rules = (msgspec.convert(each, PolicyRuleView, from_attributes=True) for each in policy.rules)
    return PolicyView(name=policy.name, hash=policy.hash, rules=tuple(rules))
