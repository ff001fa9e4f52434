"""Declares what permissions are made of: accounts, rules of roles, traffic between accounts."""

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from schemas.stream_specs import MESSAGE_BYTES_MAX, DurableSpec

SUBSCRIPTIONS_MAX: Final = 1_000
POOL_TAG: Final = "{{tag(pool)}}"
NODE_TAG: Final = "{{tag(node)}}"
"""The server substitutes the tags of the client's own credentials."""


class Account(enum.StrEnum):
    """A subject space of its own on the server: nothing passes between two but by a `Share`."""

    FLEET = "fleet"
    """The streams, and the administrator alone."""
    SERVICES = "services"
    """The services."""
    AGENTS = "agents"
    """Agents, and nodes that ask for their agent's credentials."""
    USERS = "users"
    """Operators and viewers."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of one role in its account; a denial wins."""

    account: Account = Account.FLEET
    publish: tuple[str, ...] = ()
    publish_not: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    subscribe_not: tuple[str, ...] = ()
    answers: bool = False
    """It may answer each message that it gets, once, wherever the sender wants the answer."""
    payload_bytes_max: int = MESSAGE_BYTES_MAX
    subscriptions_max: int = SUBSCRIPTIONS_MAX
    connections: tuple[str, ...] = ("STANDARD", "WEBSOCKET")
    """As what it may connect, in nats-server's words: a client, or (`LEAFNODE`) another server."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Names what one account offers to others.

    A request crosses with a reply subject that the server makes, so that no client can have an
    answer sent to a subject of another account.
    """

    subject: str
    owner: Account
    importers: tuple[Account, ...]
    live: bool = False
    """False: requests to the owner. True: the owner's messages, as they are published."""
    many: bool = False
    """A request has many answers."""
    reply_seconds: float = 60.0
    """How long the server remembers a request that has no answer, or none any more of `many`.

    It has 800 bytes for each; a client asks some ten thousand times a second.
    """
    exported: bool = True
    """False: part of another share of the same owner, which the server refuses to export twice."""
    local_subject: str = ""
    """Its name at the importers, if it is another."""


def acknowledgements(durables: Iterable[DurableSpec]) -> Iterable[str]:
    """Yield the subjects of acknowledgements, in both forms of the server's reply subject."""
    for each in durables:
        yield f"$JS.ACK.{each.stream}.{each.name}.>"
        yield f"$JS.ACK.*.*.{each.stream}.{each.name}.>"
