"""Decides which faults are their job's, and not their node's. Pure.

Applied between the policy and `node_health`. A program that fails, or that is torn down because
another node of its job failed, leaves XIDs on all the job's nodes. Judged one by one they might
make each of them unhealthy. What is the same on another node of the job at the same time, or a mere
clean-up after it, says nothing of the hardware: it is noted, counts in no window, and is reported
as one incident.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import msgspec

from schemas.duration import format_duration
from schemas.enums import PROGRAM_CODES
from schemas.fault_signature import called, in_words
from schemas.node_events import Fault
from services.health_monitor.rules.health_policy import Judgement, Windows

RULE: Final = "(one job)"
"""In the place of a policy's rule."""
TOGETHER_SECONDS: Final = 60.0
"""The same on two nodes of a job within this time is the job's."""
AFTER_SECONDS: Final = 1800.0
"""How long a clean-up may come after what it cleans up: collective operations time out late."""
WAIT_SECONDS: Final = 2.0
"""How long a fault that would make its node unhealthy waits for the job's other nodes."""
CLEAN_UP: Final = frozenset({45})
JOBS_MAX: Final = 10_000
NODES_MAX: Final = 64
"""Nodes remembered of a job: two are enough to know that it is the job's."""
KINDS_MAX: Final = 16
"""Faults remembered of a node of a job."""


class JobFault(msgspec.Struct, frozen=True, gc=False):
    """A fault that a node of a job has reported."""

    kind: str
    code: int
    at: float


@dataclass(slots=True)
class JobFaultHistory:
    """Remembers the faults that were lately seen of each job."""

    _jobs: OrderedDict[tuple[str, str], dict[str, tuple[JobFault, ...]]] = field(
        default_factory=OrderedDict
    )

    def saw(self, fault: Fault, at: float) -> None:
        """Note a fault."""
        if not fault.job:
            return
        key = (fault.pool, fault.job)
        nodes = self._jobs.setdefault(key, {})
        self._jobs.move_to_end(key)
        if fault.node in nodes or len(nodes) < NODES_MAX:
            words = nodes.get(fault.node, ())
            nodes[fault.node] = (*words, JobFault(fault.kind, fault.code, at))[-KINDS_MAX:]
        if len(self._jobs) > JOBS_MAX:
            self._jobs.popitem(last=False)

    def shared(self, fault: Fault, at: float) -> str:
        """Say why a fault is its job's, in words; empty: it is its node's, as far as is known."""
        if not of_program(fault):
            return ""
        nodes = self._jobs.get((fault.pool, fault.job), {})
        others = [
            (node, word) for node, words in nodes.items() if node != fault.node for word in words
        ]
        for node, word in others:
            together = abs(word.at - at) <= TOGETHER_SECONDS
            if together and (word.kind, word.code) == (fault.kind, fault.code):
                return f"{node} of {fault.job} has it too"
        if fault.code in CLEAN_UP:
            for node, word in others:
                if -WAIT_SECONDS <= at - word.at <= AFTER_SECONDS:
                    what = in_words(called(word.kind, word.code))
                    return f"it came after {what} on {node} of {fault.job}"
        return ""


def of_program(fault: Fault) -> bool:
    """Return whether a program can have caused a fault whose job is known."""
    return bool(fault.job) and fault.kind == "xid" and fault.code in PROGRAM_CODES


def when_forgiven(fault: Fault) -> str:
    """When a fault is its job's, in words; empty: never."""
    if fault.kind != "xid" or fault.code not in PROGRAM_CODES:
        return ""
    cleaned = f", or anything in the {format_duration(AFTER_SECONDS)} before"
    return (
        "healthy, and counted nowhere, where another node of the same job has it too within "
        f"{format_duration(TOGETHER_SECONDS)}{cleaned if fault.code in CLEAN_UP else ''}"
    )


def waits(fault: Fault, judged: Judgement) -> bool:
    """Return whether a judgement must wait for the job's other nodes; what is fatal never does."""
    return of_program(fault) and judged.result in ("degraded", "unhealthy") and not judged.fatal


def forgiven(judged: Judgement, why: str, windows: Windows) -> Judgement:
    """The judgement of a fault that is its job's; `windows` are those before it."""
    return Judgement(
        result="healthy",
        action="restart_app",
        rule=RULE,
        description=why,
        policy=judged.policy,
        windows=windows,
        raised=judged.raised,
    )
