"""When a durable lags, and when it has caught up. Pure.

Bounds are asymmetric, so that a consumer at the edge is told of once: lagging above either bound,
caught up below half of both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas.fleet_events import ConsumerLag
from schemas.settings import LagSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One durable, as the server has it now."""

    stream: str
    durable: str
    messages: int
    """Not yet taken by any replica; what is being worked on does not count."""
    seconds: float
    """Age of the oldest of them; 0 where there is none."""
    sequence: int
    """The stream sequence up to which messages were taken: names the events of a look."""


def decide(
    lagging: frozenset[str], looks: Iterable[Look], bounds: LagSettings, now: datetime
) -> tuple[frozenset[str], tuple[ConsumerLag, ...]]:
    """Which durables lag now, and what is to be told of it."""
    found = set(lagging)
    events: list[ConsumerLag] = []
    for look in looks:
        if look.durable in lagging:
            if look.messages <= bounds.messages // 2 and look.seconds <= bounds.age / 2:
                found.discard(look.durable)
                events.append(_event(look, "caught-up", "it keeps up again", now))
        elif look.messages > bounds.messages or look.seconds > bounds.age:
            found.add(look.durable)
            reason = (
                f"{look.messages} messages wait ({bounds.messages} may), the oldest for "
                f"{look.seconds:.0f} s ({float(bounds.age):g} may pass)"
            )
            events.append(_event(look, "lagging", reason, now))
    return frozenset(found), tuple(events)


def _event(
    look: Look, status: Literal["lagging", "caught-up"], reason: str, now: datetime
) -> ConsumerLag:
    return ConsumerLag(
        id=f"lag-{look.durable}-{status}-{look.sequence}",
        time=now,
        status=status,
        stream=look.stream,
        durable=look.durable,
        messages=look.messages,
        seconds=round(look.seconds, 3),
        reason=reason,
    )
