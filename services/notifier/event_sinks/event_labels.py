"""Reads the labels by which sinks filter: a node's as it was launched, or its pool's."""

from collections.abc import Mapping
from typing import Final

import msgspec

from schemas.messages import LimitedDecoder
from schemas.node_records import node_key
from schemas.pool_records import pool_key
from schemas.topology import NODES, POOLS
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus


class _Labelled(msgspec.Struct, frozen=True):
    """The part of a node's launch, or of a pool's settings, that is read."""

    labels: dict[str, str] = {}


class _Node(msgspec.Struct, frozen=True):
    launch: _Labelled | None = None


class _Pool(msgspec.Struct, frozen=True):
    spec: _Labelled | None = None


_nodes: Final = LimitedDecoder(_Node)
_pools: Final = LimitedDecoder(_Pool)


async def read_labels(bus: Bus, pool: str, node: str) -> Mapping[str, str]:
    """The labels of a node of a pool; without a node, or where it has no record, of the pool."""
    if node:
        found = readable_record(await bus.get(NODES, node_key(pool, node)), _nodes)
        if found is not None and found.launch is not None:
            return found.launch.labels
    record = readable_record(await bus.get(POOLS, pool_key(pool)), _pools)
    return record.spec.labels if record is not None and record.spec is not None else {}
