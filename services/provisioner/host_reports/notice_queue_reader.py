"""Reads the queues of providers' notices, and publishes what concerns nodes of the fleet.

One replica reads, under the lease of the sweep. A message is deleted once its notice is stored: a
crash before that has it delivered again, which publishes the same event.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.topology import NODES
from services.bus.bucket_mirror import readable_record
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.host_reports.report_decisions import queued
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import QueuedNotice
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
READS_MAX: Final = 100
"""Answers of one queue that are read in a row."""
OVER_AFTER: Final = timedelta(minutes=10)
"""What happened so long ago is seen in the provider's list by now, or did not happen."""

_nodes = decoder(NodeRecord)


class NoticeQueueReader:
    """The reader of one replica."""

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
        """Whether there is anything to read."""
        return bool(self._queues)

    async def run(self, lease: Lease) -> None:
        """Read while this replica holds the lease."""
        await repeat_while_held(
            lease,
            self._clock,
            self.read,
            every_seconds=INTERVAL_SECONDS,
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
