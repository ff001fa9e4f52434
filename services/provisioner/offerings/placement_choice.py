"""Where the nodes of a pool are launched that must be together, and whether a gang is whole. Pure.

A launch goes where the pool's nodes are. In a pool without any, the first launch chooses the place,
and PlacementRecord makes all replicas follow it. A gang is `placed` once all of its instances run,
or `failed`: then each of them is given back, and the next gang tries the other places first.
"""

import dataclasses
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering, Together
from schemas.node_records import node_key
from schemas.offering_records import Place, PlacementRecord, TriedPlace
from schemas.saga_params import LaunchSpec
from services.provisioner.offerings.offering_blocks import Free
from services.provisioner.offerings.offering_choice import ScoredCandidate

TRIED_FOR: Final = timedelta(hours=1)
"""So long a place that had no room comes after the others."""
TRIED_MAX: Final = 64
REASON_CHARS_MAX: Final = 600


@dataclass(frozen=True, slots=True)
class FollowPlace:
    """Launch in this place."""

    place: Place


@dataclass(frozen=True, slots=True)
class AnyPlace:
    """Choose a place, and claim it."""


@dataclass(frozen=True, slots=True)
class NotWhole:
    """The gang has failed: launch nothing more for it."""

    reason: str
    error: str


def must_be_together(launch: LaunchSpec) -> bool:
    """Return whether a launch may go to one place only."""
    return launch.choice is not None and launch.choice.required


def owner_of(record: InstanceRecord) -> str:
    """Return the gang of a launch, or its own name where it has no gang."""
    return record.launch.gang or record.instance


def place_of(offering: Offering, together: Together) -> Place:
    """Return the place of an offering."""
    zone = offering.zone if together == "zone" else ""
    return Place(provider=offering.provider, region=offering.region, zone=zone)


def is_in(offering: Offering, place: Place, together: Together) -> bool:
    """Return whether an offering is in a place; an empty region is the provider's only one."""
    found = place_of(offering, together)
    same_region = found.region == place.region or "" in (found.region, place.region)
    return (found.provider, found.zone) == (place.provider, place.zone) and same_region


def choose_place(
    found: PlacementRecord | None, launch: InstanceRecord, others: Iterable[InstanceRecord]
) -> FollowPlace | AnyPlace | NotWhole:
    """Decide where a launch goes; `others`: the pool's other instances."""
    choice = launch.launch.choice
    together: Together = choice.together if choice is not None else ""
    if found is not None and found.owner == owner_of(launch):
        failed = found.state == "failed"
        return NotWhole(found.reason, found.error) if failed else FollowPlace(found.place)
    others = [each for each in others if each.state in ("intended", "running")]
    if home := _home(launch, others, together):
        return FollowPlace(home)
    if found is None or found.state == "failed":
        return AnyPlace()
    # Its owner may have chosen, and recorded no offering yet.
    return FollowPlace(found.place) if found.owner in map(owner_of, others) else AnyPlace()


def _home(
    launch: InstanceRecord, others: Iterable[InstanceRecord], together: Together
) -> Place | None:
    """Where most of the pool's instances are, but those of the same gang."""
    gang = launch.launch.gang
    places = Counter(
        place
        for each in others
        if not (gang and each.launch.gang == gang)
        if (place := _place_of_instance(each, together)) is not None
    )
    return min(places, key=lambda each: (-places[each], str(each)), default=None)


def _place_of_instance(record: InstanceRecord, together: Together) -> Place | None:
    """Return where it was requested, or where it is; None: it was not requested yet.

    A record that was set back may have another request than the one that was answered.
    """
    zone = record.zone if together == "zone" and record.state == "running" else ""
    if record.offering is not None:
        asked = place_of(record.offering, together)
        return replace(asked, zone=zone) if asked.zone and zone else asked
    if record.state != "running":
        return None
    return Place(provider=record.provider, region=record.region, zone=zone)


