"""Finds the nodes that an operator names: in full, or by the beginning of one name."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from schemas.fleet_queries import NodeView, Query
from services.cli.fleet_connection import NodeAccess
from services.fleet_client.fleet_client import PAGE_NODES
from services.operator_text.quantities import first_of
from services.primitives.errors import AnswerError, NavarchError

NODES_MAX: Final = 1_000
"""Nodes that one command may name."""
AT_ONCE_MAX: Final = 16
SHOWN_MAX: Final = 5


def complete(text: str, names: Iterable[str]) -> str:
    """The one name that is this text or begins with it; NavarchError where none or several do."""
    found = sorted(each for each in names if text and each.startswith(text))
    if text in found:
        return text
    if not found:
        raise NavarchError(f"there is no node {text!r}; see navarch list")
    if len(found) > 1:
        shown = first_of(found, SHOWN_MAX)
        raise NavarchError(f"{text!r} is the beginning of several nodes: {shown}")
    return found[0]


async def full_name(fleet: NodeAccess, text: str, *, terminated: bool = False) -> str:
    """The name of the node whose name is this text or begins with it."""
    query = Query(terminated=terminated, limit=PAGE_NODES)
    return complete(text, (each.id for each in await fleet.nodes(query)))


async def find_node(fleet: NodeAccess, text: str) -> tuple[NodeView, bytes]:
    """One node with its recent faults, and the same as JSON."""
    try:
        return await fleet.node(text)
    except AnswerError:
        if (name := await full_name(fleet, text)) == text:
            raise
    return await fleet.node(name)


async def find_nodes(fleet: NodeAccess, texts: Sequence[str]) -> list[NodeView]:
    """Every node that is named, each once; NavarchError if one of them cannot be found."""
    if len(texts) > NODES_MAX:
        raise NavarchError(f"{len(texts)} nodes are named; at most {NODES_MAX} may be")
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def find(text: str) -> NodeView:
        async with slots:
            return (await find_node(fleet, text))[0]

    found = await asyncio.gather(*map(find, dict.fromkeys(texts)))
    return list({each.id: each for each in found}.values())
