"""Which of a launch's offerings is taken now, whether it waits, or why there is nothing. Pure.

What is preferred comes first: together with the pool's other nodes, then the strategy's score, then
the pool's own order. What is exhausted is passed over; what may be tried again is tried by one
launch, whose failure costs it one call. A launch waits only where nothing else is left, and only
for what passes by itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, assert_never

from schemas.enums import LaunchRefusal, ProviderErrorKind
from schemas.offering_records import BlockRecord
from services.provisioner.offerings.offering_blocks import Blocked, BlockState, Free, ProbeDue
from services.provisioner.offerings.offering_catalogue import Candidate
from services.provisioner.provider_client.provider_errors import RULES

NAMED_MAX: Final = 6
"""Offerings that a sentence names."""
PACE_FIRST: Final = 4
PACE_MAX: Final = 1024
PACE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """A candidate with what decides about it."""

    candidate: Candidate
    score: float
    near: int
    """How many of the pool's instances are where it would be."""
    standing: BlockState
    price: float | None
    """Dollars per hour; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLimit:
    """What a launch may cost, and the word and the sentence for one that costs more."""

    dollars: float
    refusal: LaunchRefusal
    because: str


@dataclass(frozen=True, slots=True)
class TakeOffering:
    """Launch this; `claims`: keys of the blocks that are tried with it."""

    weighed: ScoredCandidate
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitForOffering:
    """Look again then, or when something changes."""

    until: datetime | None
    blocked: tuple[BlockRecord, ...] = ()
    """What is waited for; none: it is merely not this launch's turn."""


@dataclass(frozen=True, slots=True)
class RefuseLaunch:
    """Nothing is within what the launch may cost, or nothing is offered."""

    refusal: LaunchRefusal
    reason: str


@dataclass(frozen=True, slots=True)
class FailLaunch:
    """Whatever there is is blocked by something that does not pass by itself."""

    kind: ProviderErrorKind
    reason: str


Decision = TakeOffering | WaitForOffering | RefuseLaunch | FailLaunch


def choose(
    weighed: Iterable[ScoredCandidate],
    rooms: Sequence[PriceLimit],
    fallback_at: datetime | None,
    may_begin: Sequence[Candidate],
    now: datetime,
) -> Decision:
    """Decide; `may_begin`: the free candidates whose pace allows one more call now."""
    blocked: list[BlockRecord] = []
    final: list[BlockRecord] = []
    dear: list[tuple[LaunchRefusal, str]] = []
    untils: list[datetime] = []
    for each in sorted(weighed, key=_preference):
        if (why := _why_too_expensive(each, rooms)) is not None:
            dear.append(why)
            continue
        if each.candidate.fallback and (fallback_at is None or now < fallback_at):
            untils += [fallback_at] if fallback_at is not None else []
            continue
        match each.standing:
            case Free():
                return TakeOffering(each) if each.candidate in may_begin else WaitForOffering(None)
            case ProbeDue(keys):
                return TakeOffering(each, keys)
            case Blocked(until, record):
                passes = RULES[record.kind].passes
                (blocked if passes else final).append(record)
                untils += [until] if passes else []
            case _:
                assert_never(each.standing)
    if untils:
        return WaitForOffering(min(untils), tuple(dict.fromkeys(blocked)))
    if final:
        return FailLaunch(final[0].kind, describe_blocks(final))
    if dear:
        return RefuseLaunch(*dear[0])
    return RefuseLaunch(
        "nothing-offered",
        "none of the pool's providers has the instance type on the market that it asks for",
    )


def _preference(each: ScoredCandidate) -> tuple[bool, int, float, int]:
    return (each.candidate.fallback, -each.near, -each.score, each.candidate.position)


def _why_too_expensive(
    each: ScoredCandidate, rooms: Sequence[PriceLimit]
) -> tuple[LaunchRefusal, str] | None:
    limits = list(rooms)
    if each.candidate.max_price:
        because = f"more than its max_price of ${each.candidate.max_price:g}"
        limits.insert(0, PriceLimit(
            dollars=each.candidate.max_price, refusal="above-max-price", because=because
        ))  # fmt: skip
    of = each.candidate.offering
    for room in limits:
        if each.price is None:
            return "price-unknown", (
                f"no price of {of} is known, and what it costs is limited; give it one under "
                f"`instance_types: types: {of.provider}:`"
            )
        if each.price > room.dollars:
            return room.refusal, f"{of} costs ${each.price:g} an hour, {room.because}"
    return None


def describe_blocks(records: Sequence[BlockRecord]) -> str:
    """What is blocked and why, in one sentence."""
    told: dict[str, list[str]] = {}
    for each in records:
        told.setdefault(f"{each.kind}: {each.reason}", []).append(describe_scope(each))
    parts = []
    for why, places in told.items():
        more = f" and {len(places) - NAMED_MAX} more" if len(places) > NAMED_MAX else ""
        parts.append(f"{', '.join(places[:NAMED_MAX])}{more} ({why})")
    return "; ".join(parts)


def describe_scope(record: BlockRecord) -> str:
    """What a record speaks of, as people read it."""
    words = (record.provider, record.zone or record.region, record.instance_type or record.model)
    return " ".join(each for each in (*words, record.market) if each)


# --- the pace of what is not known to be exhausted -----------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchPace:
    """How many calls to one offering may begin within a moment.

    Few at first, so that many launches do not all find out at once that there is nothing; twice as
    many each time that nothing was found wrong with them.
    """

    allowed: int = PACE_FIRST
    started: int = 0
    since: float = 0.0
    """By the monotonic clock."""


def refresh_pace(pace: LaunchPace, now: float) -> LaunchPace:
    """The pace as it is now: a moment that has passed without a failure lets more begin."""
    if now - pace.since < PACE_SECONDS:
        return pace
    full = pace.started >= pace.allowed
    allowed = min(pace.allowed * 2, PACE_MAX) if full else pace.allowed
    return LaunchPace(allowed, 0, now)


def count_call(pace: LaunchPace) -> LaunchPace:
    """After one more call has begun."""
    return replace(pace, started=pace.started + 1)


def count_success(pace: LaunchPace) -> LaunchPace:
    """After a call has succeeded."""
    return replace(pace, allowed=min(pace.allowed + 1, PACE_MAX), started=max(pace.started - 1, 0))


def restart_pace(now: float) -> LaunchPace:
    """After a call has found nothing: the next time one begins."""
    return LaunchPace(1, 0, now)
