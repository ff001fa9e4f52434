"""Runs a policy over stored facts and says what would differ from what was decided.

Pure, and by the service's own decisions, timers included: the stored times replace the clock, so
that a replay of the same policy returns the same verdicts. Nothing is published.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

import msgspec

from schemas.enums import Action, HealthStatus
from schemas.health_records import HealthRecord
from schemas.node_events import (
    BootChecked,
    ConditionEnded,
    Fault,
    NodeEvent,
    Registered,
    Terminated,
    Uncordoned,
    Verdict,
)
from schemas.settings import HealthSpec
from schemas.value_limits import UtcTime
from services.health_monitor.rules import node_health, open_conditions
from services.health_monitor.rules.drill_faults import is_drill
from services.health_monitor.rules.fault_history import fault_of_boot
from services.health_monitor.rules.health_policy import Policy
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.rules.job_faults import (
    WAIT_SECONDS,
    JobFaultHistory,
    forgiven,
    of_program,
)
from services.health_monitor.rules.level_faults import is_over


@dataclass(frozen=True, slots=True)
class Fact:
    """Holds one stored fact about a node."""

    event: NodeEvent
    sequence: int
    stored: datetime


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One message after which the policies disagree about a node."""

    pool: str
    node: str
    time: UtcTime
    cause: str
    """Id of the message: a fault, a registration, an uncordon."""
    decided: HealthStatus | None
    """What was decided then; None: nothing was."""
    decided_action: Action = "none"
    decided_rule: str = ""
    would: HealthStatus | None
    """What this policy would decide; None: nothing."""
    would_action: Action = "none"
    would_rule: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Node:
    record: HealthRecord
    review: datetime | None = None


class Replay:
    """Takes facts in the order in which they were stored."""

    def __init__(self, policy: Policy, health: Callable[[str], HealthSpec]) -> None:
        """`health`: the settings of a pool, by its name."""
        self._policy = policy
        self._health = health
        self._nodes: dict[tuple[str, str], _Node] = {}
        self._jobs = JobFaultHistory()
        self._ahead: deque[Fact] = deque()
        """Faults that wait for the job's other nodes, as in the service."""
        self.verdicts: list[Verdict] = []
        """What this policy would have published so far."""
        self.faults = 0

    def take(self, fact: Fact) -> None:
        """Take the next fact; it is decided on when the service would have."""
        of_job = False
        if isinstance(fact.event, Fault) and not is_over(fact.event):
            self.faults += 1
            self._jobs.saw(fact.event, fact.stored.timestamp())
            of_job = of_program(fact.event)
        while self._ahead and (fact.stored - self._ahead[0].stored).total_seconds() > WAIT_SECONDS:
            self._decide(self._ahead.popleft())
        if self._ahead or of_job:
            self._ahead.append(fact)
        else:
            self._decide(fact)

    def _decide(self, fact: Fact) -> None:
        """Decide on one fact, after the timers that were due before it."""
        event, key = fact.event, (fact.event.pool, fact.event.node)
        node = self._nodes.setdefault(key, _Node(HealthRecord(pool=event.pool, node=event.node)))
        self._timers(node, fact.stored)
        seen = node_health.Trigger(event.id, fact.sequence, fact.stored)
        match event:
            case Fault() if is_drill(event):
                return
            case Fault() if is_over(event):
                self._apply(node, node_health.decide_over(node.record, event, seen))
            case Fault() if event.condition:
                decided = open_conditions.decide_begun(node.record, event, seen, self._judge)
                self._apply(node, decided)
            case Fault():
                self._apply(node, self._judge(node.record, event, seen))
            case ConditionEnded():
                self._apply(node, open_conditions.decide_ended(node.record, event, seen))
            case BootChecked(ok=True):
                over = node_health.decide_over(node.record, fault_of_boot(event), seen)
                self._apply(node, over)
            case BootChecked():
                self.faults += 1
                self._apply(node, self._judge(node.record, fault_of_boot(event), seen))
            case Registered():
                self._apply(node, node_health.decide_registered(node.record, event, seen))
            case Uncordoned():
                self._apply(node, node_health.decide_uncordoned(node.record, event, seen))
                self._apply(node, open_conditions.decide_again(node.record, seen, self._judge))
            case Terminated():
                del self._nodes[key]
            case _:
                return

    def finish(self, now: datetime) -> None:
        """Decide on what is left; let the timers run that are due by now."""
        while self._ahead:
            self._decide(self._ahead.popleft())
        for node in self._nodes.values():
            self._timers(node, now)

    def _judge(
        self, record: HealthRecord, fault: Fault, seen: node_health.Trigger
    ) -> node_health.Decision:
        windows = working_of(record).windows
        judged = self._policy.judge(fault, windows, seen.now)
        why = "" if judged.fatal else self._jobs.shared(fault, seen.now.timestamp())
        judged = forgiven(judged, why, windows) if why else judged
        health = self._health(fault.pool)
        return node_health.decide_fault(
            record,
            fault,
            judged,
            seen,
            unhealthy_after=health.unhealthy_after,
            cordons_gpus=health.cordon_scope == "gpu",
        )

    def _timers(self, node: _Node, until: datetime) -> None:
        while node.review is not None and node.review <= until:
            at, node.review = node.review, None
            seen = node_health.Trigger(f"review-{node.record.node}", 0, at)
            self._apply(node, open_conditions.decide_reviewed(node.record, seen, self._judge))

    def _apply(self, node: _Node, decision: node_health.Decision) -> None:
        node.record, effects = decision
        for effect in effects:
            match effect:
                case node_health.PublishVerdict(verdict=verdict):
                    self.verdicts.append(verdict)
                case node_health.ReviewAt(at=at):
                    node.review = at
                case _:
                    assert_never(effect)


def differences(
    decided: Iterable[Verdict], would: Iterable[Verdict], facts: Iterable[str]
) -> list[Difference]:
    """Compare the verdicts that were published with those that would be, message by message.

    `facts`: ids of the messages replayed; verdicts that others caused are not compared, such as a
    timer's, or those of messages that are no longer stored.
    """
    known = set(facts)
    then = {
        verdict.cause: verdict
        for verdict in decided
        if verdict.cause in known and not verdict.drill
    }
    now = {verdict.cause: verdict for verdict in would if verdict.cause in known}
    found = []
    for cause in {**then, **now}:
        was, new = then.get(cause), now.get(cause)
        if (
            was is not None
            and new is not None
            and (was.status, was.action) == (new.status, new.action)
        ):
            continue
        shown = new or was
        assert shown is not None
        found.append(
            Difference(
                pool=shown.pool,
                node=shown.node,
                time=shown.time,
                cause=cause,
                decided=was.status if was else None,
                decided_action=was.action if was else "none",
                decided_rule=was.rule if was else "",
                would=new.status if new else None,
                would_action=new.action if new else "none",
                would_rule=new.rule if new else "",
                reason=shown.reason,
            )
        )
    return sorted(found, key=lambda each: (each.time, each.pool, each.node))
