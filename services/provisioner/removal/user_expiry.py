"""Reports people whose credentials end soon: they connect seldom, so no connection can warn them.

The list is `users.json` of `navarch nats-config`, which has no secret, beside the file with which
the provisioner revokes credentials. Without the list nothing is reported.
"""

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from schemas.fleet_queries import CurrentFailure, Expiry
from schemas.permissions import USER_ROLES
from schemas.settings import NatsSettings
from schemas.value_limits import UtcTime
from services.bus.nats.connection_expiry import expiring
from services.primitives.clock import Clock
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

FILE: Final = "users.json"
OBSERVER: Final = "users"
LOOK_SECONDS: Final = 60.0


class KnownUser(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is read of one user."""

    name: str
    role: str
    expires_at: UtcTime
    revoked_at: UtcTime | None = None


def endings(users: Iterable[KnownUser], now: datetime) -> Iterator[Expiry]:
    """Yield when the credentials of people end, of each name those that end last. Pure.

    Those that have ended are no longer reported: who does not renew them does not need them.
    """
    last = {
        each.name: each
        for each in sorted(users, key=lambda user: user.expires_at)
        if each.role in USER_ROLES and each.revoked_at is None and each.expires_at > now
    }
    for each in last.values():
        yield Expiry(
            what=f"the credentials of {each.name} ({each.role})",
            at=each.expires_at,
            remedy=f"`navarch nats-config user renew {each.name}` where the bus's keys are, and "
            f"hand the file to {each.name}; nothing is restarted",
        )


class UserExpiry:
    """Reads the list again and again: it is written again when a person is added or renewed."""

    def __init__(self, nats: NatsSettings, clock: Clock, failures: FailureRegister) -> None:
        self._file = Path(nats.revocation_file).parent / FILE
        self._within = nats.expiry_warning
        self._clock = clock
        self._failures = failures

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            if self._file.exists():
                self._failures.update(OBSERVER, self._found(self._file))
            await self._clock.sleep(LOOK_SECONDS)

    def _found(self, file: Path) -> list[CurrentFailure]:
        try:
            users = msgspec.json.decode(file.read_bytes(), type=list[KnownUser])
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be read: %s", file, error)
            return []
        now = self._clock.now()
        return expiring(endings(users, now), now, self._within)
