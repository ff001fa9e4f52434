"""A fleet over the bus, as everyday commands see it."""

import asyncio
from datetime import UTC, datetime

import msgspec

from schemas import subjects
from schemas.dry_run import DryRunRequest
from schemas.fleet_queries import Query
from schemas.messages import encode
from schemas.operator_requests import NodeRequest
from schemas.topology import EVENTS
from services.bus.port import Stored
from services.fleet_client import stored_history
from services.fleet_client.audit_rows import AUDIT_FILTERS
from services.fleet_client.fleet_client import (
    FleetClient,
    decode_nodes,
    decode_pools,
    stored_batches,
)
from services.fleet_client.fleet_use import total
from services.fleet_client.node_timeline import TimelineRow, timeline_rows
from services.fleet_client.saga_progress import Progress, progress
from services.fleet_client.use_reader import read_use
from services.fleet_client.why_text import WhyAnswer
from services.gateway.views import PoolStatus, pool_status


class BusFleet(FleetClient):
    """What a command asks, from the queries and the histories of the bus."""

    async def pool_status(self, pool: str) -> PoolStatus:
        """A pool in numbers."""
        pools, nodes, sagas, (use, _) = await asyncio.gather(
            self.pages("pools", Query(pool=pool)),
            self.pages("nodes", Query(pool=pool)),
            self.open_sagas(pool),
            read_use(self.bus, pool, datetime.now(UTC)),
        )
        [view] = decode_pools(pools)
        return pool_status(view, decode_nodes(nodes), sagas, total(use.rows()).utilization_percent)

    async def pool_events(self, pool: str, start: datetime | None) -> list[Stored]:
        """What was requested of a pool and decided for it, since a time or since ever."""
        stored = await self.bus.read(EVENTS.name, subjects.pool_events_of(pool))
        return [each for each in stored if start is None or each.time >= start]

    async def audited_events(self, start: datetime | None) -> list[Stored]:
        """The outcomes of changes that were requested."""
        batches = stored_batches(self.bus, EVENTS.name, AUDIT_FILTERS, start or 0)
        return [each async for batch in batches for each in batch]

    async def why(self, name: str) -> WhyAnswer:
        """Explain the node, pool or saga of this name."""
        return await stored_history.why(self, name)

    async def timeline(self, node: str) -> tuple[TimelineRow, ...]:
        """What happened to the node of this name; nothing if there is none."""
        return timeline_rows(await self.node_history(node))

    async def open_sagas(self, pool: str) -> list[Progress]:
        """The open sagas, oldest first."""
        return [progress(each) for each in await stored_history.open_sagas(self.bus, pool)]

    async def saga(self, saga: str) -> tuple[Progress, list[Stored]]:
        """A saga and the entries of its log."""
        state, stored = await stored_history.saga_log(self.bus, saga)
        return progress(state), stored

    async def dry_run(self, verb: str, request: NodeRequest) -> bytes:
        """What a request about a node would do, as JSON."""
        query = DryRunRequest(verb=verb, node=request.node, request=msgspec.Raw(encode(request)))
        return await self.query("dry-run", query)
