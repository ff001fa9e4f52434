"""Reads how nodes are used and what they cost, right before some of them are chosen to leave."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import node_key
from schemas.node_work import NODE_WORK, NODES_MAX, NodeWorkAnswer, NodeWorkQuery, OwnedWork
from schemas.topology import INSTANCES
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus
from services.bus.protocol.endpoint_replies import reply_data
from services.pool_manager.heartbeat_reader import READS_AT_ONCE, HeartbeatReader
from services.pool_manager.planner.idle_nodes import has_rested
from services.pool_manager.planner.pool_snapshot import NodeUse, Work
from services.primitives.clock import Clock
from services.primitives.errors import AnswerError, BusError

ASK_SECONDS_MAX: Final = 30.0
"""For the answer about one list of nodes."""
DECISION_SECONDS_MAX: Final = 10.0
"""For all answers that a decision waits for: the pool's other decisions wait with it."""
KEPT_FOR: Final = timedelta(seconds=30)
"""So long a node that has work is not asked about again: a pool is decided on every few seconds."""
SILENT_FOR: Final = timedelta(minutes=1)
"""So long a decision does not ask again after there was no answer."""

_instances: Final = decoder(InstanceRecord)
_answer: Final = msgspec.json.Decoder(NodeWorkAnswer)


@dataclass(frozen=True, slots=True)
class FoundWork:
    """Hold what the workload system says of nodes."""

    idle: frozenset[str]
    """Nothing runs there."""
    busy: frozenset[str]
    """Something runs there."""
    unknown: str = ""
    """Why that is not known of others."""
    absent: frozenset[str] = frozenset()
    """Nothing runs there, or is placed there."""
    unanswered: bool = False
    """The notifier did not answer for some of them."""
    owners: tuple[OwnedWork, ...] = ()
    """Whose work runs there, of the first NODES_MAX nodes."""


class NodeUseReader:
    """Reads heartbeats and instances, and asks the workload system by way of the notifier."""

    def __init__(self, bus: Bus, clock: Clock, heartbeats: HeartbeatReader) -> None:
        self._bus = bus
        self._clock = clock
        self._heartbeats = heartbeats
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._silent: dict[str, datetime] = {}
        """Pool -> when there was no answer about its work."""
        self._known: dict[str, dict[str, tuple[datetime, Work]]] = {}
        """Pool -> nodes that had work, or of which it was not known, when they were asked about."""

    async def read(self, pool: str, nodes: Collection[str]) -> dict[str, NodeUse]:
        """The use of each, without its work; BusError where the bus does not answer."""
        found = await asyncio.gather(*(self._read(pool, node) for node in nodes))
        return dict(zip(nodes, found, strict=True))

    async def read_with_work(self, pool: str, nodes: Collection[str]) -> Mapping[str, NodeUse]:
        """The same with the work of those whose GPUs rest, as far as it is answered in time."""
        use, now = await self.read(pool, nodes), self._clock.now()
        resting = [name for name, each in use.items() if has_rested(each, now)]
        known = {
            name: (at, work)
            for name, (at, work) in self._known.pop(pool, {}).items()
            if at <= now < at + KEPT_FOR
        }
        asked = [name for name in resting if name not in known]
        silent = self._silent.get(pool)
        if asked and not (silent is not None and silent <= now < silent + SILENT_FOR):
            found = await self.work(pool, asked, DECISION_SECONDS_MAX)
            self._silent.pop(pool, None)
            if found.unanswered:
                self._silent[pool] = self._clock.now()
            use.update({name: replace(use[name], work="none") for name in found.idle})
            known |= {
                name: (now, "runs" if name in found.busy else "unknown")
                for name in asked
                if name not in found.idle
            }
        if known:
            self._known[pool] = known
        rest = {name: known[name][1] for name in resting if name in known}
        use.update({name: replace(use[name], work=work) for name, work in rest.items()})
        return use

    async def work(self, pool: str, nodes: Sequence[str], seconds: float) -> FoundWork:
        """Say on which of the nodes something runs, as far as it is answered within `seconds`."""
        idle, busy, absent, unknown = set[str](), set[str](), set[str](), ""
        owners: tuple[OwnedWork, ...] = ()
        end = self._clock.monotonic() + seconds
        for first in range(0, len(nodes), NODES_MAX):
            some = tuple(nodes[first : first + NODES_MAX])
            left = end - self._clock.monotonic()
            try:
                answer = await self._ask(pool, some, min(max(left, 1.0), ASK_SECONDS_MAX))
            except (AnswerError, BusError, msgspec.DecodeError) as error:
                reason = f"the notifier does not answer: {error}"
                return FoundWork(frozenset(idle), frozenset(busy), reason, unanswered=True)
            idle.update(set(answer.idle).intersection(some))
            absent.update(set(answer.absent).intersection(some))
            # A notifier of the release before names none that are busy.
            named = answer.busy if answer.unknown else set(some).difference(answer.idle)
            busy.update(set(named).intersection(some))
            unknown, owners = unknown or answer.unknown, owners or answer.owners
        return FoundWork(
            frozenset(idle), frozenset(busy), unknown, frozenset(absent), owners=owners
        )

    async def _ask(self, pool: str, nodes: tuple[str, ...], seconds: float) -> NodeWorkAnswer:
        reply = await self._bus.request(
            subjects.query(NODE_WORK),
            encode(NodeWorkQuery(pool=pool, nodes=nodes)),
            timeout_seconds=seconds,
        )
        return _answer.decode(reply_data(reply))

    async def _read(self, pool: str, node: str) -> NodeUse:
        beat = await self._heartbeats.last(pool, node)
        async with self._reads:
            entry = await self._bus.get(INSTANCES, node_key(pool, node))
        instance = readable_record(entry, _instances)
        return NodeUse(
            gpus=beat.gpu_use if beat else None,
            dollars_per_hour=instance.dollars_per_hour if instance else 0.0,
            offering=instance.offering if instance else None,
        )
