"""Reads and replaces the accounts' tokens of a running server, as the system account's user."""

from pathlib import Path
from typing import Final, Protocol

import msgspec

from schemas.permissions import inbox
from schemas.settings import NatsSettings
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import CLAIMS_UPDATE, REVOKER, claims_lookup
from services.bus.port import Reply
from services.primitives.errors import BusError

ANSWER_SECONDS_MAX: Final = 5.0


class Requests(Protocol):
    """What is used of the connection."""

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> Reply:
        """Send a request."""
        ...


def revoker_options(nats: NatsSettings, directory: Path) -> ConnectOptions:
    """How to connect as that user, whose credentials are in the directory of the keys."""
    settings = msgspec.structs.replace(nats, creds_file=str(directory / f"{REVOKER}.creds"))
    return ConnectOptions(settings=settings, name=REVOKER, inbox_prefix=inbox(REVOKER))


async def read_account(server: Requests, account: str) -> str:
    """The account's token that the server has; empty if it has none."""
    reply = await server.request(claims_lookup(account), b"", timeout_seconds=ANSWER_SECONDS_MAX)
    return reply.data.decode()


async def replace_account(server: Requests, token: str) -> None:
    """Give the server an account's token; BusError if it refuses it."""
    reply = await server.request(CLAIMS_UPDATE, token.encode(), timeout_seconds=ANSWER_SECONDS_MAX)
    if b'"code":200' not in reply.data:
        name = claims_of_token(token)["name"]
        raise BusError(f"the server refuses account {name}: {reply.data[:500]!r}")
