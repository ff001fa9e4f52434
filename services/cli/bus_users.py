"""Lists who was given credentials by hand: people, nodes without a provider, pools' pods. Pure.

Each has a role and an end, and can be revoked.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.account_rules import Account, Rules
from schemas.names import token
from schemas.permissions import (
    AGENT,
    POD,
    SERVICES,
    USER_ROLES,
)
from schemas.value_limits import UtcTime
from services.primitives.errors import NavarchError

KEPT: Final = timedelta(days=90)
"""How long a user is listed after the end of its credentials."""
RESERVED: Final = ("agent", "bootstrap", "gateway", "pod", "region")


class BusUser(msgspec.Struct, frozen=True, kw_only=True):
    """One person, program or node, and its credentials; the seed is in the file handed over."""

    name: str
    """Of a node: `POOL/NODE`; of the agents in pods of a pool's nodes: `POOL/*`; of a region's
    server: `region-NAME`."""
    role: str
    key: str
    """Public key."""
    signer: str = ""
    """Public key of the role's key that signed them."""
    issued_at: UtcTime
    expires_at: UtcTime
    revoked_at: UtcTime | None = None

    def state(self, at: datetime) -> str:
        """Return whether the user's credentials are valid."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at <= at else "valid"


def require_role(role: str) -> None:
    """Raise NavarchError unless a person may have this role."""
    if role not in USER_ROLES:
        raise NavarchError(f"--role {role!r}: there is {', '.join(USER_ROLES)}")


def add(users: Iterable[BusUser], user: BusUser) -> list[BusUser]:
    """Add a user; raise NavarchError for a name that cannot be added."""
    token(user.name, "user")
    if user.name in SERVICES or user.name.partition("-")[0] in RESERVED:
        raise NavarchError(f"{user.name} is the name of a service or an agent: choose another")
    found = list(users)
    for each in found:
        if each.name == user.name and each.state(user.issued_at) == "valid":
            raise NavarchError(
                f"{user.name} has credentials until {each.expires_at:%Y-%m-%d %H:%M} UTC: revoke "
                f"them first (`navarch nats-config user revoke {user.name}`), or add a user of "
                "another name"
            )
    return [*found, user]


def add_node(users: Iterable[BusUser], user: BusUser) -> list[BusUser]:
    """Add a node's credentials; later ones for the same key take the place of earlier ones."""
    return [*(each for each in users if each.key != user.key), user]


def credentials_file(user: BusUser) -> str:
    """The name of the file that is handed over."""
    if user.role == AGENT:
        return f"{AGENT}-{user.name.replace('/', '-')}.creds"
    if user.role == POD:
        return f"{POD}-{user.name.partition('/')[0]}.creds"
    return f"{user.name}.creds"


def revoke(users: Iterable[BusUser], name: str, at: datetime) -> list[BusUser]:
    """Revoke all valid credentials of a name; raise NavarchError where there are none."""
    found = list(users)
    if not any(each.name == name and each.state(at) == "valid" for each in found):
        known = sorted({each.name for each in found if each.state(at) == "valid"})
        raise NavarchError(
            f"there is no user {name!r} with valid credentials; there is: "
            f"{', '.join(known) or 'none'}"
        )
    return [
        msgspec.structs.replace(each, revoked_at=at)
        if each.name == name and each.state(at) == "valid"
        else each
        for each in found
    ]


def current(users: Iterable[BusUser], at: datetime) -> list[BusUser]:
    """The users without those whose credentials ended long ago."""
    return [each for each in users if each.expires_at > at - KEPT]


def revocations(
    users: Sequence[BusUser], roles: Mapping[str, Rules], at: datetime
) -> dict[Account, dict[str, int]]:
    """Account -> public keys whose tokens it refuses, until they have expired.

    Expired ones are listed a day longer, because the server's clock may be behind.
    """
    found: dict[Account, dict[str, int]] = {}
    for each in users:
        if each.revoked_at is not None and each.expires_at > at - timedelta(days=1):
            refused = found.setdefault(roles[each.role].account, {})
            refused[each.key] = int(each.expires_at.timestamp())
    return found
