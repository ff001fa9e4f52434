"""Launches instances so that a crash at any point costs a repetition and never an instance.

The order matters: the intention is recorded, then the chosen offering, then the provider is called,
then the answer is recorded. An attempt that may not be the first lists before it calls; where the
provider has no idempotency tokens, it calls under a lease. Another offering is requested only once
this one has certainly launched nothing. The answer is recorded by compare-and-set; if the record by
then says that the instance must go, or names another provider, the instance is removed at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.node_records import node_key
from schemas.step_data import ProvisionInputs, ProvisionOutputs
from schemas.termination_orders import Authority
from services.primitives.clock import Clock
from services.primitives.race import race
from services.provisioner.bootstrap.user_data import UserDataError
from services.provisioner.instances.instance_decisions import (
    Settlement,
    answers_same_request,
    find_adoptable,
    intended_record,
    mark_terminated,
    mark_terminating,
    refused,
    settle,
)
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.launch.launch_lease import (
    LaunchLease,
    LaunchLeases,
    count_request,
    is_only_requester,
    may_request,
)
from services.provisioner.launch.launch_outcome import outcome_of, request_of
from services.provisioner.launch.unrecorded_launches import UnrecordedLaunches
from services.provisioner.offerings.offering_allocator import (
    Allocation,
    LaunchRefusedError,
    OfferingAllocator,
)
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal.remover import Remover
from services.provisioner.time_limits import TimeLimits
from services.saga.participant import StepFailure

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""Time that must be left for the provider's answer when an offering is requested."""
SUPERSEDED_POLL_SECONDS: Final = 5.0
"""How often a launch that waits for capacity checks whether its saga has gone on without it."""
SUPERSEDED: Final = "the saga went on without it"

IsSuperseded = Callable[[], Awaitable[bool]]
WhyKept = Callable[[str, str, str], Awaitable[str]]


class _Made(NamedTuple):
    """The instance of a launch."""

    instance: Instance
    adopted: bool
    """It was found in a list; it may be of an offering that was requested earlier."""


@dataclass(slots=True, kw_only=True)
class _Progress:
    """The progress of one launch."""

    record: InstanceRecord
    until: float
    """By the monotonic clock."""
    allocate_until: float
    """By the same clock: an offering requested later might be answered too late."""
    again: bool
    """An earlier delivery of the command may have launched it, at any provider."""
    in_doubt: bool
    """An earlier attempt may have launched it."""
    allocation: Allocation | None = None
    """The offering that is requested; None: one must be allocated."""
    attempts: int = 0
    requests: int = 0
    """The record's `launch_calls` at this replica's last request; 0: it has made none."""


