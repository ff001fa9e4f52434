"""Makes one fault of whatever the witnesses see, and hands it to the outbox at once.

Between the watchers (kernel log, NVML, cloud, diagnostics) and the outbox: says which GPU it was,
merges what two witnesses tell, and holds back echoes and storms. It judges nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from agent.delivery.outbox import Outbox
from agent.delivery.spool import Outgoing
from agent.faults import fault_builder
from agent.faults.fault_builder import GpuMap, NodeIdentity
from agent.faults.fault_dedup import Echoes
from agent.faults.fault_rate_limit import Storm
from agent.faults.kernel_log_scanner import Scanner
from agent.faults.sample_changes import Change
from agent.faults.xid_merge import LINE_SECONDS, Witnesses
from agent.maintenance.diagnostics.findings import Finding
from agent.sources.cloud.notice_parsers import Notice
from agent.sources.kernel_log_parser import Line
from agent.sources.nvml.nvml_events import XidEvent
from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import Fault, NodeEvent
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the reporter asks about its witnesses."""

    gpus: Callable[[], GpuMap]
    lines: Callable[[], bool]
    """Whether the kernel log is followed."""
    job: Callable[[int, float], str]
    """Of a process of this host, by its number and the seconds since the boot."""


class Reporter:
    """The way of every fact that must not be lost."""

    def __init__(
        self,
        who: NodeIdentity,
        outbox: Outbox,
        clock: Clock,
        sources: Sources,
        *,
        any_facility: bool = False,
    ) -> None:
        """Report as `who`; `any_facility` believes lines that a process wrote."""
        self.who = who
        self._outbox = outbox
        self._clock = clock
        self._sources = sources
        self._scanner = Scanner(any_facility=any_facility)
        self._storm = Storm()
        self._witnesses = Witnesses()
        self._echoes = Echoes()
        self._events = 0
        self._harmless: set[str] = set()
        """Notices told that take nothing: their end is no news."""

    def line(self, line: Line) -> None:
        """Take a kernel log line."""
        sighting = self._scanner.scan(line)
        if sighting is None:
            return
        monotonic = self._clock.monotonic()
        if sighting.kind == "xid" and not self._witnesses.line(
            sighting.pci, sighting.code, monotonic
        ):
            log.info("NVML told it first: %s", sighting.message)
            return
        # Asked at once, and not when the fault is made: a process ends with its fault.
        pid = sighting.metrics.get("pid", 0)
        made = partial(
            fault_builder.from_kernel_log,
            *(self.who, sighting, line.sequence, self._sources.gpus(), self._clock.now()),
            job=self._job(pid, line) if isinstance(pid, int) and pid > 0 else "",
        )
        key = (sighting.kind, sighting.code, sighting.pci, sighting.subcode)
        if self._storm.passes(key, monotonic, made):
            self._first(made(), monotonic, sequence=line.sequence)

    def _job(self, pid: int, line: Line) -> str:
        return self._sources.job(pid, line.timestamp_us / MICROSECONDS)

    def event(self, event: XidEvent) -> None:
        """Take an XID from NVML; its line may be here already, or be worth a moment's wait."""
        word = self._witnesses.event(event, self._clock.monotonic(), lines=self._sources.lines())
        if word == "tell":
            self._tell_event(event)
        elif word == "wait":
            asyncio.get_running_loop().call_later(LINE_SECONDS, self._events_due)

    def _events_due(self) -> None:
        """Tell the events whose lines have not come."""
        for event in self._witnesses.due(self._clock.monotonic()):
            self._tell_event(event)

    def gap(self, count: int, sequence: int) -> None:
        """Take the news that kernel log lines were lost."""
        self.send(fault_builder.lines_lost(self.who, count, sequence, self._clock.now()))

    def change(self, change: Change) -> None:
        """Take what turned worse from one sample to the next."""
        fault = fault_builder.from_change(self.who, change, self._sources.gpus(), self._clock.now())
        self._fault(fault, self._clock.monotonic())

    def notice(self, notice: Notice) -> None:
        """Take what the cloud announces."""
        now = self._clock.now()
        self.send(fault_builder.from_notice(self.who, notice, now))
        if notice.takes:
            self.send(fault_builder.provider_notice(self.who, notice, now))
        else:
            self._harmless.add(notice.digest)

    def notice_over(self, digest: str) -> None:
        """Take the news that the cloud announces something no more."""
        if digest in self._harmless:
            self._harmless.discard(digest)
            return
        self.send(fault_builder.withdrawn(self.who, digest, self._clock.now()))

    def finding(self, finding: Finding) -> None:
        """Take a test that failed."""
        self.send(
            fault_builder.from_finding(self.who, finding, self._sources.gpus(), self._clock.now())
        )

    def due(self, sequence: int) -> None:
        """Tell what was held back and is due; `sequence` is how far the kernel log was read."""
        for fault in self._storm.due(self._clock.monotonic()):
            self.send(fault)
        if dropped := self._outbox.take_dropped():
            self.send(fault_builder.reports_lost(self.who, dropped, sequence, self._clock.now()))

    def send(self, event: NodeEvent, *, sequence: int = -1) -> None:
        """Hand a fact to the outbox."""
        if isinstance(event, Fault):
            log.warning(
                "fault", extra={"fault": event.id, "kind": event.kind, "line": event.message}
            )
        self._outbox.put(
            Outgoing(
                subject=event_subject(event),
                data=encode(event),
                msg_id=event.id,
                trace=fault_builder.traceparent(event.id),
                sequence=sequence,
            )
        )

    def _tell_event(self, event: XidEvent) -> None:
        self._events += 1
        fault = fault_builder.from_event(
            self.who, event, self._events, self._sources.gpus(), self._clock.now()
        )
        self._fault(fault, self._clock.monotonic())

    def _fault(self, fault: Fault, monotonic: float) -> None:
        """Send a fault, unless a storm of its kind is under way."""
        key = (fault.kind, fault.code, fault.pci, fault.subcode)
        if self._storm.passes(key, monotonic, lambda: fault):
            self._first(fault, monotonic)

    def _first(self, fault: Fault, monotonic: float, *, sequence: int = -1) -> None:
        """Send a fault, unless it only repeats what has been told."""
        first = self._echoes.first(fault, monotonic)
        if first and fault.kind != "xid":
            log.info("an echo of %s: %s", first, fault.message)
            return
        if first:
            metrics = fault.metrics | {"echo_of": first}
            fault = msgspec.structs.replace(fault, metrics=metrics)
        self.send(fault, sequence=sequence)
