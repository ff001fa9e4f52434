"""Who calls a tool, and the changes that were planned and wait for their confirmation.

A token names one plan: its request, who made it, and the revision of the record that it was made
for. It is valid once, for a short time, for its caller alone.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

from schemas.messages import encode
from services.fleet_client.fleet_client import FleetClient, Request, require_accepted
from services.primitives.errors import NavarchError

PLAN_SECONDS_MAX: Final = 300.0
"""How long a plan can be confirmed."""
PLANS_MAX: Final = 20
"""Of one caller; the oldest is dropped."""
CALLERS_MAX: Final = 200
DIGEST_BYTES: Final = 10
AGAIN: Final = "make the plan again with plan_change, and read it"
HISTORIES_MAX: Final = 2
"""Histories that are read at once: each may be a month of events. Further calls wait."""


class ChangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was shown to its caller."""

    verb: str
    pool: str
    about: str
    """The node or the pool."""
    request: Request
    revision: int
    """Of the node's or pool's record when the plan was made."""
    by: str
    expires: datetime


class _Kept(msgspec.Struct):
    plan: ChangePlan
    used: bool = False


class ChangePlans:
    """The plans of one process, by caller and token."""

    def __init__(self, key: bytes) -> None:
        """`key`: random; without it no token can be computed."""
        self._key = key
        self._kept: dict[str, dict[str, _Kept]] = {}

    def add(self, plan: ChangePlan) -> str:
        """Keep a plan; its token."""
        token = plan_token(self._key, plan)
        own = self._kept.setdefault(plan.by, {})
        own[token] = _Kept(plan)
        for plans, most in ((own, PLANS_MAX), (self._kept, CALLERS_MAX)):
            if len(plans) > most:
                del plans[next(iter(plans))]
        return token

    def take(self, token: str, by: str, now: datetime) -> ChangePlan:
        """The plan of a token, once; NavarchError with the reason where there is none."""
        kept = self._kept.get(by, {}).get(token)
        if kept is None:
            raise NavarchError(f"no plan has this token; nothing was changed: {AGAIN}")
        if kept.used:
            raise NavarchError(f"this token was used before; nothing was changed: {AGAIN}")
        if kept.plan.expires <= now:
            raise NavarchError(
                f"this token expired at {kept.plan.expires:%H:%M:%S} UTC; nothing was changed: "
                f"{AGAIN}"
            )
        kept.used = True
        return kept.plan


def plan_token(key: bytes, plan: ChangePlan) -> str:
    """Names the plan in words, and its whole content by a digest."""
    content = msgspec.structs.replace(plan, request=msgspec.Raw(encode(plan.request)))
    found = hashlib.blake2b(encode(content), key=key, digest_size=DIGEST_BYTES).hexdigest()
    return f"{plan.verb}-{plan.about}-{found}"


def require_current(plan: ChangePlan, revision: int) -> None:
    """Raise NavarchError where the record has changed since the plan was made."""
    if revision != plan.revision:
        raise NavarchError(
            f"{plan.about} has changed since this plan was made; nothing was changed by it: {AGAIN}"
        )


def expiry(now: datetime) -> datetime:
    """Until when a plan that is made now can be confirmed."""
    return now + timedelta(seconds=PLAN_SECONDS_MAX)


class ToolCaller(Protocol):
    """A caller of tools."""

    @property
    def name(self) -> str:
        """Whose plans are whose."""

    def sees(self, pool: str) -> bool:
        """Whether a pool is one of its own; an empty name: the whole fleet."""

    async def send(self, pool: str, verb: str, request: Request) -> msgspec.Struct:
        """Request a change; NavarchError where it is refused, or needs another role."""


@dataclass(frozen=True, slots=True)
class BusCaller:
    """The user whose credentials the connection has: the bus decides what it may do."""

    fleet: FleetClient

    @property
    def name(self) -> str:
        """One process serves one user."""
        return self.fleet.user

    def sees(self, _: str) -> bool:
        """Credentials of the bus are for every pool."""
        return True

    async def send(self, pool: str, verb: str, request: Request) -> msgspec.Struct:
        """As the command line sends it."""
        return require_accepted(await self.fleet.request(pool, verb, request))


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """What tools work with: the fleet, in one caller's name."""

    fleet: FleetClient
    caller: ToolCaller
    plans: ChangePlans
    now: Callable[[], datetime]
    histories: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HISTORIES_MAX))
