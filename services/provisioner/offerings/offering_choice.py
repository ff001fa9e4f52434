"""Chooses a launch's offering, decides whether to wait, or says why there is none. Pure.

Preference: a place that has not failed, near the pool's other nodes, then fewer interruptions, the
strategy's score, and the pool's own order.
Exhausted offerings are passed over; a block that is due is probed by one launch, at the cost of one
call. A launch waits only if nothing else is left, and only for blocks that end by themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, assert_never

from schemas.enums import LaunchRefusal, ProviderErrorKind
from schemas.launch_offers import Choice
from schemas.offering_records import BlockRecord
from services.operator_text.quantities import first_of
from services.provisioner.offerings.offering_blocks import Blocked, BlockState, Free, ProbeDue
from services.provisioner.offerings.offering_catalogue import Candidate
from services.provisioner.provider_client.provider_errors import RULES

NAMED_MAX: Final = 6
"""Offerings that a sentence names."""
PACE_FIRST: Final = 4
PACE_MAX: Final = 1024
PACE_SECONDS: Final = 2.0
REMEDIES: Final[dict[LaunchRefusal, str]] = {
    "nothing-offered": "name a type that one of the pool's providers has: navarch offerings --all",
    "price-unknown": "give the type a price under `instance_types`, or take the limit away",
    "above-max-price": "raise the pool's max_price, or name cheaper types",
    "above-pool-cap": "raise the pool's spend_cap, or make the pool smaller",
    "above-fleet-cap": "raise the fleet's spend_cap, or make a pool smaller",
}
"""What an operator can do about each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """A candidate with what the choice depends on."""

    candidate: Candidate
    score: float
    near: int
    """How many of the pool's instances are in the same place."""
    block_state: BlockState
    price: float | None
    """Dollars per hour; None: unknown."""
    failed_place: int = 0
    """0: its place has not failed; else the greater, the later it has."""
    interruptions: int = 0
    """How many of its instances were taken away, each counted by its age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLimit:
    """Says what a launch may cost, and holds the refusal and reason for one that costs more."""

    dollars: float
    refusal: LaunchRefusal
    because: str


@dataclass(frozen=True, slots=True)
class TakeOffering:
    """Launch this; `claims`: keys of the blocks that it probes."""

    scored: ScoredCandidate
    claims: tuple[str, ...] = ()
    remark: str = ""
    """Which offerings it comes before, and why."""


@dataclass(frozen=True, slots=True)
class WaitForOffering:
    """Decide again then, or when something changes."""

    until: datetime | None
    blocked: tuple[BlockRecord, ...] = ()
    """What is waited for; empty: only for the pace of launches."""


@dataclass(frozen=True, slots=True)
class RefuseLaunch:
    """Everything costs too much, or nothing is offered."""

    refusal: LaunchRefusal
    reason: str


@dataclass(frozen=True, slots=True)
class FailLaunch:
    """Every offering is blocked by something that does not end by itself."""

    kind: ProviderErrorKind
    reason: str


Decision = TakeOffering | WaitForOffering | RefuseLaunch | FailLaunch


def choose(
    scored: Iterable[ScoredCandidate],
    price_limits: Sequence[PriceLimit],
    fallback_at: datetime | None,
    may_begin: Sequence[Candidate],
    now: datetime,
) -> Decision:
    """Decide; `may_begin`: the free candidates whose pace allows another call now."""
    blocked: list[BlockRecord] = []
    final: list[BlockRecord] = []
    dear: list[tuple[LaunchRefusal, str]] = []
    untils: list[datetime] = []
    ranked = sorted(scored, key=preference)
    for each in ranked:
        if (why := _why_too_expensive(each, price_limits)) is not None:
            dear.append(why)
            continue
        if each.candidate.fallback and (fallback_at is None or now < fallback_at):
            untils += [fallback_at] if fallback_at is not None else []
            continue
        match each.block_state:
            case Free():
                taken = TakeOffering(each, remark=_remark(ranked, each))
                return taken if each.candidate in may_begin else WaitForOffering(None)
            case ProbeDue(keys):
                return TakeOffering(each, keys, _remark(ranked, each))
            case Blocked(until, record):
                # What another launch probes may end at any moment.
                passes = RULES[record.kind].passes or until == record.probe_until
                (blocked if passes else final).append(record)
                untils += [until] if passes else []
            case _:
                assert_never(each.block_state)
    if untils:
        return WaitForOffering(min(untils), tuple(dict.fromkeys(blocked)))
    if final:
        return FailLaunch(final[0].kind, describe_blocks(final))
    if dear:
        return RefuseLaunch(*dear[0])
    return RefuseLaunch(
        "nothing-offered",
        "none of the pool's providers has its instance type on its market",
    )


def preference(
    each: ScoredCandidate, *, whole: bool = True
) -> tuple[bool, int, int, int, float, int]:
    """Return the key that sorts candidates; not `whole`: as if none was ever interrupted."""
    candidate = each.candidate
    taken = each.interruptions if whole else 0
    place = (candidate.fallback, each.failed_place, -each.near)
    return (*place, taken, -each.score, candidate.position)


def _remark(ranked: Sequence[ScoredCandidate], taken: ScoredCandidate) -> str:
    """Which offerings would have come first, had none of their instances been taken away."""
    own = preference(taken, whole=False)
    later = [
        f"{each.candidate.offering} ({each.interruptions})"
        for each in ranked
        if each.interruptions > taken.interruptions
        and not isinstance(each.block_state, Blocked)
        and preference(each, whole=False) < own
    ]
    return f"before {first_of(later, NAMED_MAX)}, interrupted lately" if later else ""


def _why_too_expensive(
    each: ScoredCandidate, price_limits: Sequence[PriceLimit]
) -> tuple[LaunchRefusal, str] | None:
    limits = list(price_limits)
    if each.candidate.max_price:
        because = f"more than its max_price of ${each.candidate.max_price:g}"
        limits.insert(0, PriceLimit(
            dollars=each.candidate.max_price, refusal="above-max-price", because=because
        ))  # fmt: skip
    of = each.candidate.offering
    for limit in limits:
        if each.price is None:
            return "price-unknown", (
                f"the price of {of} is unknown, and a spending limit applies; set its price under "
                f"`instance_types: types: {of.provider}:`"
            )
        if each.price > limit.dollars:
            return limit.refusal, f"{of} costs ${each.price:g} an hour, {limit.because}"
    return None


def saving_limits(choice: Choice) -> tuple[PriceLimit, ...]:
    """Return the limits on the price of a launch that replaces a dearer node."""
    if not choice.max_dollars:
        return ()
    because = f"more than ${choice.max_dollars:g}, at which it would save enough"
    limit = PriceLimit(dollars=choice.max_dollars, refusal="above-max-price", because=because)
    return (limit,)


def describe_blocks(records: Sequence[BlockRecord]) -> str:
    """Say in one sentence what is blocked, and why."""
    reasons: dict[str, list[str]] = {}
    for each in records:
        reasons.setdefault(f"{each.kind}: {each.reason}", []).append(describe_scope(each))
    return "; ".join(f"{first_of(places, NAMED_MAX)} ({why})" for why, places in reasons.items())


def describe_scope(record: BlockRecord) -> str:
    """Name what a block covers."""
    words = (record.provider, record.zone or record.region, record.instance_type or record.model)
    return " ".join(each for each in (*words, record.market) if each)


# --- the pace of launches ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchPace:
    """Says how many calls to one offering may start within PACE_SECONDS.

    Few at first, so that not every launch has to find out that there is no capacity; the number
    doubles each time that no call fails.
    """

    allowed: int = PACE_FIRST
    started: int = 0
    since: float = 0.0
    """By the monotonic clock."""


def refresh_pace(pace: LaunchPace, now: float) -> LaunchPace:
    """Return the pace now: an interval without a failure allows more calls in the next one."""
    if now - pace.since < PACE_SECONDS:
        return pace
    full = pace.started >= pace.allowed
    allowed = min(pace.allowed * 2, PACE_MAX) if full else pace.allowed
    return LaunchPace(allowed, 0, now)


def count_call(pace: LaunchPace) -> LaunchPace:
    """Return the pace after another call has started."""
    return replace(pace, started=pace.started + 1)


def count_success(pace: LaunchPace) -> LaunchPace:
    """Return the pace after a call has succeeded."""
    return replace(pace, allowed=min(pace.allowed + 1, PACE_MAX), started=max(pace.started - 1, 0))


def restart_pace(now: float) -> LaunchPace:
    """Return the pace after a call has found no capacity: one call in the next interval."""
    return LaunchPace(1, 0, now)
