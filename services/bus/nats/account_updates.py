"""Reads and replaces the accounts' tokens of a running server, as the system account's user."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from schemas.permissions import inbox
from schemas.settings import NatsSettings
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import (
    CLAIMS_UPDATE,
    REVOKER,
    SERVERS_STATE,
    claims_lookup,
    connections_of,
)
from services.bus.port import Reply
from services.primitives.errors import BusError

ANSWER_SECONDS_MAX: Final = 5.0
SILENCE_SECONDS: Final = 0.5
"""How long another server of a cluster may take to answer, after the last that did."""
CONNECTIONS_PAGE: Final = 256


class UntrustedKeyError(BusError):
    """A server does not trust the operator's key that signed an account's token."""


class Requests(Protocol):
    """Declares what is used of the connection."""

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> Reply:
        """Send a request."""

    async def request_all(self, subject: str, data: bytes, silence_seconds: float) -> list[bytes]:
        """Send a request that every server of a cluster answers."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A client's connection, as a server reports it."""

    authorized_user: str = ""
    """Its public key."""
    issuer_key: str = ""
    """The key that signed its token."""
    ip: str = ""
    tags: list[str] = []


def revoker_options(nats: NatsSettings, directory: Path) -> ConnectOptions:
    """Return how to connect as that user, whose credentials are in the directory of the keys."""
    settings = msgspec.structs.replace(nats, creds_file=str(directory / f"{REVOKER}.creds"))
    return ConnectOptions(settings=settings, name=REVOKER, inbox_prefix=inbox(REVOKER))


async def read_account(server: Requests, account: str) -> str:
    """The account's token that the server has; empty if it has none."""
    reply = await server.request(claims_lookup(account), b"", timeout_seconds=ANSWER_SECONDS_MAX)
    return reply.data.decode()


async def replace_accounts(server: Requests, tokens: Sequence[str]) -> None:
    """Give the servers accounts' tokens; BusError if one refuses them, or would at its restart."""
    signers = {claims_of_token(each)["iss"] for each in tokens}
    for name, trusted in (await trusted_keys(server)).items() if tokens else ():
        if untrusted := signers - trusted:
            # It would store the token, and then have no such account.
            raise UntrustedKeyError(
                f"nats-server {name} does not trust key {min(untrusted)} yet: give it the new "
                "accounts.conf, restart it, and run this again"
            )
    for token in tokens:
        data = token.encode()
        reply = await server.request(CLAIMS_UPDATE, data, timeout_seconds=ANSWER_SECONDS_MAX)
        if b'"code":200' not in reply.data:
            account = claims_of_token(token)["name"]
            raise BusError(f"the server refuses account {account}: {reply.data[:500]!r}")


async def trusted_keys(server: Requests) -> dict[str, set[str]]:
    """Each server's name, with the operators' public keys whose signatures it accepts."""
    found: dict[str, set[str]] = {}
    for data in await server.request_all(SERVERS_STATE, b"{}", SILENCE_SECONDS):
        answer = msgspec.json.decode(data)
        keys = found.setdefault(answer["server"]["name"], set())
        for operator in answer["data"].get("trusted_operators_claim", ()):
            keys |= {operator["sub"], *operator["nats"].get("signing_keys", ())}
    if not found:
        raise BusError("no nats-server says which operator it trusts")
    return found


async def count_connections(server: Requests, account: str) -> int:
    """Return how many connections an account has, on all servers together."""
    query = msgspec.json.encode({"limit": 1})
    answers = await server.request_all(connections_of(account), query, SILENCE_SECONDS)
    return sum(int(msgspec.json.decode(each)["data"]["total"]) for each in answers)


async def connections(server: Requests, account: str) -> list[Connection]:
    """Return every connection of an account, on all servers."""
    found: list[Connection] = []
    full, offset = True, 0
    while full:
        query = {"auth": True, "limit": CONNECTIONS_PAGE, "offset": offset}
        pages = [
            msgspec.convert(msgspec.json.decode(data)["data"]["connections"], list[Connection])
            for data in await server.request_all(
                connections_of(account), msgspec.json.encode(query), SILENCE_SECONDS
            )
        ]
        found += [each for page in pages for each in page]
        full, offset = (
            any(len(each) == CONNECTIONS_PAGE for each in pages),
            offset + CONNECTIONS_PAGE,
        )
    return found
