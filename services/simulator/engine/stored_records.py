"""What the services have recorded, as the server holds it; read past the bus."""

from collections.abc import Iterator
from typing import Any

from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import LimitedDecoder, decoder
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import HEALTH, INSTANCES, NODES, POOLS, BucketSpec
from services.bus.memory.memory_server import MemoryServer

_instances = decoder(InstanceRecord)
_nodes = decoder(NodeRecord)
_health = decoder(HealthRecord)
_pools = decoder(PoolRecord)


class StoredRecords:
    """The buckets of one server."""

    def __init__(self, server: MemoryServer) -> None:
        """Read `server`'s."""
        self._server = server

    def pool(self, name: str) -> PoolRecord | None:
        """A pool's record."""
        found: PoolRecord | None = self._latest(POOLS, pool_key(name), _pools)
        return found

    def instance(self, key: str) -> InstanceRecord | None:
        """An instance's record."""
        found: InstanceRecord | None = self._latest(INSTANCES, key, _instances)
        return found

    def node(self, key: str) -> NodeRecord | None:
        """A node's record."""
        found: NodeRecord | None = self._latest(NODES, key, _nodes)
        return found

    def instances(self) -> list[InstanceRecord]:
        """Every instance's record."""
        return list(self._all(INSTANCES, _instances))

    def nodes(self) -> Iterator[NodeRecord]:
        """Every node's record, in the order in which they were recorded."""
        return self._all(NODES, _nodes)

    def live_nodes(self) -> Iterator[NodeRecord]:
        """Nodes that are not gone, by their records."""
        return (each for each in self.nodes() if each.state != "terminated")

    def health(self) -> Iterator[HealthRecord]:
        """What the policy makes of each node."""
        return self._all(HEALTH, _health)

    def _latest(self, bucket: BucketSpec, key: str, of: "LimitedDecoder[Any]") -> Any:
        stored = self._server.state.streams[f"KV_{bucket.name}"].last(f"$KV.{bucket.name}.{key}")
        return of.decode(stored.data) if stored is not None and stored.data else None

    def _all(self, bucket: BucketSpec, of: "LimitedDecoder[Any]") -> Iterator[Any]:
        stream = self._server.state.streams[f"KV_{bucket.name}"]
        for sequence in stream.sequences(f"$KV.{bucket.name}.>"):
            if data := stream.messages[sequence].data:
                yield of.decode(data)
