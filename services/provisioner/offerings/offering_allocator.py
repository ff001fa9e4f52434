"""Finds each launch an offering: asks the pure core, waits where it says so, records the choice.

The choice is recorded in the launch's own record before the provider is asked, so that whoever goes
on after a crash asks the same one. Launches that may take the same wait in one lane, in the order
that they came; the first of them decides, and the next goes on from there.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas.enums import LaunchRefusal
from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Choice, Offering
from schemas.node_records import node_key
from schemas.offering_records import SPEND_KEY, BlockRecord
from schemas.pool_events import LaunchRefused, LaunchWaiting
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError
from services.primitives.race import race
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.offerings import offering_blocks, offering_choice, spend
from services.provisioner.offerings.offering_catalogue import Candidate, candidates, choice_of
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""How often a launch that waits looks what other replicas have found out."""
PACE_LOOK_SECONDS: Final = 0.2
LANES_MAX: Final = 1000
"""Kinds of launches that are remembered once nobody waits."""


class LaunchRefusedError(NavarchError):
    """Nothing that the launch may take is within what it may cost, or nothing is offered."""

    def __init__(self, refusal: LaunchRefusal, reason: str) -> None:
        """Say why."""
        super().__init__(f"{refusal}: {reason}")
        self.refusal: LaunchRefusal = refusal
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A launch's offering, as its record has it."""

    record: InstanceRecord
    about: offering_blocks.BlockTarget
    claims: tuple[str, ...] = ()
    """Keys of what this launch alone tries now."""
    followed: bool = False
    """Another replica chose it: it may have asked for it already."""


@dataclass(slots=True)
class _LaunchQueue:
    """Launches that may take the same."""

    candidates: tuple[Candidate, ...]
    choice: Choice
    configuration: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: dict[str, InstanceRecord] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    blocked: tuple[BlockRecord, ...] = ()


