"""Answers what a sweep would do, and sweeps on request: at the replica that holds the lease.

Only that replica knows how long each instance has been listed. Other replicas forward the request.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from schemas import subjects
from schemas.lease_records import LeaseRecord
from schemas.messages import decoder, encode
from schemas.sweeps import SweepAnswer, SweepRequest
from schemas.topology import LEASES
from services.bus.leases import Lease
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import reply_data, requester
from services.primitives.clock import Clock
from services.primitives.errors import Unavailable
from services.provisioner.removal.sweep_report import report
from services.provisioner.removal.sweeper import LEASE_NAME, Sweeper, SweepPlan

log = logging.getLogger(__name__)

PLAN: Final = "sweep-plan"
NOW: Final = "sweep-now"
SECONDS_MAX: Final = 100.0
"""For the forwarded request: each provider may take a minute to be listed."""

_lease = decoder(LeaseRecord)

Handle = Callable[[SweepRequest], Awaitable[SweepAnswer]]


class SweepEndpoints:
    """The sweep endpoints of one replica."""

    def __init__(
        self, bus: Bus, clock: Clock, sweeper: Sweeper, lease: Lease, replica: str
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._sweeper = sweeper
        self._lease = lease
        self._replica = replica

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> endpoint: one for all replicas, and one for this replica."""
        found: dict[str, Endpoint] = {}
        for subject, name, handle in (
            (subjects.query(PLAN), PLAN, self._plan),
            (subjects.order_wildcard(NOW), NOW, self._sweep_now),
        ):
            found[subject] = self._forwarding(name, handle)
            found[subjects.replica_query(name, self._replica)] = _endpoint(handle)
        return found

    async def _plan(self, request: SweepRequest) -> SweepAnswer:
        return self._answer(await self._sweeper.plan(request))

    async def _sweep_now(self, request: SweepRequest) -> SweepAnswer:
        return self._answer(*await self._sweeper.sweep(request))

    def _answer(self, plan: SweepPlan, outcomes: list[str] | None = None) -> SweepAnswer:
        return SweepAnswer(
            replica=self._replica,
            at=self._clock.now(),
            performed=outcomes is not None,
            lines=report(
                plan.differences,
                plan.due,
                self._sweeper.observes,
                self._sweeper.proposals.held,
                outcomes or (),
            ),
            unlisted=dict(plan.unlisted),
            fleet_known=plan.fleet_known,
        )

    def _forwarding(self, name: str, handle: Handle) -> Endpoint:
        here = _endpoint(handle)

        async def endpoint(data: bytes, headers: Headers) -> bytes:
            asked = _request(data)
            if by := requester(headers, asked.by):
                log.info("sweep requested", extra={"by": by})
                data = encode(msgspec.structs.replace(asked, by=by))
            holder = self._replica if self._lease.held else await self._holder()
            if holder == self._replica:
                return await here(data, headers)
            subject = subjects.replica_query(name, holder)
            reply = await self._bus.request(subject, data, timeout_seconds=SECONDS_MAX)
            return reply_data(reply)

        return endpoint

    async def _holder(self) -> str:
        entry = await self._bus.get(LEASES, LEASE_NAME)
        if entry is None:
            raise Unavailable("no provisioner holds the sweep lease; ask again in a few seconds")
        holder: str = _lease.decode(entry.value).holder
        return holder


def _endpoint(handle: Handle) -> Endpoint:
    async def endpoint(data: bytes, _: Headers) -> bytes:
        return encode(await handle(_request(data)))

    return endpoint


def _request(data: bytes) -> SweepRequest:
    return msgspec.json.decode(data or b"{}", type=SweepRequest)
