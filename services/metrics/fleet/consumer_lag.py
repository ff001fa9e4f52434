"""When a durable lags, and when it has caught up. Pure.

Bounds are asymmetric, so that a consumer at a bound is reported once: lagging above either bound,
caught up below half of both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas.fleet_events import ConsumerLag
from schemas.lag_settings import LagSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerBacklog:
    """The undelivered messages of one durable, as the server reports them."""

    stream: str
    durable: str
    messages: int
    """Not yet delivered to any replica; delivered and unacknowledged messages do not count."""
    seconds: float
    """Age of the oldest of them; 0 if there is none."""
    sequence: int
    """The last delivered stream sequence: part of the ID of the events about this state."""


def update_lagging(
    lagging: frozenset[str], states: Iterable[ConsumerBacklog], bounds: LagSettings, now: datetime
) -> tuple[frozenset[str], tuple[ConsumerLag, ...]]:
    """Return which durables lag now, and the events about those that changed."""
    found = set(lagging)
    events: list[ConsumerLag] = []
    for each in states:
        if each.durable in lagging:
            if each.messages <= bounds.messages // 2 and each.seconds <= bounds.age / 2:
                found.discard(each.durable)
                events.append(_event(each, "caught-up", "it keeps up again", now))
        elif each.messages > bounds.messages or each.seconds > bounds.age:
            found.add(each.durable)
            reason = (
                f"{each.messages} messages wait (limit {bounds.messages}), the oldest for "
                f"{each.seconds:.0f} s (limit {float(bounds.age):g} s)"
            )
            events.append(_event(each, "lagging", reason, now))
    return frozenset(found), tuple(events)


def _event(
    state: ConsumerBacklog, status: Literal["lagging", "caught-up"], reason: str, now: datetime
) -> ConsumerLag:
    return ConsumerLag(
        id=f"lag-{state.durable}-{status}-{state.sequence}",
        time=now,
        status=status,
        stream=state.stream,
        durable=state.durable,
        messages=state.messages,
        seconds=round(state.seconds, 3),
        reason=reason,
    )
