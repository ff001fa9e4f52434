"""Answers what a sweep would do, and sweeps on request: at the replica that holds the lease.

Only that replica knows how long each instance has been listed. Other replicas forward the request.
"""

import logging
from functools import partial
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
from services.provisioner.removal.sweeper import LEASE_NAME, Sweeper

log = logging.getLogger(__name__)

PLAN: Final = "sweep-plan"
NOW: Final = "sweep-now"
SECONDS_MAX: Final = 100.0
"""For the forwarded request: each provider may take a minute to be listed."""

_lease = decoder(LeaseRecord)


class SweepEndpoints:
    """Serves the sweep endpoints of one replica."""

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
        """Return subject -> endpoint: one for all replicas, and one for this replica."""
        found: dict[str, Endpoint] = {}
        for subject, name in ((subjects.query(PLAN), PLAN), (subjects.order_wildcard(NOW), NOW)):
            found[subject] = partial(self._forward, name)
            found[subjects.replica_query(name, self._replica)] = partial(self._answer, name)
        return found

    async def _answer(self, name: str, data: bytes, _: Headers) -> bytes:
        request, outcomes = _request(data), list[str]()
        if name == NOW:
            plan, outcomes = await self._sweeper.sweep(request)
        else:
            plan = await self._sweeper.plan(request)
        held, observes = self._sweeper.proposals.held, self._sweeper.observes
        answer = SweepAnswer(
            replica=self._replica,
            at=self._clock.now(),
            performed=name == NOW,
            lines=report(plan.differences, plan.due, observes, held, outcomes),
            unlisted=dict(plan.unlisted),
            fleet_known=plan.fleet_known,
        )
        return encode(answer)

    async def _forward(self, name: str, data: bytes, headers: Headers) -> bytes:
        asked = _request(data)
        if by := requester(headers, asked.by):
            log.info("sweep requested", extra={"by": by})
            data = encode(msgspec.structs.replace(asked, by=by))
        holder = self._replica if self._lease.held else await self._holder()
        if holder == self._replica:
            return await self._answer(name, data, headers)
        subject = subjects.replica_query(name, holder)
        return reply_data(await self._bus.request(subject, data, timeout_seconds=SECONDS_MAX))

    async def _holder(self) -> str:
        entry = await self._bus.get(LEASES, LEASE_NAME)
        if entry is None:
            raise Unavailable("no provisioner holds the sweep lease; ask again in a few seconds")
        holder: str = _lease.decode(entry.value).holder
        return holder


def _request(data: bytes) -> SweepRequest:
    return msgspec.json.decode(data or b"{}", type=SweepRequest)
