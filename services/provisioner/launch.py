"""Launches instances so that a crash at any point costs a repetition and never an instance.

The order is what makes it exact: the intention is recorded, then the provider is asked, then the
answer is recorded. A try that is not surely the first lists before it asks. The answer is recorded
by compare-and-set; where the record says by then that the instance is to go, it goes at once.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from schemas.records import InstanceRecord, node_key
from schemas.sagas import ProvisionInputs, ProvisionOutputs
from services.provisioner import core
from services.provisioner.calls import ProviderCalls, Providers
from services.provisioner.errors import RULES, ProviderError
from services.provisioner.provider import Instance
from services.provisioner.removal import Remover, Timing
from services.provisioner.store import InstanceStore
from services.runtime.clock import Clock
from services.saga.participant import StepFailure

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Tries:
    """Where one launch has got to."""

    record: InstanceRecord
    calls: ProviderCalls
    zones: tuple[str, ...]
    until: float
    """By the monotonic clock."""
    in_doubt: bool
    """An earlier try may have made it."""
    count: int = 0


class Launcher:
    """Performs the provision step."""

    def __init__(
        self,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        remover: Remover,
        timing: Timing,
        user_data: Callable[[InstanceRecord], str],
    ) -> None:
        """Work with these; `user_data` makes what a machine is told at its first boot."""
        self._clock = clock
        self._store = store
        self._providers = providers
        self._remover = remover
        self._timing = timing
        self._user_data = user_data

    async def launch(
        self, inputs: ProvisionInputs, saga: str, overtaken: Callable[[], Awaitable[bool]]
    ) -> ProvisionOutputs:
        """Bring about the one instance of this intention, or raise StepFailure."""
        launch = inputs.launch
        record = core.intended(inputs.pool, inputs.node, launch, saga, self._clock.now())
        key = node_key(record.pool, record.instance)
        fresh = await self._store.create(record)
        if not fresh:
            record = await self._store.get(key) or record
            if record.state != "intended":
                return _outcome(record)
        try:
            calls = self._providers.get(launch.provider)
        except ProviderError as error:
            raise await self._give_up(key, error, in_doubt=False) from error
        tries = _Tries(
            record=record,
            calls=calls,
            zones=launch.zones or ("",),
            until=self._clock.monotonic() + inputs.timeout_seconds,
            in_doubt=not fresh,
        )
        return await self._keep_trying(key, tries, overtaken)

    async def _keep_trying(
        self, key: str, tries: _Tries, overtaken: Callable[[], Awaitable[bool]]
    ) -> ProvisionOutputs:
        while True:
            tries.count += 1
            try:
                made = await self._once(tries)
            except ProviderError as error:
                if await self._another_zone(tries, error):
                    continue
                wait = max(self._timing.backoff_seconds(tries.count), error.retry_after or 0.0)
                in_time = self._clock.monotonic() + wait < tries.until
                if not (error.rule.retry_in_step and in_time):
                    raise await self._give_up(key, error, in_doubt=tries.in_doubt) from error
                await self._store.change(key, _noting(error))
            else:
                return await self._settle(key, tries, made)
            if await overtaken():
                raise StepFailure("the saga went on without it")
            await self._clock.sleep(wait)
            tries.record = await self._store.get(key) or tries.record
            if tries.record.state != "intended":
                return _outcome(tries.record)

    async def _once(self, tries: _Tries) -> Instance:
        """Adopt what an earlier try has made, or ask the provider for it."""
        can = tries.calls.provider.capabilities
        if tries.in_doubt:
            if not can.idempotency_token:
                await self._clock.sleep(can.list_lag_seconds)
            found = core.adoptable(tries.record, await tries.calls.listed())
            if found is not None:
                log.info("adopted", extra={"instance": found.name, "id": found.provider_id})
                return found
        try:
            return await tries.calls.provision(
                core.request_for(tries.record, tries.zones[0], self._user_data(tries.record)),
                timeout_seconds=max(tries.until - self._clock.monotonic(), 0.001),
            )
        except ProviderError as error:
            tries.in_doubt = tries.in_doubt or error.rule.in_doubt
            raise

    async def _another_zone(self, tries: _Tries, error: ProviderError) -> bool:
        """Go on to the next zone where this one is out of capacity."""
        if error.kind != "CAPACITY" or len(tries.zones) == 1:
            return False
        log.info("no capacity", extra={"instance": tries.record.instance, "zone": tries.zones[0]})
        tries.zones = tries.zones[1:]
        return True

    async def _settle(self, key: str, tries: _Tries, made: Instance) -> ProvisionOutputs:
        """Record what was made, or take it away where it is not wanted any more."""
        settled: core.Settlement = core.Known(tries.record)

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            nonlocal settled
            settled = core.settle(record or tries.record, made, self._clock.now())
            return settled.record

        await self._store.change(key, decide)
        match settled:
            case core.Keep(record) | core.Known(record):
                return _outputs(record)
            case core.Surplus(record):
                await self._remover.at_once(record.provider, made.provider_id)
                return _outputs(record)
            case core.Overtaken(record):
                log.info("undone while it was launched", extra={"instance": record.instance})
                await self._remover.once(key)
                return _outcome(record)

    async def _give_up(self, key: str, error: ProviderError, *, in_doubt: bool) -> StepFailure:
        """Record that it will not be; where a try may have made it all the same, remove it."""

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None or record.state != "intended":
                return None
            ending = core.removing(record, self._clock.now(), str(error))
            return ending if in_doubt else core.gone(ending, self._clock.now())

        if await self._store.change(key, decide) is not None and in_doubt:
            await self._remover.once(key)
        return StepFailure(error.message, error=error.kind)


def _noting(error: ProviderError) -> Callable[[InstanceRecord | None], InstanceRecord | None]:
    """Count a try that failed, and say why, where people see it."""

    def decide(record: InstanceRecord | None) -> InstanceRecord | None:
        if record is None or record.state != "intended":
            return None
        text = str(error)[: core.ERROR_CHARS_MAX]
        return replace(record, attempts=record.attempts + 1, error=text)

    return decide


def _outcome(record: InstanceRecord) -> ProvisionOutputs:
    """What an earlier try came to: its outputs, or its failure once more."""
    if record.state == "running":
        return _outputs(record)
    kind, _, message = record.error.partition(": ")
    if kind in RULES:
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
    )
