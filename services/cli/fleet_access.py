"""What everyday commands ask of a fleet: over the bus (`BusFleet`) or over HTTP (`HttpFleet`)."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from schemas.fleet_queries import FleetBudgetView, NodeView, Query
from schemas.offering_records import OfferingsQuery
from schemas.operator_requests import NodeRequest
from services.bus.port import Stored
from services.cli.fleet_discovery import NEEDS_BUS
from services.fleet_client.fleet_client import FleetClient, Request, RequestAnswer
from services.fleet_client.node_timeline import TimelineRow
from services.fleet_client.saga_progress import Progress
from services.fleet_client.why_text import WhyAnswer
from services.gateway.views import PoolStatus
from services.primitives.errors import NavarchError


class NodeAccess(Protocol):
    """Finds nodes."""

    async def pages(
        self, name: str, query: Query | OfferingsQuery, *, who: str = "pool-manager"
    ) -> list[msgspec.Raw]:
        """All items of a paged query, as JSON."""
        ...

    async def node(self, node: str) -> tuple[NodeView, bytes]:
        """One node with its recent faults, and as JSON; AnswerError if there is none."""
        ...


class SagaAccess(Protocol):
    """Follows sagas."""

    def follow_saga(
        self, saga: str, *, after: int | None = None
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """A saga's entries, all or those after a sequence, also future ones, until it has ended."""
        ...


class FleetAccess(NodeAccess, SagaAccess, Protocol):
    """All of it."""

    async def check_pool(self, pool: str) -> None:
        """Fail if there is no such pool; an empty name is every pool."""
        ...

    async def pools_labelled(self, labels: Sequence[str]) -> frozenset[str]:
        """The pools with all these labels; ValueError for what is not `KEY=VALUE`."""
        ...

    async def budget(self) -> FleetBudgetView:
        """The fleet's budget and how much of it is used."""
        ...

    async def pool_status(self, pool: str) -> PoolStatus:
        """A pool in numbers."""
        ...

    async def pool_events(self, pool: str, start: datetime | None) -> list[Stored]:
        """What was requested of a pool and decided for it, since a time or since ever."""
        ...

    async def audited_events(self, start: datetime | None) -> list[Stored]:
        """The outcomes of changes that were requested."""
        ...

    async def why(self, name: str) -> WhyAnswer:
        """Explain the node, pool or saga of this name."""
        ...

    async def timeline(self, node: str) -> tuple[TimelineRow, ...]:
        """What happened to the node of this name; nothing if there is none."""
        ...

    async def open_sagas(self, pool: str) -> list[Progress]:
        """The open sagas, oldest first."""
        ...

    async def saga(self, saga: str) -> tuple[Progress, list[Stored]]:
        """A saga and the entries of its log."""
        ...

    def follow_events(
        self, *, pool: str, node: str, since: datetime | None
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """Events from now or from a time on, of one pool, one node, or all."""
        ...

    async def request(self, pool: str, verb: str, request: Request) -> RequestAnswer:
        """Send a request to a pool and wait for the event that answers it."""
        ...

    async def dry_run(self, verb: str, request: NodeRequest) -> bytes:
        """What a request about a node would do, as JSON."""
        ...


def bus_of(fleet: object, what: str) -> FleetClient:
    """The connection to the bus; NavarchError over HTTP, where there is none."""
    if not isinstance(fleet, FleetClient):
        raise NavarchError(f"{what} {NEEDS_BUS}")
    return fleet
