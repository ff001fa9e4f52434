"""Credentials files: a user's token and its key's seed, as the server's clients read them."""

import base64
import hashlib
import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

CREDENTIALS: Final = """\
-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
REPORT_FROM: Final = 3 / 4
"""Share of their life after which heartbeats say when they expire: they were not renewed."""
ROLE_TAG: Final = "role:"
"""Before the role, in a tag of a token."""


def claims_of(text: str) -> dict[str, Any]:
    """The claims in a credentials file; nothing where it is none. Nothing is verified."""
    return claims_of_token(token_in(text))


def token_in(text: str) -> str:
    """Return the token in a credentials file; empty where it holds none."""
    for before, line in itertools.pairwise(text.splitlines()):
        if before.startswith("-----BEGIN NATS USER JWT"):
            return line
    return ""


def claims_of_token(text: str) -> dict[str, Any]:
    """The claims in a token; nothing where it is none. Nothing is verified."""
    try:
        body = text.split(".")[1]
        found = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def life(file: str) -> tuple[float, float]:
    """Return when a credentials file's token was issued and expires; zeros where it does not."""
    try:
        claims = claims_of(Path(file).read_text(encoding="utf-8"))
        return float(claims["iat"]), float(claims["exp"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, 0.0


def reported_expiry(issued: float, expires: float, now: float) -> datetime | None:
    """When credentials expire, if heartbeats must say so. Pure."""
    if not expires or now < issued + (expires - issued) * REPORT_FROM:
        return None
    return datetime.fromtimestamp(expires, UTC)


def seed_in(text: str) -> str:
    """The seed of the key in a credentials file; empty where it holds none."""
    lines = text.partition("BEGIN USER NKEY SEED")[2].splitlines()
    return "".join(lines[1:2]).strip()


def is_of_node(text: str, role: str, pool: str, node: str) -> bool:
    """Return whether a credentials file is this very node's, of this role."""
    return bool(claims_of(text).get("name") == f"{role} {pool}/{node}")


def message_id_key(file: str) -> bytes:
    """Return a secret of a credentials file's owner, the same for all replicas of a service."""
    seed = seed_in(Path(file).read_text(encoding="utf-8"))
    return hashlib.sha256(b"message ids" + seed.encode()).digest()


def name_of(file: str) -> str:
    """The user's name in a credentials file; empty where it names none."""
    try:
        return str(claims_of(Path(file).read_text(encoding="utf-8")).get("name", ""))
    except (OSError, ValueError):
        return ""


def issuer_of(file: str) -> str:
    """The public key that signed the token in a credentials file; empty where it holds none."""
    try:
        return str(claims_of(Path(file).read_text(encoding="utf-8")).get("iss", ""))
    except (OSError, ValueError):
        return ""


def role_and_key(file: str) -> tuple[str, str]:
    """The role and the public key in a credentials file; empty where it names none."""
    try:
        claims = claims_of(Path(file).read_text(encoding="utf-8"))
        tags = claims["nats"].get("tags", ())
        role = next(each for each in tags if each.startswith(ROLE_TAG))
        return role.removeprefix(ROLE_TAG), str(claims["sub"])
    except (OSError, ValueError, KeyError, AttributeError, StopIteration):
        return "", ""
