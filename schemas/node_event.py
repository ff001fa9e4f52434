"""Declares what every event about a node has."""

from schemas.messages import Message
from schemas.value_limits import Token


class NodeEvent(Message, frozen=True, kw_only=True):
    """Declares the fields of every event about a node."""

    pool: Token
    node: Token
