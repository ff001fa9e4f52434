"""Selects which nodes a caller asks for, and since when. Pure."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.duration import parse_duration
from schemas.fleet_queries import NodeView

FIELDS: Final = ("pool", "provider", "region", "zone", "status", "health")


def time_since(text: str, now: datetime) -> datetime:
    """Read a duration before now, or a time, which may lack its zone; ValueError for neither."""
    try:
        return now - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a duration (10m, 2h) nor a time (2026-11-21T01:35:00Z)"
        ) from None


class NodeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Names what a node must have; an empty field allows anything."""

    pool: str = ""
    provider: str = ""
    region: str = ""
    zone: str = ""
    status: str = ""
    health: str = ""
    pools: Collection[str] | None = None
    """Pools with the labels asked for; None: no label was."""
    nodes: Collection[str] | None = None
    """Those on which the job asked for runs; None: no job was."""

    @property
    def selects_some(self) -> bool:
        """Return whether the filter can leave out nodes of the pool that is asked for."""
        asked = (self.pools, self.nodes)
        return asked != (None, None) or any(getattr(self, name) for name in FIELDS[1:])

    def matches(self, node: NodeView) -> bool:
        """Return whether a node is one of those that the filter selects."""
        if self.pools is not None and node.pool not in self.pools:
            return False
        if self.nodes is not None and node.id not in self.nodes:
            return False
        wanted = ((name, getattr(self, name)) for name in FIELDS)
        return all(value in ("", getattr(node, name)) for name, value in wanted)


def labels_asked(texts: Iterable[str]) -> dict[str, str]:
    """Read `KEY=VALUE` of each label; ValueError for what is none."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"label {text!r} is not KEY=VALUE")
        found[key] = value
    return found


def has_labels(labels: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Return whether a pool has all labels that are asked for."""
    return all(labels.get(key) == value for key, value in asked.items())
