"""Reads what a sweep compares providers' lists and records with."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from schemas.instance_records import InstanceRecord
from schemas.machine_identity import MachineIdentity
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord, RemovedPool, pool_key, removed_key
from schemas.topology import INSTANCES, NODES, POOLS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus, Entry
from services.primitives.clock import Clock
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.removal.kept_instances import is_kept
from services.provisioner.removal.sweep_decisions import is_of_fleet, is_unrecorded
from services.provisioner.time_limits import TimeLimits
from services.saga.saga_log import read_state

_node: Final = decoder(NodeRecord)
_pool: Final = decoder(PoolRecord)
_removed: Final = decoder(RemovedPool)


class NodesSeen(NamedTuple):
    """Nodes in service, those that are gone or forgotten, and those whose instance lacks a record.

    A node that is to be launched is forgotten where neither NODES nor an open saga knows it.
    """

    living: frozenset[str] = frozenset()
    departed: frozenset[str] = frozenset()
    unrecorded: Mapping[str, NodeRecord] = {}


class SweepReadings:
    """Start the reads of one replica's sweep."""

    def __init__(
        self, bus: Bus, clock: Clock, providers: Providers, limits: TimeLimits, fleet_name: str
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._providers = providers
        self._limits = limits
        self._fleet_name = fleet_name

    def canonical(
        self, found: Mapping[str, InstanceRecord]
    ) -> tuple[dict[str, InstanceRecord], dict[str, str]]:
        """Return the records with their IDs in the form in which lists have them.

        Those of running ones beside them, since these are corrected.
        """
        records, running = dict(found), dict[str, str]()
        for key, each in found.items():
            calls = self._providers.calls.get(each.provider)
            if calls is None or (compared := calls.canonical_record(each)) is each:
                continue
            if each.state == "running":
                running[key] = compared.provider_id
            else:
                records[key] = compared
        return records, running

    async def machines(self, keys: Iterable[str]) -> dict[str, MachineIdentity]:
        """Return which machine each node is, by what agents have registered under its name."""
        found: dict[str, MachineIdentity] = {}
        for key in keys:
            node = readable_record(await self._bus.get(NODES, key), _node)
            if node is not None and node.identity is not None:
                found[key] = node.identity.machine
        return found

    async def admitted(
        self, records: Iterable[InstanceRecord], now: datetime
    ) -> dict[str, datetime]:
        """Return when each pool with instances that are kept last admitted a node."""
        found: dict[str, datetime] = {}
        for pool in sorted({each.pool for each in records if is_kept(each, now)}):
            entries = await self._bus.entries(NODES, f"{pool}.>")
            times = [node.admitted_at for _, node in readable(entries, _node) if node.admitted_at]
            found |= {pool: max(times)} if times else {}
        return found

    async def serials(self) -> dict[str, int]:
        """The highest number that each pool has given; read after the lists, like the records."""
        removed = readable(await self._bus.entries(POOLS, removed_key("*")), _removed)
        found = {entry.key.partition(".")[2]: record.serial for entry, record in removed}
        for _, pool in readable(await self._bus.entries(POOLS, pool_key("*")), _pool):
            found[pool.name] = max(pool.serial, found.get(pool.name, 0))
        return found

    async def records_since(self, fleet: Entry | None) -> datetime | None:
        """When INSTANCES was created, if after the fleet: what is older may have had a record."""
        if fleet is None:
            return None
        info = await self._bus.admin(f"STREAM.INFO.KV_{INSTANCES.name}", {})
        created = datetime.fromisoformat(info["created"])
        return created if created > fleet.time else None

    async def nodes(
        self,
        fleet: str,
        listed: dict[str, list[Instance]],
        records: dict[str, InstanceRecord],
        left_alone: Collection[str],
        *,
        whole: bool,
    ) -> NodesSeen:
        """The nodes of which records and lists disagree.

        A listed instance has no record, one that is running or was to be launched long ago is not
        listed, or one that others have made is neither recorded nor listed.
        """
        old = self._clock.now() - timedelta(seconds=self._limits.sweep_grace_seconds)
        can = {name: self._providers.get(name).provider.capabilities for name in listed}
        shown, differing = set[str](), set[str]()
        for provider, each in ((name, each) for name, found in listed.items() for each in found):
            key = node_key(each.pool, each.name)
            record = records.get(key)
            if can[provider].adopts or is_of_fleet(each.fleet, fleet, self._fleet_name):
                shown.add(key)
            if record and record.state == "running" and record.provider_id != each.provider_id:
                differing.add(key)
        wanted = {
            key
            for key, each in records.items()
            if each.provider in listed
            and (each.state == "running" or (each.state == "intended" and each.intended_at < old))
        }
        keys = (shown - records.keys()) | differing | (wanted if whole else wanted - shown)
        adopts = any(each.adopts for each in can.values())
        if not keys and not adopts:
            return NodesSeen()
        entries = await self._bus.entries(NODES)
        known = keys & {each.key for each in entries}
        read = readable((each for each in entries if adopts or each.key in keys), _node)
        nodes = {entry.key: node for entry, node in read}
        # An unreadable one may be in service.
        gone = known & {key for key, node in nodes.items() if node.state == "terminated"}
        unrecorded = {
            key: node
            for key, node in nodes.items()
            if adopts and key not in left_alone and is_unrecorded(node, records.get(key))
        }
        forgotten = {
            key
            for key in keys - known
            if key in records
            and records[key].state == "intended"
            and not await self._is_launching(records[key])
        }
        return NodesSeen(frozenset(known - gone), frozenset(gone | forgotten), unrecorded)

    async def _is_launching(self, record: InstanceRecord) -> bool:
        """Return whether the saga that launches an instance is open; its ID may be given again."""
        state = await read_state(self._bus, record.saga) if record.saga else None
        return state is not None and not state.ended and state.params.new_node == record.instance
