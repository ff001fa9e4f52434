"""Says what a sweep would do, and sweeps when it is asked to: at the replica that sweeps.

Only that one knows since when it has seen each instance. Whoever else is asked passes it on.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from schemas import subjects
from schemas.fleet_queries import QueryError
from schemas.headers import SERVICE_ERROR
from schemas.lease_records import LeaseRecord
from schemas.messages import decoder, encode
from schemas.sweeps import SweepAnswer, SweepRequest
from schemas.topology import LEASES
from services.bus.leases import Lease
from services.bus.port import Bus, Endpoint, Headers
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError, Unavailable
from services.provisioner.removal.sweep_report import report
from services.provisioner.removal.sweeper import LEASE_NAME, Sweeper

log = logging.getLogger(__name__)

PLAN: Final = "sweep-plan"
NOW: Final = "sweep-now"
SECONDS_MAX: Final = 100.0
"""For the replica that sweeps: each provider may take a minute to be listed."""

_lease = decoder(LeaseRecord)

Answer = Callable[[SweepRequest], Awaitable[SweepAnswer]]


class SweepEndpoints:
    """What one replica answers about sweeps."""

    def __init__(
        self, bus: Bus, clock: Clock, sweeper: Sweeper, lease: Lease, replica: str
    ) -> None:
        """Work with these; `replica` is the name under which the lease is held."""
        self._bus = bus
        self._clock = clock
        self._sweeper = sweeper
        self._lease = lease
        self._replica = replica

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> answer: for all replicas, and for this one alone."""
        found: dict[str, Endpoint] = {}
        for name, answer in ((PLAN, self._plan), (NOW, self._now)):
            found[subjects.query(name)] = self._passing_on(name, answer)
            found[subjects.replica_query(name, self._replica)] = _answering(answer)
        return found

    async def _plan(self, request: SweepRequest) -> SweepAnswer:
        del request
        look = await self._sweeper.look()
        lines = report(look.seen, look.actions, self._sweeper.observes)
        return SweepAnswer(
            replica=self._replica,
            at=self._clock.now(),
            performed=False,
            lines=lines,
            unlisted=dict(look.unlisted),
            fleet_known=bool(look.seen.fleet),
        )

    async def _now(self, request: SweepRequest) -> SweepAnswer:
        log.info("a sweep was asked for", extra={"by": request.by})
        look, outcomes = await self._sweeper.swept()
        lines = report(look.seen, look.actions, self._sweeper.observes, outcomes)
        return SweepAnswer(
            replica=self._replica,
            at=self._clock.now(),
            performed=True,
            lines=lines,
            unlisted=dict(look.unlisted),
            fleet_known=bool(look.seen.fleet),
        )

    def _passing_on(self, name: str, answer: Answer) -> Endpoint:
        here = _answering(answer)

        async def endpoint(data: bytes, headers: Headers) -> bytes:
            holder = self._replica if self._lease.held else await self._holder()
            if holder == self._replica:
                return await here(data, headers)
            subject = subjects.replica_query(name, holder)
            reply = await self._bus.request(subject, data, timeout_seconds=SECONDS_MAX)
            if reply.headers.get(SERVICE_ERROR):
                raise NavarchError(msgspec.json.decode(reply.data, type=QueryError).reason)
            return reply.data

        return endpoint

    async def _holder(self) -> str:
        entry = await self._bus.get(LEASES, LEASE_NAME)
        if entry is None:
            raise Unavailable("no provisioner sweeps just now; ask again in some seconds")
        holder: str = _lease.decode(entry.value).holder
        return holder


def _answering(answer: Answer) -> Endpoint:
    async def endpoint(data: bytes, headers: Headers) -> bytes:
        del headers
        return encode(await answer(msgspec.json.decode(data or b"{}", type=SweepRequest)))

    return endpoint
