"""Reads what providers say of their hosts, polled or queued, and publishes what has changed.

One replica asks, under the lease of the sweep. The event is published before the record says so: a
crash in between repeats it, which changes nothing.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.topology import NODES
from services.bus.bucket_mirror import readable_record
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.host_reports.report_decisions import ReportChange, changes, queued
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import HostReport, QueuedNotice
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.event_publisher import publish_event

QUEUE_SECONDS: Final = 5.0
READS_MAX: Final = 100
"""Answers of one queue that are read in a row."""
OVER_AFTER: Final = timedelta(minutes=10)
"""What happened so long ago is seen in the provider's list by now, or did not happen."""
log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0

_nodes = decoder(NodeRecord)


class NoticeQueueReader:
    """Reads the providers' queues of notices, in one replica.

    One replica reads, under the lease of the sweep. A message is deleted once its notice is stored:
    a crash before that has it delivered again, which publishes the same event.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        poll: Callable[[], Awaitable[None]],
    ) -> None:
        """`poll` asks the providers what they report of their hosts now."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._queues = {name: each for name, each in providers.calls.items() if each.queues_notices}
        self._poll = poll

    @property
    def has_queues(self) -> bool:
        """Return whether any provider has a queue to read."""
        return bool(self._queues)

    async def run(self, lease: Lease) -> None:
        """Read while this replica holds the lease."""
        await repeat_while_held(
            lease,
            self._clock,
            self.read,
            every_seconds=QUEUE_SECONDS,
            look_seconds=LOOK_SECONDS,
        )

    async def read(self) -> None:
        """Read every queue until it is empty."""
        for name, calls in self._queues.items():
            try:
                for _ in range(READS_MAX):
                    found = await calls.queued_notices()
                    if not found:
                        break
                    await self._take(name, calls, found)
            except ProviderError as error:
                log.warning("no notices", extra={"provider": name, "reason": str(error)})

    async def _take(self, name: str, calls: ProviderCalls, found: Sequence[QueuedNotice]) -> None:
        records = (await self._store.all()).items()
        running = {
            each.provider_id: (key, each)
            for key, each in records
            if each.provider == name and each.state == "running"
        }
        if any(each.changes_reports for each in found):
            await self._poll()
        stored = [each.receipt for each in found if await self._is_stored(each, running)]
        if stored:
            await calls.delete_notices(stored)

    async def _is_stored(
        self, notice: QueuedNotice, running: dict[str, tuple[str, InstanceRecord]]
    ) -> bool:
        """Publish a message's notice; False where the node is still to come."""
        event, now = notice.event, self._clock.now()
        if event is None or notice.at is None or event.provider_id not in running:
            return True
        key, record = running[event.provider_id]
        node = readable_record(await self._bus.get(NODES, key), _nodes)
        if node is None:
            return now - notice.at > OVER_AFTER
        announced = queued(record, node, event, notice.at)
        if announced is not None and now - notice.at <= OVER_AFTER:
            log.info("announced", extra={"node": node.node, "action": event.action})
            await publish_event(self._bus, announced)
        return True


class ReportPoller:
    """Asks providers for reports of their hosts, in one replica."""

    def __init__(self, bus: Bus, clock: Clock, store: InstanceStore, providers: Providers) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers

    async def run(self, lease: Lease) -> None:
        """Ask while this replica holds the lease."""
        await repeat_while_held(
            lease,
            self._clock,
            self.poll,
            every_seconds=INTERVAL_SECONDS,
            look_seconds=LOOK_SECONDS,
        )

    async def poll(self) -> None:
        """Ask every provider that reports of its hosts once."""
        asked = {name: each for name, each in self._providers.calls.items() if each.reports_hosts}
        records = await self._store.all() if asked else {}
        for name, calls in asked.items():
            running = {
                key: each
                for key, each in records.items()
                if each.provider == name and each.state == "running" and each.provider_id
            }
            if not running:
                continue
            try:
                report = await calls.report_hosts()
            except ProviderError as error:
                log.info("no report", extra={"provider": name, "reason": str(error)})
                continue
            nodes = await self._concerned(running, report)
            for change in changes(running, nodes, report, self._clock.now()):
                await self._apply(change)

    async def _concerned(
        self, running: dict[str, InstanceRecord], report: HostReport
    ) -> dict[str, NodeRecord]:
        """The records of the nodes that a report is about, or was."""
        about = {each.provider_id for each in report.events}
        keys = [
            key
            for key, each in running.items()
            if each.provider_id in about or each.reported_notices
        ]
        found = {key: readable_record(await self._bus.get(NODES, key), _nodes) for key in keys}
        return {key: node for key, node in found.items() if node is not None}

    async def _apply(self, change: ReportChange) -> None:
        for event in change.events:
            log.info(
                "reported by its provider",
                extra={"node": event.node, "action": event.action, "over": event.withdrawn},
            )
            await publish_event(self._bus, event)

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            after = change.record
            if record is None or record.state != "running":
                return None
            if record.provider_id != after.provider_id:
                return None
            return replace(
                record,
                reported_notices=after.reported_notices,
                impaired_reason=after.impaired_reason,
            )

        await self._store.change(change.key, decide)
