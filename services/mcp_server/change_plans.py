"""Changes that were planned and wait for their confirmation. Pure: the time is an argument.

A token names one plan: its request, who made it, and the revision of the record that it was made
for. It is valid once, for a short time, for its caller alone.
"""

import hashlib
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.messages import encode
from schemas.operator_requests import Request
from services.primitives.errors import NavarchError

PLAN_SECONDS_MAX: Final = 300.0
"""How long a plan can be confirmed."""
PLANS_MAX: Final = 20
"""Of one caller; the oldest is dropped."""
CALLERS_MAX: Final = 200
DIGEST_BYTES: Final = 10
AGAIN: Final = "make the plan again with plan_change, and read it"


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
    """Keeps the plans of one process, by caller and token."""

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
    """Return until when a plan that is made now can be confirmed."""
    return now + timedelta(seconds=PLAN_SECONDS_MAX)
