"""The query `node-work`: what the workload system says runs on nodes that are in service."""

from typing import Annotated, Final

import msgspec

from schemas.value_limits import Token

NODE_WORK: Final = "node-work"
NODES_MAX: Final = 500
"""Nodes of one question."""


class NodeWorkQuery(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Asks which of these nodes have no work."""

    pool: Token
    nodes: Annotated[tuple[Token, ...], msgspec.Meta(max_length=NODES_MAX)]


class NodeWorkAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the pool's workload systems say, now."""

    idle: tuple[Token, ...] = ()
    """Those on which all of them say that nothing runs."""
    unknown: str = ""
    """Why nothing is known of the others, or of some of them; empty: they have work."""
