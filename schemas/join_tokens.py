"""Tokens with which a machine that exists joins a pool, and what is asked and recorded of them.

A token names the pool and the node, holds for one machine, and ends. It carries the authority of
the bus's certificates, so that the machine speaks to no other bus.
"""

import base64
import hashlib
import zlib
from typing import Annotated, Final

import msgspec

from schemas import subjects
from schemas.messages import Record
from schemas.value_limits import AgentKey, Name, Token, UtcTime

JOIN: Final = "join"
JOIN_REVOKE: Final = "join-revoke"
LEAVE: Final = "leave"
JOIN_ORDERS: Final = (JOIN, JOIN_REVOKE, LEAVE)
"""Orders of operators that the provisioner performs; they are the bus's alone."""
JOIN_SUBJECTS: Final = tuple(map(subjects.order_wildcard, JOIN_ORDERS))
JOIN_TOKENS: Final = "join-tokens"
"""The query for the tokens that hold."""
PREFIX: Final = "navarch-join-1."
"""What every token begins with; the number is of its form."""
TOKEN_CHARS_MAX: Final = 16_384
CONTENT_BYTES_MAX: Final = 65_536
NODES_MAX: Final = 256
"""Tokens that one order makes."""
VALID_SECONDS_DEFAULT: Final = 3_600.0
VALID_SECONDS_MAX: Final = 7 * 86_400.0
SECRET_CHARS_MAX: Final = 128


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a token says to the machine."""

    url: str
    """Of the bus."""
    pool: str
    node: str
    secret: str
    """Proves to the provisioner that the machine has this token."""
    credentials: str
    """With which the machine may send the bus one request, until the token ends."""
    authority: str = ""
    """Certificate authorities of the bus, as PEM; empty: the machine's own are used."""
    issued_at: UtcTime
    expires_at: UtcTime
    settings: dict[str, str] = {}
    """Settings of the agent that the fleet states, by their variables."""


class JoinRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Requests a token for each of some nodes."""

    pool: Token
    nodes: Annotated[tuple[Token, ...], msgspec.Meta(min_length=1, max_length=NODES_MAX)]
    valid_seconds: Annotated[float, msgspec.Meta(gt=0, le=VALID_SECONDS_MAX)] = (
        VALID_SECONDS_DEFAULT
    )
    again: bool = False
    """Whether a node that has joined may join again, with another key in place of its own."""
    by: Name = ""


class IssuedToken(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one token as text."""

    node: Token
    token: str


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a request for tokens."""

    tokens: tuple[IssuedToken, ...]
    url: str
    """Where machines reach the bus."""
    fingerprint: str = ""
    """SHA-256 of the authorities in the tokens; empty: the machine's own are used."""
    expires_at: UtcTime


class NodeOfPool(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Names the node whose token is revoked, or that leaves."""

    pool: Token
    node: Token
    by: Name = ""


class ForgetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Says which node is forgotten, or would be."""

    pool: Token
    node: Token
    provider: str
    is_listed: bool
    """Whether its provider goes on listing the machine, which an operator alone adopts again."""
    has_agent: bool
    """Whether an agent has joined from it, whose credentials are refused."""


class JoinRecord(Record, frozen=True, kw_only=True):
    """LEASES `provisioner.join.<pool>.<node>`: the last token of a node; it expires with it."""

    pool: Token
    node: Token
    digest: str
    """SHA-256 of its secret."""
    made_at: UtcTime
    expires_at: UtcTime
    by: Name = ""
    again: bool = False
    agent_key: AgentKey = ""
    """Public key of the machine that used it; empty: none has."""
    used_at: UtcTime | None = None


def encode_token(token: JoinToken) -> str:
    """Return a token as one word. Pure."""
    data = zlib.compress(msgspec.json.encode(token), 9)
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_token(text: str) -> JoinToken:
    """Return what a token says; ValueError where it is none. Pure."""
    word = "".join(text.split())
    if not word.startswith(PREFIX) or len(word) > TOKEN_CHARS_MAX:
        raise ValueError(f"a token begins with {PREFIX}")
    body = word.removeprefix(PREFIX)
    reader = zlib.decompressobj()
    try:
        packed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        data = reader.decompress(packed, CONTENT_BYTES_MAX)
        return msgspec.json.decode(data if reader.eof else b"", type=JoinToken)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"it was changed or cut ({error})") from error


def digest_of(secret: str) -> str:
    """Return what is recorded of a secret. Pure."""
    return hashlib.sha256(secret.encode()).hexdigest()


def fingerprint_of(authority: str) -> str:
    """Return the fingerprint by which people compare authorities; empty: there are none. Pure."""
    return hashlib.sha256(authority.strip().encode()).hexdigest() if authority else ""