def claim(
    found: PlacementRecord | None, launch: InstanceRecord, place: Place, now: datetime
) -> PlacementRecord:
    """The record once this launch, or its gang, has chosen a place."""
    tried = found.tried if found is not None else ()
    if found is not None and found.state == "forming" and found.size > 1:
        # All of its launches were given up before one of them could write that it failed.
        tried = _with_tried(tried, found.place, now)
    return PlacementRecord(
        place=place,
        owner=owner_of(launch),
        size=max(launch.launch.gang_size, 1),
        tried=tuple(each for each in tried if now - each.at < TRIED_FOR),
    )


def whole(
    found: PlacementRecord | None, owner: str, instances: Iterable[InstanceRecord]
) -> PlacementRecord | None:
    """The record of a gang all of whose instances run; None: there is nothing to write."""
    if found is None or found.owner != owner or found.state != "forming":
        return None
    if _running(owner, instances) < found.size:
        return None
    return replace(found, state="placed", tried=())


def failed(
    found: PlacementRecord | None,
    owner: str,
    instances: Iterable[InstanceRecord],
    *,
    reason: str,
    error: str,
    now: datetime,
) -> PlacementRecord | None:
    """The record of a gang one of whose launches failed; None: another gang's, or it was whole."""
    if found is None or found.owner != owner or found.state != "forming":
        return None
    if found.size > 1:
        reason = (
            f"{found.place} had {_running(owner, instances)} of {found.size} nodes that must be "
            f"together, so they are given back: {reason}"
        )
    return replace(
        found,
        state="failed",
        reason=reason[:REASON_CHARS_MAX],
        error=error,
        tried=_with_tried(found.tried, found.place, now),
    )


def _running(owner: str, instances: Iterable[InstanceRecord]) -> int:
    return sum(each.state == "running" and owner_of(each) == owner for each in instances)


def _with_tried(
    tried: tuple[TriedPlace, ...], place: Place, now: datetime
) -> tuple[TriedPlace, ...]:
    kept = tuple(each for each in tried if each.place != place)
    return (*kept, TriedPlace(place=place, at=now))[-TRIED_MAX:]


def ranked(
    scored: ScoredCandidate, found: PlacementRecord | None, together: Together
) -> ScoredCandidate:
    """The candidate with whether its place has failed, or is known to have no capacity."""
    failed_place = 2 * rank(found, scored.candidate.offering, together)
    blocked = not isinstance(scored.block_state, Free)
    return dataclasses.replace(scored, failed_place=failed_place + blocked)


def should_leave(
    found: PlacementRecord | None,
    launch: InstanceRecord,
    others: Iterable[InstanceRecord],
    offerings: Iterable[Offering],
    probes: Container[str] = (),
) -> bool:
    """Return whether a gang leaves a place without capacity at once: it has nothing there to keep.

    Only where another place was not tried; else it waits for this one. `probes`: the launches that
    probe what is blocked; one of its own may not have recorded its offering yet.
    """
    gang = launch.launch.gang
    if not gang or found is None or found.owner != gang or found.state != "forming":
        return False
    there = (
        each
        for each in others
        if each.launch.gang == gang
        if each.state == "running"
        or (
            each.state == "intended"
            and (each.offering is not None or node_key(each.pool, each.instance) in probes)
        )
    )
    choice = launch.launch.choice
    together: Together = choice.together if choice is not None else ""
    untried = (
        each
        for each in offerings
        if not is_in(each, found.place, together) and not rank(found, each, together)
    )
    return not any(there) and any(untried)


def rank(found: PlacementRecord | None, offering: Offering, together: Together) -> int:
    """Return the place in the order of trying: 0 where none has failed, then the longest ago."""
    tried = found.tried if found is not None else ()
    numbers = (
        number for number, each in enumerate(tried, 1) if is_in(offering, each.place, together)
    )
    return max(numbers, default=0)
