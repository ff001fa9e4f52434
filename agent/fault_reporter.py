"""Builds one fault from each observation and passes it to the outbox.

Between the sources (kernel log, NVML, cloud, diagnostics) and the outbox: identifies the GPU,
merges reports of two sources, drops duplicates and limits repeats. It does not rate faults.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from agent.code_names import name_of
from agent.conditions.engine import ConditionChange
from agent.delivery.outbox import AgentOutbox
from agent.delivery.spool import OutgoingEvent
from agent.faults import fault_builder
from agent.faults.fault_builder import GpuMap, NodeIdentity
from agent.faults.fault_rate_limit import FaultRateLimit
from agent.faults.kernel_log_scanner import ExceptionLines, KernelLogScanner
from agent.faults.sample_changes import SampleChange
from agent.faults.xid_merge import LINE_SECONDS, FaultDedup, XidMerge
from agent.faults.xid_patterns import RecognisedFault
from agent.observations import CheckFinding, KernelLogLine, Notice, XidEvent
from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import Fault, NodeEvent
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterInputs:
    """Names what the reporter needs from its sources."""

    gpus: Callable[[], GpuMap]
    lines: Callable[[], bool]
    """Whether the kernel log is followed."""
    job: Callable[[int, float], str]
    """Job of a host process, by its PID and the seconds since boot."""


class FaultReporter:
    """Publishes every event that must not be lost."""

    def __init__(
        self,
        who: NodeIdentity,
        outbox: AgentOutbox,
        clock: Clock,
        sources: ReporterInputs,
        *,
        any_facility: bool = False,
    ) -> None:
        """Report as `who`; `any_facility` accepts lines that a process wrote."""
        self.who = who
        self._outbox = outbox
        self._clock = clock
        self._sources = sources
        self._scanner = KernelLogScanner(any_facility=any_facility)
        self._rate_limit = FaultRateLimit()
        self._xid_merge = XidMerge()
        self._exceptions = ExceptionLines()
        self._exceptions_timer: asyncio.TimerHandle | None = None
        self._dedup = FaultDedup()
        self._events = 0
        self._harmless: set[str] = set()
        """Digests of notices without effect on the node: their end is not published."""

    def line(self, line: KernelLogLine) -> None:
        """Handle a kernel log line."""
        sighting = self._scanner.scan(line)
        if sighting is None:
            return
        now = self._clock.monotonic()
        if sighting.kind == "xid" and not self._xid_merge.line(sighting.pci, sighting.code, now):
            log.info("already reported by NVML: %s", sighting.message)
            return
        for each in self._exceptions.take(line, sighting, now):
            self._recognised(*each)
        self._wait_for_process()

    def _wait_for_process(self) -> None:
        """Report held exceptions later, if their process is not named."""
        due = self._exceptions.next_due
        if due is not None and self._exceptions_timer is None:
            self._exceptions_timer = asyncio.get_running_loop().call_later(
                max(due - self._clock.monotonic(), 0.0), self._exceptions_due
            )

    def _exceptions_due(self) -> None:
        self._exceptions_timer = None
        for each in self._exceptions.due(self._clock.monotonic()):
            self._recognised(*each)
        self._wait_for_process()

    def handled_up_to(self, sequence: int) -> int:
        """Return how far the kernel log was handled, of what was read up to `sequence`."""
        held = self._exceptions.first_sequence
        return sequence if held is None else min(sequence, held - 1)

    def _recognised(self, line: KernelLogLine, sighting: RecognisedFault) -> None:
        """Report a line's fault."""
        monotonic = self._clock.monotonic()
        # Looked up at once, because the process may end with its fault.
        pid, at = sighting.metrics.get("pid", 0), line.timestamp_us / MICROSECONDS
        made = partial(
            fault_builder.from_kernel_log,
            *(self.who, sighting, line.sequence, self._sources.gpus(), self._clock.now()),
            job=self._sources.job(pid, at) if isinstance(pid, int) and pid > 0 else "",
        )
        key = (sighting.kind, sighting.code, sighting.pci, sighting.subcode)
        if passed := self._rate_limit.passes(key, monotonic, made):
            self._first(made(), monotonic, sequence=line.sequence, is_repeat=passed > 1)

    def event(self, event: XidEvent) -> None:
        """Handle an XID from NVML; its kernel log line may have come already, or is waited for."""
        word = self._xid_merge.event(event, self._clock.monotonic(), lines=self._sources.lines())
        if word == "publish":
            self._send_event(event)
        elif word == "wait":
            asyncio.get_running_loop().call_later(LINE_SECONDS, self._events_due)

    def _events_due(self) -> None:
        """Publish the events whose kernel log lines have not come."""
        for event in self._xid_merge.due(self._clock.monotonic()):
            self._send_event(event)

    def gap(self, count: int, sequence: int) -> None:
        """Report lost kernel log lines."""
        fault = fault_builder.lines_lost(self.who, count, sequence, self._clock.now())
        self._fault(fault, self._clock.monotonic())

    def condition(self, change: ConditionChange) -> None:
        """Report that a condition begins, or is over; no limit hides it."""
        event = fault_builder.from_condition(
            self.who, change, self._sources.gpus(), self._clock.now()
        )
        if isinstance(event, Fault) and (
            first := self._dedup.first(event, self._clock.monotonic())
        ):
            event = _duplicate(event, first)
        self.send(event)

    def change(self, change: SampleChange) -> None:
        """Report a change for the worse between two samples."""
        fault = fault_builder.from_change(self.who, change, self._sources.gpus(), self._clock.now())
        self._fault(fault, self._clock.monotonic())

    def notice(self, notice: Notice) -> None:
        """Report a provider's notice."""
        now = self._clock.now()
        self.send(fault_builder.from_notice(self.who, notice, now))
        if notice.unknown:
            log.warning(
                "the cloud announces %r, a term that this version does not know: the node is "
                "degraded, and nothing is done ahead of it",
                notice.subcode,
            )
        if notice.effect is not None:
            self.send(fault_builder.provider_notice(self.who, notice, now))
        else:
            self._harmless.add(notice.digest)

    def notice_over(self, digest: str) -> None:
        """Report that a notice was withdrawn."""
        if digest in self._harmless:
            self._harmless.discard(digest)
            return
        self.send(fault_builder.withdrawn_notice(self.who, digest, self._clock.now()))

    def finding(self, finding: CheckFinding) -> None:
        """Report a failed test."""
        self.send(
            fault_builder.from_finding(self.who, finding, self._sources.gpus(), self._clock.now())
        )

    def due(self, sequence: int) -> None:
        """Report limited faults that are due; `sequence` is the last kernel log line read."""
        for fault in self._rate_limit.due(self._clock.monotonic()):
            self.send(fault, is_repeat=True)
        if dropped := self._outbox.take_dropped():
            self.send(fault_builder.reports_lost(self.who, dropped, sequence, self._clock.now()))

    def send(self, event: NodeEvent, *, sequence: int = -1, is_repeat: bool = False) -> None:
        """Pass an event to the outbox; `is_repeat`: one like it was sent a moment ago."""
        if isinstance(event, Fault):
            log.warning(
                "fault", extra={"fault": event.id, "kind": event.kind, "line": event.message}
            )
        self._outbox.put(
            OutgoingEvent(
                subject=event_subject(event),
                data=encode(event),
                msg_id=event.id,
                trace=fault_builder.traceparent(event.id),
                sequence=sequence,
                is_repeat=is_repeat,
            )
        )

    def _send_event(self, event: XidEvent) -> None:
        self._events += 1
        name, gpus = name_of("xid", event.code), self._sources.gpus()
        fault = fault_builder.from_event(
            self.who, event, name, self._events, gpus, self._clock.now()
        )
        self._fault(fault, self._clock.monotonic())

    def _fault(self, fault: Fault, monotonic: float) -> None:
        """Send a fault unless its rate limit is reached."""
        key = (fault.kind, fault.code, fault.pci, fault.subcode)
        if passed := self._rate_limit.passes(key, monotonic, lambda: fault):
            self._first(fault, monotonic, is_repeat=passed > 1)

    def _first(
        self, fault: Fault, monotonic: float, *, sequence: int = -1, is_repeat: bool
    ) -> None:
        """Send a fault unless it duplicates an earlier one."""
        first = self._dedup.first(fault, monotonic)
        if first and fault.kind != "xid":
            log.info("duplicate of %s: %s", first, fault.message)
            return
        fault = _duplicate(fault, first) if first else fault
        self.send(fault, sequence=sequence, is_repeat=is_repeat)


def _duplicate(fault: Fault, first: str) -> Fault:
    return msgspec.structs.replace(fault, metrics=fault.metrics | {"duplicate_of": first})