class Launcher:
    """Performs the provision step."""

    def __init__(
        self,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        remover: Remover,
        limits: TimeLimits,
        user_data: Callable[[InstanceRecord], str],
        allocator: OfferingAllocator,
        leases: LaunchLeases,
        unrecorded: UnrecordedLaunches,
        why_kept: WhyKept,
    ) -> None:
        """`user_data` renders what a machine runs at its first boot.

        `why_kept`: pool, node, saga -> why what was launched may be in service; empty: it is not.
        """
        self._leases = leases
        self._unrecorded = unrecorded
        self._why_kept = why_kept
        self._clock = clock
        self._store = store
        self._providers = providers
        self._remover = remover
        self._limits = limits
        self._user_data = user_data
        self._allocator = allocator

    async def launch(
        self,
        inputs: ProvisionInputs,
        saga: str,
        is_superseded: IsSuperseded,
        *,
        again: bool = False,
    ) -> ProvisionOutputs:
        """Launch the one instance of this intention, or raise StepFailure.

        `again`: an earlier attempt may have launched it, even if its record is lost.
        """
        record = intended_record(inputs.pool, inputs.node, inputs.launch, saga, self._clock.now())
        key = node_key(record.pool, record.instance)
        fresh = await self._store.create(record)
        if not fresh:
            record = await self._store.get(key) or record
            if record.state != "intended":
                return outcome_of(record)
        until = self._clock.monotonic() + inputs.timeout_seconds
        progress = _Progress(
            record=record,
            until=until,
            allocate_until=until - min(ANSWER_SECONDS, inputs.timeout_seconds / 10),
            again=again or not fresh,
            in_doubt=again or not fresh,
        )
        await self._continue_with(progress, record)
        try:
            return await self._attempt_until_launched(key, progress, is_superseded)
        except UserDataError as error:
            # The offering is not at fault.
            await self._release(progress)
            await self._give_up(key, ProviderError("INVALID", str(error)), progress)
            return outcome_of(progress.record)
        except (asyncio.CancelledError, StepFailure):
            await self._release(progress)
            raise

    async def _attempt_until_launched(
        self, key: str, progress: _Progress, is_superseded: IsSuperseded
    ) -> ProvisionOutputs:
        while True:
            if progress.allocation is None and progress.record.state == "intended":
                await self._allocate_unless(key, progress, is_superseded)
            if progress.record.state != "intended":
                return outcome_of(progress.record)
            assert progress.allocation is not None
            progress.attempts += 1
            started = self._clock.monotonic()
            try:
                outputs = await self._attempt(key, progress)
            except ProviderError as error:
                ago = self._clock.monotonic() - started
                if not error.rule.retry_in_step:
                    # Certainly not launched: the next offering may be requested, if there is one.
                    await self._allocator.record_failure(progress.allocation, error, ago)
                    await self._record_refused(key, progress, error)
                    continue
                wait = self._limits.retry_seconds(progress.attempts, error.retry_after)
                if self._clock.monotonic() + wait >= progress.until:
                    await self._allocator.record_failure(progress.allocation, error, ago)
                    await self._give_up(key, error, progress)
                    continue
                await self._record_error(key, progress, error)
            else:
                if outputs is not None:
                    return outputs
                continue
            if await is_superseded():
                raise StepFailure(SUPERSEDED)
            await self._clock.sleep(wait)
            await self._continue_with(progress, await self._store.get(key))

    async def _allocate_unless(
        self, key: str, progress: _Progress, is_superseded: IsSuperseded
    ) -> None:
        """Allocate an offering, which may take long; stop waiting if the saga was cancelled.

        Its node is out of service until then, and an instance launched late would be removed.
        """

        async def until_superseded() -> None:
            while True:
                await asyncio.sleep(SUPERSEDED_POLL_SECONDS)
                if await is_superseded():
                    return

        allocating, watching = await race(self._allocate(key, progress), until_superseded())
        if not allocating.cancelled():
            allocating.result()
            return
        watching.result()
        raise StepFailure(SUPERSEDED)

    async def _record_error(
        self, key: str, progress: _Progress, error: ProviderError, refusing: Offering | None = None
    ) -> InstanceRecord | None:
        """Record a failed attempt; `refusing`: this offering was refused."""

        def decide(found: InstanceRecord | None) -> InstanceRecord | None:
            record = found or progress.record  # where it is lost, it is recorded again
            return refused(record, refusing, str(error)) if record.state == "intended" else None

        return await self._store.change(key, decide)

    async def _record_refused(self, key: str, progress: _Progress, error: ProviderError) -> None:
        """Record that an offering was refused; another replica may have allocated the next one."""
        record = await self._record_error(key, progress, error, progress.record.offering)
        progress.allocation = None  # its failure is recorded
        await self._continue_with(progress, record)

    async def _continue_with(self, progress: _Progress, record: InstanceRecord | None) -> None:
        """Continue from the record as it is now: another replica may have changed its offering."""
        record = record or progress.record
        offering = record.offering if record.state == "intended" else None
        allocation, progress.record = progress.allocation, record
        if allocation is not None and allocation.target.offering == offering:
            return
        await self._release(progress)
        progress.allocation = None
        if offering is not None:
            progress.allocation = await self._allocator.restore(record)
            progress.in_doubt = True

    async def _release(self, progress: _Progress) -> None:
        """Leave to others what this launch was to probe, and has not found out."""
        if progress.allocation is not None and progress.allocation.claims:
            await self._allocator.release(progress.allocation)

    async def _allocate(self, key: str, progress: _Progress) -> None:
        """Choose and record an offering; give up if there is none."""
        before = progress.record
        try:
            allocation = await self._allocator.allocate(before, progress.allocate_until)
        except (ProviderError, LaunchRefusedError) as error:
            await self._give_up(key, error, progress)
            return
        elsewhere = allocation.record.provider != before.provider
        progress.allocation, progress.record = allocation, allocation.record
        # A provider that was in doubt has refused by now; the next one has launched nothing yet.
        in_doubt = progress.again or (progress.in_doubt and not elsewhere)
        progress.in_doubt = allocation.by_other_replica or in_doubt

    async def _attempt(self, key: str, progress: _Progress) -> ProvisionOutputs | None:
        """Launch and record it; None: another replica has changed the launch, decide again."""
        calls = self._providers.get(progress.record.provider)
        if calls.provider.capabilities.idempotency_token:
            made = await self._adopt_or_launch(key, calls, progress)
            return await self._settle(key, progress, made) if made is not None else None
        seconds_max = progress.until - self._clock.monotonic()
        try:
            async with self._leases.acquired(key, seconds_max) as lease:
                if not await self._record_request(key, progress):
                    return None
                made = await lease.run(self._adopt_or_launch(key, calls, progress, lease))
                return await self._settle(key, progress, made) if made is not None else None
        except ProviderError as error:
            progress.in_doubt = progress.in_doubt or error.rule.in_doubt
            raise

    async def _record_request(self, key: str, progress: _Progress) -> bool:
        """Count the request in the record, under the lease, and see whether others made one.

        False: it must not be requested any more, or not from this offering.
        """

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None:  # it is lost, and with it how many requests there were
                progress.again = progress.in_doubt = True
                return replace(progress.record, launch_calls=progress.requests + 1)
            return count_request(record, progress.record.offering, progress.requests)

        record = await self._store.change(key, decide) or progress.record
        if not may_request(record, progress.record.offering):
            progress.in_doubt = True
            await self._continue_with(progress, record)
            return False
        progress.in_doubt = progress.in_doubt or not is_only_requester(
            record.launch_calls, progress.requests
        )
        progress.record, progress.requests = record, record.launch_calls
        return True

    async def _adopt_or_launch(
        self,
        key: str,
        calls: ProviderCalls,
        progress: _Progress,
        lease: LaunchLease | None = None,
    ) -> _Made | None:
        """Adopt the instance of an earlier attempt, or request one from the provider.

        None: another replica has changed the launch.
        """
        can = calls.provider.capabilities
        if progress.in_doubt or await self._unrecorded.may_include(progress.record, calls):
            if not can.idempotency_token:
                await self._clock.sleep(can.list_lag_seconds)
            found = find_adoptable(progress.record, await calls.list_instances())
            if found is not None:
                log.info("adopted", extra={"instance": found.name, "id": found.provider_id})
                return _Made(found, adopted=True)
        current = await self._store.get(key)  # lists may take a minute
        if current is not None and not may_request(current, progress.record.offering):
            await self._continue_with(progress, current)
            return None
        try:
            if lease is not None:
                lease.confirm()
            made = await calls.provision(
                request_of(progress.record, self._user_data(progress.record)),
                timeout_seconds=max(progress.until - self._clock.monotonic(), 0.001),
            )
        except ProviderError as error:
            progress.in_doubt = progress.in_doubt or error.rule.in_doubt
            raise
        return _Made(made, adopted=False)

    async def _settle(self, key: str, progress: _Progress, made: _Made) -> ProvisionOutputs | None:
        """Record the new instance, or remove it if it is no longer needed.

        None: another replica has meanwhile launched from another offering; continue with that one.
        """
        assert progress.allocation is not None
        requested, instance = progress.record, made.instance
        if not made.adopted:
            await self._allocator.record_success(progress.allocation)
        settled = Settlement("running", requested)
        made_record = replace(requested, provider_id=instance.provider_id)
        held_by = await self._store.other_holder(key, made_record)
        known = self._providers.get(requested.provider).provider.capabilities.idempotency_token

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            nonlocal settled
            left_to_sweep = made.adopted or (known and answers_same_request(record, requested))
            settled = settle(
                record or requested,
                instance,
                self._clock.now(),
                requested.provider,
                None if left_to_sweep else requested,
                held_by,
            )
            return settled.record

        await self._store.change(key, decide)
        record = settled.record
        if made.adopted and record.offering == progress.allocation.target.offering:
            await self._allocator.record_success(progress.allocation)
        match settled.outcome:
            case "doubtful":
                progress.in_doubt = True
                wrong = f"{requested.provider} answered with {instance.provider_id}"
                raise ProviderError("TRANSIENT", f"{wrong}, which is the instance of {held_by}")
            case "surplus":
                await self._remover.remove_surplus(key)
                if record.state == "intended":
                    progress.in_doubt = True
                    await self._continue_with(progress, record)
                    return None
            case "removed":
                log.info("undone during its launch", extra={"instance": record.instance})
                await self._remover.try_removal(key)
            case "running" | "kept":
                pass
        await self._release(progress)
        return outcome_of(record)

    async def _give_up(
        self, key: str, error: ProviderError | LaunchRefusedError, progress: _Progress
    ) -> None:
        """End the record with the reason; if an attempt may have launched it, remove it.

        Raise StepFailure, unless another replica or the sweep has recorded it as running meanwhile.
        """
        in_doubt, launched = progress.in_doubt, progress.record
        failure = StepFailure(error.message, error=error.kind)
        if in_doubt and await self._why_kept(launched.pool, launched.instance, launched.saga):
            raise failure  # its undo decides what is kept

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None or record.state != "intended":
                return None
            by = Authority(kind="launch", saga=launched.saga, at=self._clock.now())
            ending = mark_terminating(record, self._clock.now(), by, str(error))
            return ending if in_doubt else mark_terminated(ending, self._clock.now())

        record = await self._store.change(key, decide)
        if record is not None and record.state == "running":
            progress.record = record
            return
        if record is not None and in_doubt:
            await self._remover.try_removal(key)
        raise failure
