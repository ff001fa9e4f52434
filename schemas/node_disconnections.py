"""Requests to disconnect a node's agent from the bus, and to readmit it, with their answer."""

import msgspec

from schemas.value_limits import Name, Token


class DisconnectRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A service requests it of a node that floods the bus (`query.disconnect-node`)."""

    pool: Token
    node: Token
    reason: str


class ReadmitRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An operator accepts a node's credentials again (`order.readmit.<user>`)."""

    pool: Token
    node: Token
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""


class DisconnectAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether a node is disconnected."""

    disconnected: bool
    reason: str = ""
    """Why it is not."""
