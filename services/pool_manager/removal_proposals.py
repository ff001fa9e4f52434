"""Answers the provisioner's proposals to remove machines that no order means.

The pool-manager answers, as it has the nodes, the sagas and the gates. It reads what it answers
from after the proposal, which begins after the list that showed the machine.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Registered, node_codec
from schemas.pool_events import RemovalAnswered
from schemas.pool_records import removed_key
from schemas.proposed_removals import PROPOSE_REMOVAL, RemovalProposal
from schemas.topology import EVENTS, POOLS
from services.bus.port import Bus, Endpoint, Headers
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_use_reader import NodeUseReader
from services.pool_manager.planner.safety.removal_gates import (
    WINDOW,
    ProposalFacts,
    decide_removal,
)
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

WORK_SECONDS_MAX: Final = 5.0
"""For the workload system's answer about one machine."""

_proposal: Final = msgspec.json.Decoder(RemovalProposal)


class RemovalProposals:
    """Serve the endpoint of one replica."""

    def __init__(self, bus: Bus, clock: Clock, store: Store) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._heartbeats = HeartbeatReader(bus)
        self._use = NodeUseReader(bus, clock, self._heartbeats)
        self._granted: defaultdict[str, list[datetime]] = defaultdict(list)
        """Pool -> when removals were granted."""

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint by its subject."""
        return {subjects.query(PROPOSE_REMOVAL): self._answer}

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        proposal = _proposal.decode(data)
        answer = decide_removal(proposal, await self._facts(proposal))
        now = self._clock.now()
        if not answer.gate:
            recent = [each for each in self._granted[proposal.pool] if each > now - WINDOW]
            self._granted[proposal.pool] = [*recent, now]
        about = f"{proposal.provider}-{proposal.provider_id}"
        event = RemovalAnswered(
            id=f"removal-{about}-{answer.gate or 'granted'}",
            time=now,
            pool=proposal.pool,
            instance=proposal.node,
            provider=proposal.provider,
            provider_id=proposal.provider_id,
            gate=answer.gate,
            reason=answer.reason or proposal.reason,
        )
        await publish_event(self._bus, event)
        return encode(answer)

    async def _facts(self, proposal: RemovalProposal) -> ProposalFacts:
        pool, name = proposal.pool, proposal.node
        found = await self._store.pool(pool)
        removed = found is None and await self._bus.get(POOLS, removed_key(pool)) is not None
        node = await self._store.fresh_node(pool, name)
        unread, busy = "", False
        if not self._store.trusted:
            unread = "records of nodes that were lost are being rebuilt"
        if not proposal.beside and not unread and found is not None:
            work = await self._use.work(pool, [name], WORK_SECONDS_MAX)
            known = name in work.idle or name in work.absent
            busy = name in work.busy
            unread = "" if known or busy else work.unknown or "the workload system is not known"
        stored = await self._bus.last(EVENTS.name, subjects.node_event(pool, name, "registered"))
        event = node_codec.decode(stored.data) if stored is not None else None
        return ProposalFacts(
            pool=found[0] if found is not None else None,
            removed=removed,
            node=node,
            unread=unread,
            beats=bool(await self._heartbeats.beating(pool, [name])),
            registered_at=stored.time if stored and isinstance(event, Registered) else None,
            busy=busy,
            granted=self._granted[pool],
            now=self._clock.now(),
        )
