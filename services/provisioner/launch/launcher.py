"""Launches instances so that a crash at any point costs a repetition and never an instance.

The order is what makes it exact: the intention is recorded, then the offering that was chosen, then
the provider is asked, then the answer is recorded. A try that is not surely the first lists before
it asks; where the provider knows no tokens, it asks alone. Another offering is asked only once this
one has surely made nothing. The answer is recorded by compare-and-set; where the record says by
then that the instance is to go, or is of another provider, it goes at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, get_args

from msgspec.structs import replace

from schemas.enums import LaunchRefusal
from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.node_records import node_key
from schemas.step_data import ProvisionInputs, ProvisionOutputs
from services.primitives.clock import Clock
from services.primitives.race import race
from services.provisioner.bootstrap.user_data import UserDataError
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.launch.launch_claim import alone, asking, may_ask
from services.provisioner.launch.launch_lease import LaunchLeases
from services.provisioner.offerings.offering_allocator import (
    Allocation,
    LaunchRefusedError,
    OfferingAllocator,
)
from services.provisioner.offerings.provision_request import request_for
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import RULES, ProviderError
from services.provisioner.removal.remover import Remover
from services.provisioner.time_limits import TimeLimits
from services.saga.participant import StepFailure

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""What a launch must have left when it asks for an offering, to hear the answer."""
OVERTAKEN_LOOK_SECONDS: Final = 5.0
"""How often a launch that waits for capacity asks whether it is still wanted."""


@dataclass(slots=True, kw_only=True)
class _Tries:
    """Where one launch has got to."""

    record: InstanceRecord
    until: float
    """By the monotonic clock."""
    patience: float
    """By the same: what comes later is not worth asking for, as its answer might come too late."""
    in_doubt: bool
    """An earlier try may have made it."""
    taken: Allocation | None = None
    """The offering that is asked for; None: one is to be chosen."""
    count: int = 0
    asks: int = 0
    """What the record's `asks` was when this one asked last; 0: it has not."""


