"""Asks providers about their hosts at an interval, and publishes what has changed.

One replica asks, under the lease of the sweep. The event is published before the record says so: a
crash in between repeats it, which changes nothing.
"""

import logging
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
from services.provisioner.host_reports.report_decisions import ReportChange, changes
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import HostReport
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0

_nodes = decoder(NodeRecord)


class ReportPoller:
    """The questions of one replica."""

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
