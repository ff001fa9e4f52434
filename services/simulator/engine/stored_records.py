"""The services' records, read from the server without the bus."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import LimitedDecoder
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.stream_specs import BucketSpec
from schemas.topology import HEALTH, INSTANCES, NODES, POOLS, SAGAS
from services.bus.memory.memory_server import MemoryServer
from services.bus.port import Stored

T = TypeVar("T", bound=msgspec.Struct)
DECODED_MAX: Final = 20_000
"""Decoded records that are kept."""

_instances = LimitedDecoder(InstanceRecord)
_nodes = LimitedDecoder(NodeRecord)
_health = LimitedDecoder(HealthRecord)
_pools = LimitedDecoder(PoolRecord)


class StoredRecords:
    """The buckets of one server."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def pool(self, name: str) -> PoolRecord | None:
        """A pool's record."""
        return self._latest(POOLS, pool_key(name), _pools)

    def instance(self, key: str) -> InstanceRecord | None:
        """An instance's record."""
        return self._latest(INSTANCES, key, _instances)

    def node(self, key: str) -> NodeRecord | None:
        """A node's record."""
        return self._latest(NODES, key, _nodes)

    def node_revision(self, key: str) -> int:
        """The revision of a node's record; 0: there is none."""
        stream = self._server.state.streams.get(f"KV_{NODES.name}")
        stored = stream.last(f"$KV.{NODES.name}.{key}") if stream else None
        return stored.sequence if stored is not None else 0

    def has_log(self, saga: str) -> bool:
        """Whether anything of a saga's log is stored."""
        stream = self._server.state.streams.get(SAGAS.name)
        return stream is not None and stream.last(subjects.saga_tree(saga)) is not None

    def instances(self) -> list[InstanceRecord]:
        """Every instance's record."""
        return list(self._all(INSTANCES, _instances))

    def nodes(self) -> Iterator[NodeRecord]:
        """Every node's record, in the order of recording."""
        return self._all(NODES, _nodes)

    def live_nodes(self) -> Iterator[NodeRecord]:
        """Nodes whose records are not terminated."""
        return (each for each in self.nodes() if each.state != "terminated")

    def health_of(self, key: str) -> HealthRecord | None:
        """A node's health record."""
        return self._latest(HEALTH, key, _health)

    def health(self) -> Iterator[HealthRecord]:
        """Every node's health record."""
        return self._all(HEALTH, _health)

    def _latest(self, bucket: BucketSpec, key: str, of: LimitedDecoder[T]) -> T | None:
        stream = self._server.state.streams.get(f"KV_{bucket.name}")
        stored = stream.last(f"$KV.{bucket.name}.{key}") if stream else None
        return _decode(of, stored.data) if stored is not None and stored.data else None

    def _all(self, bucket: BucketSpec, of: LimitedDecoder[T]) -> Iterator[T]:
        stream = self._server.state.streams.get(f"KV_{bucket.name}")
        if stream is None:
            return
        for sequence in stream.sequences(f"$KV.{bucket.name}.>"):
            if data := stream.messages[sequence].data:
                yield _decode(of, data)


def written_pool(stream: str, stored: Stored) -> PoolRecord | None:
    """The pool's record that this write stores; None: it stores something else."""
    is_pool = stream == f"KV_{POOLS.name}" and f".{POOLS.name}.pool." in stored.subject
    found: PoolRecord | None = _decode(_pools, stored.data) if is_pool and stored.data else None
    return found


@lru_cache(maxsize=DECODED_MAX)
def _decode(of: LimitedDecoder[T], data: bytes) -> T:
    """Decode a record, which is immutable; checks read the same ones again and again."""
    return of.decode(data)
