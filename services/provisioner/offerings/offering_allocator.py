"""Allocates an offering to each launch: decides by pure functions, waits, and records the choice.

It is recorded before the provider is called, so that a replica that continues after a crash
requests the same offering. Launches with the same options wait in one queue, in order of arrival.
"""

import asyncio
import dataclasses
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
from services.provisioner.offerings import offering_blocks, placement_choice, spend
from services.provisioner.offerings.offering_catalogue import Candidate, candidates, choice_of
from services.provisioner.offerings.offering_choice import (
    REMEDIES,
    Decision,
    FailLaunch,
    LaunchPace,
    RefuseLaunch,
    ScoredCandidate,
    TakeOffering,
    WaitForOffering,
    choose,
    count_call,
    count_success,
    describe_blocks,
    refresh_pace,
    restart_pace,
    saving_limits,
)
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.offerings.placements import ChosenPlace, Placements
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.provider_client.provider_errors import RULES, ProviderError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
"""How often a waiting launch reads what other replicas have recorded."""
PACE_POLL_SECONDS: Final = 0.2
QUEUES_MAX: Final = 1000
"""Queues that are kept while they are empty."""


class LaunchRefusedError(NavarchError):
    """Every offering of the launch is too expensive, or it has none."""

    def __init__(self, kind: LaunchRefusal, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: LaunchRefusal = kind
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Holds the offering of a launch, as recorded."""

    record: InstanceRecord
    target: offering_blocks.BlockTarget
    claims: tuple[str, ...] = ()
    """Keys of the blocks that this launch probes."""
    by_other_replica: bool = False
    """Another replica chose it, and may have requested it already."""


@dataclass(slots=True)
class _LaunchQueue:
    """Launches that may take the same offerings."""

    candidates: tuple[Candidate, ...]
    choice: Choice
    configuration: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: dict[str, InstanceRecord] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)
    blocked: tuple[BlockRecord, ...] = ()


class OfferingAllocator:
    """Allocates offerings to the launches of one replica."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        offerings: OfferingStore,
        scorer: OfferingScorer,
        schedulers: Schedulers,
        placements: Placements,
        fleet_cap: float = 0.0,
    ) -> None:
        """`fleet_cap`: dollars per hour of the whole fleet; 0: no cap."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._offerings = offerings
        self._scorer = scorer
        self._schedulers = schedulers
        self._placements = placements
        self._fleet_cap = fleet_cap
        self._catalogue = scorer.catalogue
        self._queues: dict[tuple[str, bytes], _LaunchQueue] = {}
        self._paces: dict[Offering, LaunchPace] = {}
        self._changed = asyncio.Event()

    # --- allocation ---------------------------------------------------------------------------

    async def allocate(self, record: InstanceRecord, until: float) -> Allocation:
        """Choose and record an offering until then, or raise ProviderError, LaunchRefusedError."""
        key = node_key(record.pool, record.instance)
        queue = self._queue(record)
        queue.waiting[key] = record
        try:
            async with asyncio.timeout(max(until - self._clock.monotonic(), 0.0)):
                async with queue.lock:
                    return await self._allocate(key, record, queue, until)
        except TimeoutError:
            raise _capacity_error(queue.blocked) from None
        finally:
            queue.waiting.pop(key, None)
            queue.published.discard(key)

    async def _allocate(
        self, key: str, record: InstanceRecord, queue: _LaunchQueue, until: float
    ) -> Allocation:
        while True:
            # Taken before the decision, so that no later change is missed.
            changed = self._changed
            chosen = await self._placements.choose(record) if queue.choice.required else None
            decision, capped = await self._decide(key, record, queue, chosen)
            match decision:
                case TakeOffering(scored):
                    queue.blocked = ()
                    if not await self._claim_place(record, queue, scored, chosen):
                        continue
                    allocation = await self._record(key, record, queue, decision, capped=capped)
                    if allocation is not None:
                        return allocation
                case WaitForOffering(None):
                    await race(changed.wait(), seconds_max=PACE_POLL_SECONDS)
                case WaitForOffering(at, blocked):
                    assert at is not None
                    queue.blocked = blocked
                    seconds = (at - self._clock.now()).total_seconds()
                    # A probe in progress may succeed at any moment.
                    probes = {each.probe for each in blocked if each.probe}
                    late = self._clock.monotonic() + seconds >= until and not probes
                    if late or (chosen and await self._leaves(record, queue, chosen, probes)):
                        raise _capacity_error(blocked)
                    for each in list(queue.waiting.values()):
                        await self._publish_waiting(each, queue, decision)
                    await race(changed.wait(), seconds_max=max(min(seconds, POLL_SECONDS), 0.0))
                case FailLaunch(kind, reason):
                    raise ProviderError(kind, reason)
                case RefuseLaunch(refusal, reason):
                    await self._publish_refused(record, refusal, reason)
                    raise LaunchRefusedError(refusal, reason)

    async def _decide(
        self,
        key: str,
        record: InstanceRecord,
        queue: _LaunchQueue,
        chosen: ChosenPlace | None,
    ) -> tuple[Decision, bool]:
        choice, now = queue.choice, self._clock.now()
        allowed = _candidates_in(queue, chosen)
        known = await self._offerings.records()
        limits = saving_limits(choice)
        capped = bool(choice.spend_cap or self._fleet_cap)
        if capped:
            reserved, _ = await self._offerings.read_spend(SPEND_KEY)
            costs = spend.sum_costs(await self._scorer.records(), reserved.reserved, key)
            limits += spend.price_limits(costs, record.pool, choice.spend_cap, self._fleet_cap)
        scheduler = self._schedulers.of(choice)
        scored = [
            await self._scorer.score_candidate(
                each, self._target(record, each.offering, queue), key, known, choice, scheduler
            )
            for each in allowed
        ]
        if chosen is not None and isinstance(chosen.where, placement_choice.AnyPlace):
            found, together = chosen.found, choice.together
            scored = [placement_choice.ranked(each, found, together) for each in scored]
        fallback = timedelta(seconds=choice.fallback_seconds)
        return choose(
            scored,
            limits,
            record.intended_at + fallback if fallback else None,
            [each for each in queue.candidates if self._may_begin(each.offering)],
            now,
        ), capped

    async def _claim_place(
        self,
        record: InstanceRecord,
        queue: _LaunchQueue,
        scored: ScoredCandidate,
        chosen: ChosenPlace | None,
    ) -> bool:
        """Claim the place of a launch that has chosen it freely; False: choose again."""
        if chosen is None or not isinstance(chosen.where, placement_choice.AnyPlace):
            return True
        offering = scored.candidate.offering
        place = placement_choice.place_of(offering, queue.choice.together)
        return await self._placements.claim(record, place, chosen)

    async def _leaves(
        self, record: InstanceRecord, queue: _LaunchQueue, chosen: ChosenPlace, probes: set[str]
    ) -> bool:
        """Whether a launch does not wait for capacity, as its gang has nothing in its place."""
        offerings = [each.offering for each in queue.candidates]
        return await self._placements.should_leave(record, chosen, offerings, probes)

    def _may_begin(self, offering: Offering) -> bool:
        pace = self._paces.get(offering, LaunchPace())
        self._paces[offering] = pace = refresh_pace(pace, self._clock.monotonic())
        return pace.started < pace.allowed

    async def _record(
        self,
        key: str,
        record: InstanceRecord,
        queue: _LaunchQueue,
        taken: TakeOffering,
        *,
        capped: bool,
    ) -> Allocation | None:
        """Carry out a decision: claim the probes, reserve the price, record the offering."""
        claims = taken.claims
        try:
            if claims and not await self._offerings.claim_probes(claims, key):
                return None
            if not capped or await self._reserve(key, record, queue, taken.scored):
                return await self._record_claimed(key, record, queue, taken)
        except asyncio.CancelledError:
            await self._offerings.release_probes(claims, key)
            raise
        await self._offerings.release_probes(claims, key)
        return None

    async def _record_claimed(
        self, key: str, record: InstanceRecord, queue: _LaunchQueue, taken: TakeOffering
    ) -> Allocation:
        offering = taken.scored.candidate.offering

        def decide(old: InstanceRecord | None) -> InstanceRecord | None:
            old = old or record  # where it is lost, it is recorded again
            if old.state != "intended" or old.offering != record.offering:
                return None
            place = {"offering": offering, "provider": offering.provider, "chosen": taken.remark}
            return replace(old, **place, dollars_per_hour=taken.scored.price or 0.0)

        written = await self._store.change(key, decide) or record
        if written.offering == offering:
            self._scorer.update_record(key, written)
            self._paces[offering] = count_call(self._paces.get(offering, LaunchPace()))
            target = self._target(record, offering, queue)
            return Allocation(record=written, target=target, claims=taken.claims)
        found = await self._allocation(written, written.offering or offering, queue)
        others = tuple(each for each in taken.claims if each not in found.claims)
        await self._offerings.release_probes(others, key)
        return dataclasses.replace(found, by_other_replica=True)

    async def _reserve(
        self, key: str, record: InstanceRecord, queue: _LaunchQueue, scored: ScoredCandidate
    ) -> bool:
        """Reserve the price; False if another launch was faster: decide again."""
        offering, price = scored.candidate.offering, scored.price or 0.0
        reserved, revision = await self._offerings.read_spend(SPEND_KEY)
        costs = spend.sum_costs(await self._scorer.records(), reserved.reserved, key)
        left = spend.price_limits(costs, record.pool, queue.choice.spend_cap, self._fleet_cap)
        if any(price > room.dollars for room in left):
            return False
        after = spend.add_reservation(reserved, key, price, offering, self._clock.now())
        return await self._offerings.reserve(SPEND_KEY, after, revision)

    async def restore(self, record: InstanceRecord) -> Allocation:
        """Return the allocation that a record names, with what the launch probes there."""
        assert record.offering is not None
        return await self._allocation(record, record.offering, self._queue(record))

    async def _allocation(
        self, record: InstanceRecord, offering: Offering, queue: _LaunchQueue
    ) -> Allocation:
        target, key = self._target(record, offering, queue), node_key(record.pool, record.instance)
        found = offering_blocks.find_blocks(target, (await self._offerings.records()).blocks)
        claims = tuple(name for name, each in found if each.probe == key)
        return Allocation(record=record, target=target, claims=claims)

    # --- results ------------------------------------------------------------------------------

    async def record_success(self, allocation: Allocation) -> None:
        """Delete the blocks that a successful launch has probed."""
        offering = allocation.target.offering
        pace = self._paces.get(offering, LaunchPace())
        self._paces[offering] = count_success(pace)
        await self._offerings.delete_blocks(allocation.claims)
        self._notify()

    async def record_failure(
        self, allocation: Allocation, error: ProviderError, began_seconds_ago: float
    ) -> None:
        """Record what a failed launch blocks, for all replicas."""
        error = await self._scorer.refusal(error, allocation.target.offering)
        record, now = allocation.record, self._clock.now()
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
            await self._offerings.unreserve(SPEND_KEY, key, allocation.target.offering)
        failed = await self._offerings.record_failure(allocation.target, failure)
        await self._offerings.release_probes(
            tuple(each for each in allocation.claims if each != failed), key
        )
        if error.rule.passes:
            offering = allocation.target.offering
            self._paces[offering] = restart_pace(self._clock.monotonic())
        self._notify()

    async def release(self, allocation: Allocation) -> None:
        """Release the probes of a launch that has found out nothing."""
        key = node_key(allocation.record.pool, allocation.record.instance)
        await self._offerings.release_probes(allocation.claims, key)
        self._notify()

    # --- parts --------------------------------------------------------------------------------

    def _queue(self, record: InstanceRecord) -> _LaunchQueue:
        choice = choice_of(record.launch)
        text = msgspec.json.encode(choice, order="deterministic")
        name = (record.pool, text)
        if name not in self._queues:
            for old in [each for each, queue in self._queues.items() if not queue.waiting]:
                if len(self._queues) < QUEUES_MAX:
                    break
                del self._queues[old]
            found = candidates(choice, self._catalogue)
            self._queues[name] = _LaunchQueue(
                found, choice, offering_blocks.configuration_digest(text)
            )
        return self._queues[name]

    def _target(
        self, record: InstanceRecord, offering: Offering, queue: _LaunchQueue
    ) -> offering_blocks.BlockTarget:
        return self._catalogue.target(offering, record.pool, queue.configuration)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- events -------------------------------------------------------------------------------

    async def _publish_waiting(
        self, record: InstanceRecord, queue: _LaunchQueue, decision: WaitForOffering
    ) -> None:
        key = node_key(record.pool, record.instance)
        if key in queue.published or not decision.blocked:
            return
        queue.published.add(key)
        await publish_event(
            self._bus,
            LaunchWaiting(
                id=f"launch-waits-{key}",
                time=self._clock.now(),
                cause=record.saga,
                pool=record.pool,
                node=record.instance,
                saga=record.saga,
                reason=describe_blocks(decision.blocked),
                until=decision.until,
            ),
        )

    async def _publish_refused(
        self, record: InstanceRecord, refusal: LaunchRefusal, reason: str
    ) -> None:
        log.warning("launch refused", extra={"instance": record.instance, "reason": reason})
        if choice_of(record.launch).max_dollars:
            return  # the node that it was to replace stays
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


def _candidates_in(queue: _LaunchQueue, chosen: ChosenPlace | None) -> tuple[Candidate, ...]:
    """The candidates where a launch may go; raise where its gang has failed."""
    match chosen.where if chosen is not None else None:
        case placement_choice.NotWhole(reason, error):
            if error in REMEDIES:
                raise LaunchRefusedError(error, reason)
            kind = error if error in RULES else "CAPACITY"
            raise ProviderError(kind, reason)
        case placement_choice.FollowPlace(place):
            found = tuple(
                each
                for each in queue.candidates
                if placement_choice.is_in(each.offering, place, queue.choice.together)
            )
            if not found:
                raise LaunchRefusedError(
                    "nothing-offered", f"the pool's nodes are in {place}, where it offers none"
                )
            return found
        case _:
            return queue.candidates


def _capacity_error(blocked: tuple[BlockRecord, ...]) -> ProviderError:
    waits = describe_blocks(blocked) or "other launches were first"
    kind = blocked[0].kind if blocked else "CAPACITY"
    return ProviderError(kind, f"no offering was available in time: {waits}")
