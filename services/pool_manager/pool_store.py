"""The pool-manager's records: read from memory, changed by compare-and-set."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from schemas.fleet_budget import FLEET_BUDGET_KEY, FleetBudgetRecord
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.lease_records import OpeningsRecord
from schemas.messages import decoder, encode, encode_record
from schemas.node_records import NodeRecord, node_key
from schemas.operator_requests import CompletedRequest
from schemas.pool_records import (
    FLEET_KEY,
    FleetRecord,
    PoolRecord,
    RemovedPool,
    pool_key,
    removed_key,
)
from schemas.settings import FleetBudgetSpec
from schemas.topology import HEALTH, INSTANCES, LEASES, NODES, POOLS
from services.bus.bucket_mirror import BucketView, readable
from services.bus.port import Bus, Entry
from services.bus.record_bucket import RecordBucket, Versioned, retry_conflicts
from services.pool_manager.gpu_owners import GpuOwners
from services.pool_manager.planner.disruption_budget import lifted, others
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing.open_sagas import numbered
from services.pool_manager.requests import request_ordering
from services.primitives.errors import Conflict, UnreadableRecord

log = logging.getLogger(__name__)

TERMINATED_TTL_SECONDS: Final = 7 * 86_400
"""How long a node that is gone can still be asked about."""

_node = decoder(NodeRecord)
_instance = decoder(InstanceRecord)

PoolChange = Callable[[PoolRecord], PoolRecord]
Change = Callable[[NodeRecord | None], NodeRecord | None]
"""Returns the record as it shall be; None or the same one: leave it."""


class Store:
    """NODES and POOLS, which this service alone writes, and HEALTH, which it reads."""

    def __init__(self, bus: Bus, fleet_budget: FleetBudgetSpec) -> None:
        """Mirror the buckets; `run` of each view must be running."""
        self._bus = bus
        self.fleet_budget = fleet_budget
        self._node_records = RecordBucket(bus, NODES, NodeRecord, _node_ttl_seconds)
        self._claim_records = RecordBucket(bus, POOLS, FleetBudgetRecord)
        self._pool_records = RecordBucket(bus, POOLS, PoolRecord)
        self._removed_records = RecordBucket(bus, POOLS, RemovedPool)
        self._fleet_records = RecordBucket(bus, POOLS, FleetRecord)
        self._openings = RecordBucket(bus, LEASES, OpeningsRecord)
        self.unreadable: dict[str, UnreadableRecord] = {}
        """Pools' keys whose records could not be read when all were read last."""
        self.owners = GpuOwners()
        self.nodes: BucketView[NodeRecord] = BucketView(bus, NODES, NodeRecord, self.owners.note)
        self.owners.records = self.nodes.records
        self.health: BucketView[HealthRecord] = BucketView(bus, HEALTH, HealthRecord)
        self.fleet = ""
        self.claiming = asyncio.Lock()
        """Held by a decision that lost its claim to another pool's: of many one wins at a time."""
        self._deciding: dict[str, asyncio.Lock] = {}
        self._changes: dict[str, list[tuple[PoolChange, asyncio.Future[None]]]] = {}
        self._opened: dict[str, Versioned[OpeningsRecord]] = {}
        """Each pool's number of openings as this process last read or wrote it."""
        self._read: dict[str, _ReadPool] = {}
        """Each pool's record and revision as this process last read or wrote it."""
        self._pool_losses = 0
        self._rolled_back: set[str] = set()
        """Pools whose records lack openings: a loss counts once, until it is repaired."""
        self._trusted: int | None = None
        """The losses after which the records were last found complete."""
        self._dated: int | None = None
        """The losses after which it was last known whether the whole store was restored."""
        self.had_nodes = False
        """Whether there were nodes then."""

    # --- losses -------------------------------------------------------------------------------

    @property
    def losses(self) -> int:
        """Return how often NODES or POOLS lost records here: deleted, purged or rolled back."""
        return self.nodes.losses + self._pool_losses

    @property
    def trusted(self) -> bool:
        """Return whether records may be decided on: nothing was lost since they were compared."""
        return self._trusted == self.losses

    def trust(self, losses: int) -> None:
        """Decide on the records as they are after so many losses."""
        self._trusted = losses

    @property
    def dated(self) -> bool:
        """Return whether it is known if the store was restored; until then no saga goes on.

        One that was open at the backup may have ended since.
        """
        return self._dated == self.losses

    def date(self, losses: int) -> None:
        """Let sagas go on after so many losses."""
        self._dated = losses
        self.had_nodes = bool(self.nodes.records)
        self.nodes.before_loss = {}

    async def restored_at(self) -> datetime | None:
        """Return when it was last noticed that the whole store was restored from a backup."""
        record = (await self._fleet_records.read(FLEET_KEY)).record
        return record.restored_at if record is not None else None

    async def record_restored(self, now: datetime) -> None:
        """Record that the whole store was restored from a backup."""

        def restored(record: FleetRecord | None) -> FleetRecord | None:
            return record and msgspec.structs.replace(record, restored_at=now)

        await self._fleet_records.change(FLEET_KEY, restored)

    async def openings_lost(self, record: PoolRecord) -> int:
        """Return how many openings a pool's record lacks: it was rolled back, or made again.

        A replica may open sagas between two reads. It writes the record first, so a record that is
        read after the number, and lacks openings still, has lost them.
        """
        began = await self._began(record.name)
        if record.openings >= began:
            return 0
        found = await self.pool(record.name)
        return max(0, began - found[0].openings) if found is not None else 0

    async def _began(self, pool: str) -> int:
        """Read how many openings of a pool have begun, from outside of POOLS."""
        found = self._opened[pool] = await self._openings.read(_openings_key(pool))
        return found.record.openings if found.record is not None else 0

    async def record_openings(self, record: PoolRecord) -> None:
        """Keep the number of a pool's openings outside of POOLS, before its sagas command."""
        now = OpeningsRecord(openings=record.openings)

        def raised(before: OpeningsRecord | None) -> OpeningsRecord:
            return before if before and before.openings >= now.openings else now

        known = self._opened.pop(record.name, None)
        changed = await self._openings.change(_openings_key(record.name), raised, known)
        self._opened[record.name] = changed

    async def restore_openings(self, pool: str) -> None:
        """Let a pool's record be decided on again, once it has what it lacked."""
        found = await self.pool(pool)
        if found is None or not (lost := await self.openings_lost(found[0])):
            self._rolled_back.discard(pool)
            return
        openings = found[0].openings + lost

        def restored(record: PoolRecord) -> PoolRecord:
            return msgspec.structs.replace(record, openings=max(record.openings, openings))

        await self.change_pool(pool, restored)
        self._rolled_back.discard(pool)

    async def fleet_is_recorded(self) -> bool:
        """Return whether POOLS has the fleet: without it, it was lost."""
        return await self._bus.get(POOLS, FLEET_KEY) is not None

    async def claim_fleet(self, fleet: str) -> None:
        """Give this bus its fleet id, unless it has one.

        A store that replaces a lost one gets another id: node names and launch tokens derive from
        it, and must not be those of instances that still run. Where POOLS alone was lost the
        records of instances have the id.
        """
        fleet = self.fleet or await self._id_of_instances(fleet.rpartition("-")[0]) or fleet
        try:
            await self._bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=fleet)))
        except Conflict:
            log.info("the bus carries a fleet already")
        record, _, _ = await self._fleet_records.read(FLEET_KEY)
        assert record is not None
        self.fleet = record.id

    async def _id_of_instances(self, name: str) -> str:
        """The fleet id in the newest record of an instance of a fleet of this name."""
        entries = sorted(await self._bus.entries(INSTANCES), key=lambda each: -each.revision)
        ids = (record.launch.fleet for _, record in readable(entries, _instance))
        return next((each for each in ids if each.rpartition("-")[0] == name), "")

    # --- nodes --------------------------------------------------------------------------------

    async def fresh_node(self, pool: str, node: str) -> NodeRecord | None:
        """Return a node's record, from the server."""
        return (await self._node_records.read(node_key(pool, node))).record

    async def staying_nodes(self, pool: str) -> list[NodeRecord]:
        """A pool's nodes, from the server, without spares and nodes that leave."""
        entries = await self._bus.entries(NODES, f"{pool}.*")
        records = (record for _, record in readable(entries, _node))
        return [
            record
            for record in records
            if record.state not in ("leaving", "terminated") and not record.spare
        ]

    def nodes_of(self, pool: str) -> Iterable[NodeRecord]:
        """A pool's nodes that are not gone."""
        return [record for record in self.nodes.of(pool) if record.state != "terminated"]

    def nodes_named(self, pool: str, names: Iterable[str]) -> dict[str, NodeRecord]:
        """Return the pool's nodes that have these names and are not gone."""
        found = ((name, self.nodes.records.get(node_key(pool, name))) for name in names)
        return {name: each for name, each in found if each and each.state != "terminated"}

    async def change_node(self, pool: str, node: str, change: Change) -> NodeRecord | None:
        """Change a node's record; return the current one."""
        return (await self.changed_node(pool, node, change)).record

    async def changed_node(self, pool: str, node: str, change: Change) -> Versioned[NodeRecord]:
        """Change a node's record; where nothing is written, it may be as it was a while ago."""
        key = node_key(pool, node)
        mirrored = self.nodes.records.get(key)
        known = Versioned(mirrored, self.nodes.revisions[key]) if mirrored else None
        changed = await self._node_records.change(key, change, known)
        if changed.written and changed.record is not None:
            self.nodes.wrote(key, changed.record, changed.revision)
            self.owners.note(key)
        return changed

    # --- pools --------------------------------------------------------------------------------

    async def pool(self, pool: str) -> tuple[PoolRecord, int] | None:
        """Return a pool's record and revision, fresh from the server."""
        before = self._read.get(pool)
        entry = await self._bus.get(POOLS, pool_key(pool))
        self._note_loss(pool, before, entry)
        if entry is None:
            return None
        known = self._read.get(pool)
        if known is None or (known.revision, known.value) != (entry.revision, entry.value):
            # With a thousand open sagas the record is large; decode each revision once.
            known = _ReadPool(self._pool_records.decode(entry), entry.revision, entry.value)
            self._read[pool] = known
        return known.record, known.revision

    def _note_loss(self, pool: str, before: "_ReadPool | None", entry: Entry | None) -> None:
        """Count a record that is gone, older than it was before, or another of its revision."""
        if before is None:
            return
        same = (before.revision, before.value)
        kept = entry is not None and (
            entry.revision > before.revision or (entry.revision, entry.value) == same
        )
        if not kept:
            self._pool_losses += 1
            self._read.pop(pool, None)

    def last_read(self, pool: str) -> tuple[PoolRecord, int] | None:
        """A pool's record as this process last read or wrote it; replicas may have changed it."""
        found = self._read.get(pool)
        return (found.record, found.revision) if found is not None else None

    def may_be_open(self, pool: str, saga: str) -> bool:
        """Return whether the pool's record, as last read or written here, has the saga open."""
        found = self._read.get(pool)
        return found is None or saga in found.record.open

    async def pools(self) -> list[PoolRecord]:
        """Every pool's record that can be read, fresh from the server."""
        found: list[PoolRecord] = []
        self.unreadable.clear()
        before = dict(self._read)
        entries = {each.key: each for each in await self._bus.entries(POOLS, pool_key("*"))}
        for pool, known in before.items():
            self._note_loss(pool, known, entries.get(pool_key(pool)))
        for entry in entries.values():
            try:
                found.append(self._pool_records.decode(entry))
            except UnreadableRecord as error:
                self.unreadable[entry.key] = error
        return found

    async def create_pool(self, record: PoolRecord) -> bool:
        """Record a new pool; False where it is recorded already. Its nodes get new names."""
        before, _, _ = await self._removed_records.read(removed_key(record.name))
        if before is not None:
            serial = max(record.serial, before.serial)
            record = msgspec.structs.replace(record, serial=serial)
        try:
            await self._bus.create(POOLS, pool_key(record.name), encode_record(record))
        except Conflict:
            return False
        return True

    async def save_pool(self, record: PoolRecord, revision: int) -> int:
        """Write a pool's record and return its revision; Conflict where it was written before."""
        value = encode_record(record)
        written = await self._bus.update(POOLS, pool_key(record.name), value, revision)
        self._read[record.name] = _ReadPool(record, written, value)
        return written

    async def removal(self, pool: str) -> CompletedRequest | None:
        """The request that removed a pool of that name the last time; None: unknown."""
        record, _, _ = await self._removed_records.read(removed_key(pool))
        return record.removal if record else None

    async def forget_pool(self, record: PoolRecord, revision: int) -> None:
        """Remove an empty pool's record unless another replica has written it; else Conflict."""
        about_it = (
            each
            for each in reversed(record.completed_requests)
            if each.about == request_ordering.POOL
        )
        outlives = RemovedPool(serial=record.serial, removal=next(about_it, None))
        await self._bus.put(POOLS, removed_key(record.name), encode(outlives))
        await self._bus.delete(POOLS, pool_key(record.name), revision=revision)
        self._read.pop(record.name, None)
        self._opened.pop(record.name, None)
        await self._bus.delete(LEASES, _openings_key(record.name))
        claims, at = await self.claims()
        if record.name in claims.claims:
            left = {name: each for name, each in claims.claims.items() if name != record.name}
            await self.save_claims(msgspec.structs.replace(claims, claims=left), at)

    def deciding(self, pool: str) -> asyncio.Lock:
        """Held while deciding about a pool: the replicas contend, one process's tasks need not."""
        return self._deciding.setdefault(pool, asyncio.Lock())

    async def change_pool(self, pool: str, change: PoolChange) -> None:
        """Change a pool's record, if it exists; changes that wait together are written together."""
        mine = (change, asyncio.get_running_loop().create_future())
        self._changes.setdefault(pool, []).append(mine)
        async with self.deciding(pool):
            batch, self._changes[pool] = self._changes[pool], []
            try:
                await self._change_together(pool, [each for each, _ in batch])
            except Exception as error:  # noqa: BLE001 - every waiter gets it
                for _, done in batch:
                    done.set_exception(error)
            else:
                for _, done in batch:
                    done.set_result(None)
        await mine[1]

    async def _change_together(self, pool: str, changes: list[PoolChange]) -> None:
        async def attempt() -> None:
            found = await self.pool(pool) if changes else None
            if found is None:
                return
            record, revision = found
            wanted = record
            for change in changes:
                wanted = change(wanted)
            opening = numbered(record, wanted)
            if opening is not wanted and not await self.openings_lost(record):
                wanted = opening
            if wanted != record:
                await self.save_pool(wanted, revision)

        await retry_conflicts(attempt, f"pool {pool}")

    async def snapshot(self, pool: str) -> PoolSnapshot | None:
        """Everything a decision about a pool may look at; None where there is no such pool.

        All of it is read at once. A node is recorded before its saga leaves the pool's record, so
        the nodes must be at least as new as the record: where another replica has written that
        since this process knew it, the nodes are caught up with once more. Claims and record are
        written under the revisions that were read, so it does not matter which of them is newer.
        """
        known = self._read.get(pool)
        (claims, claims_revision), found, began, _ = await asyncio.gather(
            self.claims(), self.pool(pool), self._began(pool), self.nodes.caught_up()
        )
        if found is None:
            return None
        lost = 0
        if found[0].openings < began:
            # Opened by a replica between the two reads, or lost.
            found = await self.pool(pool)
            if found is None:
                return None
            lost = max(0, began - found[0].openings)
        if self._read.get(pool) is not known:
            await self.nodes.caught_up()
        if not lost:
            self._rolled_back.discard(pool)
        elif pool not in self._rolled_back:
            log.warning("pool rolled back", extra={"pool": pool, "openings": lost})
            self._rolled_back.add(pool)
            self._pool_losses += 1
        nodes = Nodes(self.nodes_of(pool))
        return PoolSnapshot(
            fleet=self.fleet,
            record=found[0],
            revision=found[1],
            nodes=nodes,
            health=self._health_of(nodes),
            others=others(self.fleet_budget, claims, pool),
            claims=claims,
            claims_revision=claims_revision,
        )

    def _health_of(self, nodes: Nodes) -> dict[str, HealthRecord]:
        """What is known of the health of nodes that need attention."""
        keys = {node.node: node_key(node.pool, node.node) for node in nodes.needs_attention}
        known = self.health.records
        return {name: known[key] for name, key in keys.items() if key in known}

    # --- the fleet's budget -------------------------------------------------------------------

    async def claims(self) -> tuple[FleetBudgetRecord, int]:
        """Return what each pool takes of the fleet's budget, fresh; nothing if that cannot bind."""
        if lifted(self.fleet_budget):
            return FleetBudgetRecord(), 0
        record, revision, _ = await self._claim_records.read(FLEET_BUDGET_KEY)
        return record or FleetBudgetRecord(), revision

    async def save_claims(self, claims: FleetBudgetRecord, revision: int) -> None:
        """Write the claims unless another replica has; else Conflict."""
        await self._claim_records.write(FLEET_BUDGET_KEY, claims, revision)


class _ReadPool(NamedTuple):
    """A pool's record as it was read or written."""

    record: PoolRecord
    revision: int
    value: bytes
    """As stored: a store that was set back gives a revision to another record."""


def _openings_key(pool: str) -> str:
    return f"pool-manager.openings.{pool}"


def _node_ttl_seconds(record: NodeRecord) -> int:
    return TERMINATED_TTL_SECONDS if record.state == "terminated" else 0