class OfferingAllocator:
    """Chooses for every launch of one replica."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        offerings: OfferingStore,
        weigher: OfferingScorer,
        schedulers: Schedulers,
        fleet_cap: float = 0.0,
    ) -> None:
        """Work with these; `fleet_cap`: dollars per hour of the whole fleet, 0: any."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._offerings = offerings
        self._weigher = weigher
        self._schedulers = schedulers
        self._fleet_cap = fleet_cap
        self._catalogue = weigher.catalogue
        self._lanes: dict[tuple[str, bytes], _LaunchQueue] = {}
        self._paces: dict[Offering, offering_choice.LaunchPace] = {}
        self._changed = asyncio.Event()

    # --- taking -------------------------------------------------------------------------------

    async def take(self, record: InstanceRecord, until: float) -> Allocation:
        """Choose an offering and record it, waiting for one until then by the monotonic clock.

        ProviderError, or LaunchRefusedError, where there is none.
        """
        key = node_key(record.pool, record.instance)
        lane = self._lane(record)
        lane.waiting[key] = record
        try:
            async with asyncio.timeout(max(until - self._clock.monotonic(), 0.0)):
                async with lane.turn:
                    return await self._take(key, record, lane, until)
        except TimeoutError:
            raise _capacity_error(lane.blocked) from None
        finally:
            lane.waiting.pop(key, None)
            lane.told.discard(key)

    async def _take(
        self, key: str, record: InstanceRecord, lane: _LaunchQueue, until: float
    ) -> Allocation:
        while True:
            # Whatever changes from here on is not missed.
            changed = self._changed
            decision, rooms = await self._decide(key, record, lane)
            match decision:
                case offering_choice.TakeOffering(weighed, claims):
                    lane.blocked = ()
                    taken = await self._took(key, record, lane, weighed, claims, capped=rooms)
                    if taken is not None:
                        return taken
                case offering_choice.WaitForOffering(None):
                    await race(changed.wait(), seconds_max=PACE_LOOK_SECONDS)
                case offering_choice.WaitForOffering(at, blocked):
                    assert at is not None
                    lane.blocked = blocked
                    seconds = (at - self._clock.now()).total_seconds()
                    # What somebody tries just now may be there any moment.
                    tried = any(each.probe for each in blocked)
                    if self._clock.monotonic() + seconds >= until and not tried:
                        raise _capacity_error(blocked)
                    for each in list(lane.waiting.values()):
                        await self._tell_waiting(each, lane, decision)
                    await race(changed.wait(), seconds_max=max(min(seconds, LOOK_SECONDS), 0.0))
                case offering_choice.FailLaunch(kind, reason):
                    raise ProviderError(kind, reason)
                case offering_choice.RefuseLaunch(refusal, reason):
                    await self._tell_refused(record, refusal, reason)
                    raise LaunchRefusedError(refusal, reason)

    async def _decide(
        self, key: str, record: InstanceRecord, lane: _LaunchQueue
    ) -> tuple[offering_choice.Decision, bool]:
        choice, now = lane.choice, self._clock.now()
        known = await self._offerings.known()
        capped = bool(choice.spend_cap or self._fleet_cap)
        rooms: tuple[offering_choice.PriceLimit, ...] = ()
        if capped:
            reserved, _ = await self._offerings.spend(SPEND_KEY)
            costs = spend.sum_costs(await self._weigher.records(), reserved.reserved, key)
            rooms = spend.price_limits(costs, record.pool, choice.spend_cap, self._fleet_cap)
        scheduler = self._schedulers.of(choice)
        weighed = [
            await self._weigher.weigh(each, self._about(record, each.offering, lane), key, known,
                                      choice, scheduler)
            for each in lane.candidates
        ]  # fmt: skip
        fallback = timedelta(seconds=choice.fallback_seconds)
        return offering_choice.choose(
            weighed,
            rooms,
            record.intended_at + fallback if fallback else None,
            [each for each in lane.candidates if self._may_begin(each.offering)],
            now,
        ), capped

    def _may_begin(self, offering: Offering) -> bool:
        pace = self._paces.get(offering, offering_choice.LaunchPace())
        self._paces[offering] = pace = offering_choice.refresh_pace(pace, self._clock.monotonic())
        return pace.started < pace.allowed

    async def _took(
        self,
        key: str,
        record: InstanceRecord,
        lane: _LaunchQueue,
        weighed: offering_choice.ScoredCandidate,
        claims: tuple[str, ...],
        *,
        capped: bool,
    ) -> Allocation | None:
        """Make a decision true: what is tried is claimed, what it costs reserved, all recorded."""
        if claims and not await self._offerings.claim(claims, key):
            return None
        offering, price = weighed.candidate.offering, weighed.price or 0.0
        if capped and not await self._reserved(key, record, lane, price):
            await self._offerings.release(claims, key)
            return None

        def decide(old: InstanceRecord | None) -> InstanceRecord | None:
            if old is None or old.state != "intended" or old.offering != record.offering:
                return None
            return replace(
                old, offering=offering, provider=offering.provider, dollars_per_hour=price
            )

        written = await self._store.change(key, decide) or record
        followed = written.offering != offering
        if followed:
            await self._offerings.release(claims, key)
            claims = ()
        else:
            self._weigher.wrote(key, written)
            self._paces[offering] = offering_choice.count_call(
                self._paces.get(offering, offering_choice.LaunchPace())
            )
        about = self._about(record, written.offering or offering, lane)
        return Allocation(record=written, about=about, claims=claims, followed=followed)

    async def _reserved(
        self, key: str, record: InstanceRecord, lane: _LaunchQueue, price: float
    ) -> bool:
        """Take the price from the caps; False where another launch was quicker: decide again."""
        reserved, revision = await self._offerings.spend(SPEND_KEY)
        costs = spend.sum_costs(await self._weigher.records(), reserved.reserved, key)
        left = spend.price_limits(costs, record.pool, lane.choice.spend_cap, self._fleet_cap)
        if any(price > room.dollars for room in left):
            return False
        after = spend.add_reservation(reserved, key, price, self._clock.now())
        return await self._offerings.reserve(SPEND_KEY, after, revision)

    def standing(self, record: InstanceRecord) -> Allocation:
        """The offering that a record names already."""
        assert record.offering is not None
        about = self._about(record, record.offering, self._lane(record))
        return Allocation(record=record, about=about)

    # --- what came of it ----------------------------------------------------------------------

    async def came(self, taken: Allocation) -> None:
        """It was launched: whatever this launch tried is there again."""
        offering = taken.about.offering
        pace = self._paces.get(offering, offering_choice.LaunchPace())
        self._paces[offering] = offering_choice.count_success(pace)
        await self._offerings.clear(taken.claims)
        self._notify()

    async def failed(
        self, taken: Allocation, error: ProviderError, began_seconds_ago: float
    ) -> None:
        """It was not launched: remember what that blocks, for all."""
        record, now = taken.record, self._clock.now()
        key = node_key(record.pool, record.instance)
        failure = offering_blocks.LaunchFailure(
            kind=error.kind,
            reason=error.message,
            scope=error.scope,
            retry_after=error.retry_after,
            began=now - timedelta(seconds=began_seconds_ago),
            by=key,
        )
        choice = choice_of(record.launch)
        if choice.spend_cap or self._fleet_cap:
            await self._offerings.unreserve(SPEND_KEY, key)
        failed = await self._offerings.fail(taken.about, failure)
        await self._offerings.release(tuple(each for each in taken.claims if each != failed), key)
        if error.rule.passes:
            offering = taken.about.offering
            self._paces[offering] = offering_choice.restart_pace(self._clock.monotonic())
        self._notify()

    async def abandon(self, taken: Allocation) -> None:
        """Nothing was found out: others may try what this launch had claimed."""
        key = node_key(taken.record.pool, taken.record.instance)
        await self._offerings.release(taken.claims, key)
        self._notify()

    # --- parts --------------------------------------------------------------------------------

    def _lane(self, record: InstanceRecord) -> _LaunchQueue:
        choice = choice_of(record.launch)
        text = msgspec.json.encode(choice, order="deterministic")
        name = (record.pool, text)
        if name not in self._lanes:
            for old in [each for each, lane in self._lanes.items() if not lane.waiting]:
                if len(self._lanes) < LANES_MAX:
                    break
                del self._lanes[old]
            found = candidates(choice, self._catalogue)
            self._lanes[name] = _LaunchQueue(
                found, choice, offering_blocks.configuration_digest(text)
            )
        return self._lanes[name]

    def _about(
        self, record: InstanceRecord, offering: Offering, lane: _LaunchQueue
    ) -> offering_blocks.BlockTarget:
        return offering_blocks.BlockTarget(
            offering=offering,
            model=self._catalogue.model(offering.provider, offering.instance_type),
            pool=record.pool,
            configuration=lane.configuration,
        )

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- telling ------------------------------------------------------------------------------

    async def _tell_waiting(
        self, record: InstanceRecord, lane: _LaunchQueue, hold: offering_choice.WaitForOffering
    ) -> None:
        key = node_key(record.pool, record.instance)
        if key in lane.told or not hold.blocked:
            return
        lane.told.add(key)
        await publish_event(
            self._bus,
            LaunchWaiting(
                id=f"launch-waits-{key}",
                time=self._clock.now(),
                cause=record.saga,
                pool=record.pool,
                node=record.instance,
                saga=record.saga,
                reason=offering_choice.describe_blocks(hold.blocked),
                until=hold.until,
            ),
        )

    async def _tell_refused(
        self, record: InstanceRecord, refusal: LaunchRefusal, reason: str
    ) -> None:
        log.warning("launch refused", extra={"instance": record.instance, "reason": reason})
        await publish_event(
            self._bus,
            LaunchRefused(
                id=f"launch-refused-{node_key(record.pool, record.instance)}",
                time=self._clock.now(),
                cause=record.saga,
                pool=record.pool,
                node=record.instance,
                saga=record.saga,
                refusal=refusal,
                reason=reason,
                remedy=REMEDIES[refusal],
            ),
        )


REMEDIES: Final[dict[LaunchRefusal, str]] = {
    "nothing-offered": "name a type that one of the pool's providers has: navarch offerings --all",
    "price-unknown": "give the type a price under `instance_types`, or take the limit away",
    "above-max-price": "raise the pool's max_price, or name cheaper types",
    "above-pool-cap": "raise the pool's spend_cap, or make the pool smaller",
    "above-fleet-cap": "raise the fleet's spend_cap, or make a pool smaller",
}
"""What a person can do about each."""


def _capacity_error(blocked: tuple[BlockRecord, ...]) -> ProviderError:
    kind = blocked[0].kind if blocked else "CAPACITY"
    waits = offering_choice.describe_blocks(blocked) if blocked else "others wait before it"
    return ProviderError(kind, f"nothing could be had in time: {waits}")