class Launcher:
    """Performs the provision step."""

    def __init__(
        self,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        remover: Remover,
        timing: TimeLimits,
        user_data: Callable[[InstanceRecord], str],
        chooser: OfferingAllocator,
        claims: LaunchLeases,
    ) -> None:
        """Work with these; `user_data` makes what a machine is told at its first boot."""
        self._claims = claims
        self._clock = clock
        self._store = store
        self._providers = providers
        self._remover = remover
        self._timing = timing
        self._user_data = user_data
        self._chooser = chooser

    async def launch(
        self, inputs: ProvisionInputs, saga: str, superseded: Callable[[], Awaitable[bool]]
    ) -> ProvisionOutputs:
        """Bring about the one instance of this intention, or raise StepFailure."""
        launch = inputs.launch
        record = instance_decisions.intended_record(
            inputs.pool, inputs.node, launch, saga, self._clock.now()
        )
        key = node_key(record.pool, record.instance)
        fresh = await self._store.create(record)
        if not fresh:
            record = await self._store.get(key) or record
            if record.state != "intended":
                return _outcome(record)
        until = self._clock.monotonic() + inputs.timeout_seconds
        tries = _Tries(
            record=record,
            until=until,
            patience=until - min(ANSWER_SECONDS, inputs.timeout_seconds / 10),
            in_doubt=not fresh,
        )
        if record.offering is not None:
            tries.taken = self._chooser.standing(record)
        try:
            return await self._keep_trying(key, tries, superseded)
        except UserDataError as error:
            # Whoever was to be asked is not at fault.
            if tries.taken is not None:
                await self._chooser.abandon(tries.taken)
            told = ProviderError("INVALID", str(error))
            raise await self._give_up(key, told, in_doubt=tries.in_doubt) from error
        except asyncio.CancelledError:
            if tries.taken is not None and tries.taken.claims:
                await self._chooser.abandon(tries.taken)
            raise

    async def _keep_trying(
        self, key: str, tries: _Tries, superseded: Callable[[], Awaitable[bool]]
    ) -> ProvisionOutputs:
        while True:
            if tries.taken is None and tries.record.state == "intended":
                await self._choose_unless(key, tries, superseded)
            if tries.record.state != "intended":
                return _outcome(tries.record)
            assert tries.taken is not None
            tries.count += 1
            began = self._clock.monotonic()
            try:
                outputs = await self._attempt(key, tries)
            except ProviderError as error:
                ago = self._clock.monotonic() - began
                if not error.rule.retry_in_step:
                    # Surely not made: the next offering may be asked, or there is none.
                    await self._chooser.failed(tries.taken, error, ago)
                    await self._refused(key, tries, error)
                    continue
                wait = max(self._timing.backoff_seconds(tries.count), error.retry_after or 0.0)
                if self._clock.monotonic() + wait >= tries.until:
                    await self._chooser.failed(tries.taken, error, ago)
                    raise await self._give_up(key, error, in_doubt=tries.in_doubt) from error
                await self._store.change(key, _noting(error))
            else:
                if outputs is not None:
                    return outputs
                continue
            if await superseded():
                raise StepFailure("the saga went on without it")
            await self._clock.sleep(wait)
            tries.record = await self._store.get(key) or tries.record
            if tries.record.state != "intended":
                return _outcome(tries.record)

    async def _choose_unless(
        self, key: str, tries: _Tries, superseded: Callable[[], Awaitable[bool]]
    ) -> None:
        """Choose, which may wait for long; a saga that was cancelled meanwhile waits no longer.

        Its node is out of service until then, and what came at last would be ended at once.
        """

        async def until_superseded() -> None:
            while True:
                await asyncio.sleep(OVERTAKEN_LOOK_SECONDS)
                if await superseded():
                    return

        choosing, watching = await race(self._choose(key, tries), until_superseded())
        if not choosing.cancelled():
            choosing.result()
            return
        watching.result()
        if tries.taken is not None:
            await self._chooser.abandon(tries.taken)
        raise StepFailure("the saga went on without it")

    async def _refused(self, key: str, tries: _Tries, error: ProviderError) -> None:
        """Record that an offering was refused; another replica may have taken the next already."""
        refused = tries.record.offering
        await self._store.change(key, _noting(error, refused))
        tries.taken = None
        tries.record = await self._store.get(key) or tries.record
        if tries.record.state == "intended" and tries.record.offering is not None:
            tries.taken, tries.in_doubt = self._chooser.standing(tries.record), True

    async def _choose(self, key: str, tries: _Tries) -> None:
        """Have an offering chosen and recorded; give up where there is none."""
        before = tries.record
        try:
            taken = await self._chooser.take(before, tries.patience)
        except ProviderError as error:
            raise await self._give_up(key, error, in_doubt=tries.in_doubt) from error
        except LaunchRefusedError as error:
            raise await self._refuse(key, error, in_doubt=tries.in_doubt) from error
        elsewhere = taken.record.provider != before.provider
        tries.taken, tries.record = taken, taken.record
        # What one provider may have made in doubt, it has refused by now; the next made nothing.
        tries.in_doubt = taken.followed or (tries.in_doubt and not elsewhere)

    async def _attempt(self, key: str, tries: _Tries) -> ProvisionOutputs | None:
        """Bring it about and record it; None: another replica has brought it on, look again."""
        calls = self._providers.get(tries.record.provider)
        if calls.provider.capabilities.idempotency_token:
            return await self._made(key, tries, await self._once(calls, tries))
        seconds_max = tries.until - self._clock.monotonic()
        try:
            async with self._claims.alone(key, seconds_max) as claim:
                if not await self._first_to_ask(key, tries):
                    return None
                made = await claim.asking(self._once(calls, tries))
                return await self._made(key, tries, made)
        except ProviderError as error:
            tries.in_doubt = tries.in_doubt or error.rule.in_doubt
            raise

    async def _first_to_ask(self, key: str, tries: _Tries) -> bool:
        """Record that it is asked for, and see whether somebody has before; under the claim.

        False: it is not to be asked for any more, or elsewhere.
        """

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            return asking(record, tries.record.offering, tries.asks) if record else None

        record = await self._store.change(key, decide)
        if record is None or not may_ask(record, tries.record.offering):
            if tries.taken is not None:
                await self._chooser.abandon(tries.taken)
            tries.record, tries.in_doubt = record or tries.record, True
            standing = tries.record.offering is not None
            tries.taken = self._chooser.standing(tries.record) if standing else None
            return False
        tries.in_doubt = tries.in_doubt or not alone(record.asks, tries.asks)
        tries.record, tries.asks = record, record.asks
        return True

    async def _made(self, key: str, tries: _Tries, made: Instance) -> ProvisionOutputs | None:
        assert tries.taken is not None
        await self._chooser.came(tries.taken)
        return await self._settle(key, tries, made)

    async def _once(self, calls: ProviderCalls, tries: _Tries) -> Instance:
        """Adopt what an earlier try has made, or ask the provider for it."""
        can = calls.provider.capabilities
        if tries.in_doubt:
            if not can.idempotency_token:
                await self._clock.sleep(can.list_lag_seconds)
            found = instance_decisions.find_adoptable(tries.record, await calls.list_instances())
            if found is not None:
                log.info("adopted", extra={"instance": found.name, "id": found.provider_id})
                return found
        try:
            return await calls.provision(
                request_for(tries.record, self._user_data(tries.record)),
                timeout_seconds=max(tries.until - self._clock.monotonic(), 0.001),
            )
        except ProviderError as error:
            tries.in_doubt = tries.in_doubt or error.rule.in_doubt
            raise

    async def _settle(self, key: str, tries: _Tries, made: Instance) -> ProvisionOutputs | None:
        """Record what was made, or take it away where it is not wanted any more.

        None: another replica has taken the launch elsewhere meanwhile; follow it there.
        """
        settled: instance_decisions.Settlement = instance_decisions.AlreadyRecorded(tries.record)
        provider = tries.record.provider

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            nonlocal settled
            settled = instance_decisions.settle(
                record or tries.record, made, self._clock.now(), provider
            )
            return settled.record

        await self._store.change(key, decide)
        match settled:
            case instance_decisions.RecordRunning(record) | instance_decisions.AlreadyRecorded(
                record
            ):
                return _outputs(record)
            case instance_decisions.SurplusInstance(record):
                await self._remover.remove_unrecorded(provider, made.provider_id)
                if record.state != "intended":
                    return _outcome(record)
                tries.record, tries.in_doubt = record, True
                tries.taken = self._chooser.standing(record)
                return None
            case instance_decisions.RemovedMeanwhile(record):
                log.info("undone while it was launched", extra={"instance": record.instance})
                await self._remover.try_removal(key)
                return _outcome(record)

    async def _give_up(self, key: str, error: ProviderError, *, in_doubt: bool) -> StepFailure:
        """Record that it will not be, and why."""
        await self._end(key, str(error), in_doubt=in_doubt)
        return StepFailure(error.message, error=error.kind)

    async def _refuse(self, key: str, error: LaunchRefusedError, *, in_doubt: bool) -> StepFailure:
        """Record that it is not begun, and why."""
        await self._end(key, str(error), in_doubt=in_doubt)
        return StepFailure(error.reason, error=error.refusal)

    async def _end(self, key: str, why: str, *, in_doubt: bool) -> None:
        """End the record; where a try may have made it all the same, remove it."""

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None or record.state != "intended":
                return None
            ending = instance_decisions.mark_terminating(record, self._clock.now(), why)
            return (
                ending
                if in_doubt
                else instance_decisions.mark_terminated(ending, self._clock.now())
            )

        if await self._store.change(key, decide) is not None and in_doubt:
            await self._remover.try_removal(key)


