"""Answers the provisioner's proposals to remove machines that no order means.

The pool-manager answers, as it has the nodes, the sagas and the gates. It reads what it answers
from after the proposal, which begins after the list that showed the machine.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.lease_records import RemovalGrantsRecord
from schemas.messages import decoder, encode
from schemas.pool_events import RemovalAnswered
from schemas.pool_records import FLEET_KEY, FleetRecord, removed_key
from schemas.proposed_removals import PROPOSE_REMOVAL, RemovalAnswer, RemovalProposal
from schemas.stops import StopState
from schemas.topology import EVENTS, INSTANCES, LEASES, NODES, POOLS, SAGAS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus, Endpoint, Headers
from services.bus.record_bucket import RecordBucket
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_use_reader import NodeUseReader
from services.pool_manager.planner.safety import stop_gate
from services.pool_manager.planner.safety.removal_gates import (
    WINDOW,
    ProposalFacts,
    decide_removal,
    with_grant,
)
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import UnreadableRecord
from services.runtime.event_publisher import publish_event

WORK_SECONDS_MAX: Final = 5.0
"""For the workload system's answer about one machine."""
PROVING: Final = (EVENTS.name, f"KV_{NODES.name}", f"KV_{INSTANCES.name}", SAGAS.name)
"""Streams that prove nothing about a machine which is older than they are."""

_proposal: Final = msgspec.json.Decoder(RemovalProposal)
_fleet: Final = decoder(FleetRecord)
_instance: Final = decoder(InstanceRecord)


class RemovalProposals:
    """Serve the endpoint of one replica."""

    def __init__(
        self, bus: Bus, clock: Clock, store: Store, stops: Callable[[], StopState] = StopState
    ) -> None:
        self._stops = stops
        self._bus = bus
        self._clock = clock
        self._store = store
        self._heartbeats = HeartbeatReader(bus)
        self._use = NodeUseReader(bus, clock, self._heartbeats)
        self._grants = RecordBucket(
            bus,
            LEASES,
            RemovalGrantsRecord,
            lambda _: int(WINDOW.total_seconds()),
            replaceable=True,
        )

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint by its subject."""
        return {subjects.query(PROPOSE_REMOVAL): self._answer}

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        proposal = _proposal.decode(data)
        facts = await self._facts(proposal)
        answer = RemovalAnswer()

        def decide(found: RemovalGrantsRecord | None) -> RemovalGrantsRecord | None:
            nonlocal answer
            earlier = found.granted if found is not None else {}
            answer = decide_removal(proposal, facts, earlier)
            if answer.gate:
                return None
            return RemovalGrantsRecord(granted=with_grant(earlier, proposal, facts.now))

        # The grant is stored before it is answered: what is not answered only counts too much.
        await self._grants.change(f"pool-manager.removals.{proposal.pool}", decide)
        about = f"{proposal.provider}-{proposal.provider_id}"
        event = RemovalAnswered(
            id=f"removal-{about}-{answer.gate or 'granted'}",
            time=facts.now,
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
        unread, busy = "", False
        if not self._store.trusted:
            unread = "records of nodes that were lost are being rebuilt"
        if not proposal.beside and not unread and found is not None:
            work = await self._use.work(pool, [name], WORK_SECONDS_MAX)
            known = name in work.idle or name in work.absent
            busy = name in work.busy
            unread = "" if known or busy else work.unknown or "the workload system is not known"
        try:
            node = await self._store.fresh_node(pool, name)
            holders = [
                each.instance
                for _, each in readable(await self._bus.entries(INSTANCES), _instance)
                if each.state == "running"
                and (each.provider, each.provider_id) == (proposal.provider, proposal.provider_id)
            ]
        except UnreadableRecord as error:
            node, holders, unread = None, [], str(error)
        await self._store.nodes.caught_up()
        stored = await self._bus.last(EVENTS.name, subjects.node_event(pool, name, "registered"))
        beat = await self._heartbeats.last(pool, name)
        began, since = await self._records()
        now = self._clock.now()
        stop = stop_gate.of_call(self._stops(), pool, (proposal.provider,), now)
        return ProposalFacts(
            pool=found[0] if found is not None else None,
            stopped=f"stopped {stop}" if stop is not None else "",
            removed=removed,
            node=node,
            nodes=tuple(self._store.nodes.records.values()),
            holders=holders,
            unread=unread,
            beats=bool(await self._heartbeats.beating(pool, [name])),
            beating_boot=beat.boot_id if beat is not None else "",
            registered_at=stored.time if stored is not None else None,
            busy=busy,
            fleet_began=began,
            records_since=since,
            now=now,
        )

    async def _records(self) -> tuple[datetime | None, datetime | None]:
        """Return when the fleet began, and since when its records are whole."""
        entry = await self._bus.get(POOLS, FLEET_KEY)
        fleet = readable_record(entry, _fleet)
        infos = await asyncio.gather(
            *(self._bus.admin(f"STREAM.INFO.{each}", {}) for each in PROVING)
        )
        times = [datetime.fromisoformat(each["created"]) for each in infos]
        if entry is None or fleet is None:
            return None, None
        restored = [fleet.restored_at] if fleet.restored_at is not None else []
        return entry.time, max((*times, *restored))
