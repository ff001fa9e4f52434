"""What a sick node has, and what it may share with others, as every service calls it. Pure."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

from schemas.enums import IncidentScope
from schemas.node_records import NodeRecord

SILENCE: Final = "silence"
"""What a node has whose heart stopped and that is not known to have anything else."""


def called(kind: str, code: int) -> str:
    """What a node has, by its fault's kind and code, as incidents tell it apart: `xid-79`.

    Empty where the kind is: a code alone says nothing.
    """
    return f"{kind}-{code}" if kind and code else kind


def in_words(what: str) -> str:
    """The same for people: `XID 79`, `fallen off bus`, `silence`."""
    kind, _, code = what.partition("-")
    shown = kind.upper() if kind in ("xid", "sxid") else kind.replace("_", " ")
    return f"{shown} {code}".strip()


def _provider(node: NodeRecord) -> str:
    return node.launch.provider if node.launch else ""


SHARED: Final[Mapping[IncidentScope, Callable[[NodeRecord], str]]] = {
    "rack": attrgetter("rack"),
    "zone": attrgetter("zone"),
    "driver": attrgetter("driver_version"),
    "provider": _provider,
    "job": attrgetter("health_job"),
    "pool": lambda _: "",
}
"""Reads what a node has of something that may be in common."""


def shared(node: NodeRecord, scope: IncidentScope) -> str:
    """What a node has of something that may be in common; empty: unknown, or the pool as such."""
    return SHARED[scope](node)