def _noting(
    error: ProviderError, refused: Offering | None = None
) -> Callable[[InstanceRecord | None], InstanceRecord | None]:
    """Count a try that failed, and say why, where people see it; what was refused costs nothing."""

    def decide(record: InstanceRecord | None) -> InstanceRecord | None:
        if record is None or record.state != "intended":
            return None
        text = str(error)[: instance_decisions.ERROR_CHARS_MAX]
        noted = replace(record, attempts=record.attempts + 1, error=text)
        if refused is None or record.offering != refused:
            return noted
        return replace(noted, offering=None, dollars_per_hour=0.0)

    return decide


def _outcome(record: InstanceRecord) -> ProvisionOutputs:
    """What an earlier try came to: its outputs, or its failure once more."""
    if record.state == "running":
        return _outputs(record)
    kind, _, message = record.error.partition(": ")
    if kind in RULES or kind in get_args(LaunchRefusal):
        raise StepFailure(message, error=kind)
    raise StepFailure(f"the instance is {record.state}: {record.error or 'it was undone'}")


def _outputs(record: InstanceRecord) -> ProvisionOutputs:
    return ProvisionOutputs(
        provider=record.provider,
        provider_id=record.provider_id,
        region=record.region,
        zone=record.zone,
        address=record.address,
        host=record.host,
        instance_type=instance_decisions.type_of(record),
        market=record.offering.market if record.offering is not None else "",
        dollars_per_hour=record.dollars_per_hour or None,
    )
