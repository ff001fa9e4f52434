"""Removes instances: terminates them at the provider and trusts nothing but its list.

A removal ends only when the absence is confirmed. Until then it is retried with back-off, without
end, by the sweep once no saga waits for it; one that takes too long, or that the provider refuses,
is recorded and published as a leak.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from math import inf
from typing import Final, NamedTuple

import msgspec

from schemas.enums import ProviderErrorKind
from schemas.instance_records import InstanceRecord
from schemas.names import TOKEN
from schemas.pool_events import InstanceLeaked
from schemas.proposed_removals import RemovalGate, RemovalProposal
from schemas.termination_orders import Authority, SurplusInstance, TerminationOrder
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_decisions import (
    TERMINATING_STATES,
    mark_listed,
    mark_terminated,
    why_out_of_region,
)
from services.provisioner.instances.instance_store import Change, InstanceStore
from services.provisioner.provider_client.instance_list import InstanceList
from services.provisioner.provider_client.provider import Capabilities, Instance
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal import removal_orders
from services.provisioner.removal.proposals import ANSWER_SECONDS_MAX, Proposals
from services.provisioner.removal.removal_orders import order_of, order_of_surplus
from services.provisioner.time_limits import TimeLimits
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

PROOF_SECONDS_MAX: Final = 30.0
"""How old what proves that no work is on a machine may be when its provider is called."""
UNSWEPT: Final = timedelta(minutes=10)
"""Age up to which perhaps no sweep has seen an instance: many intervals, as a list may fail."""
UNPROVEN: Final[tuple[RemovalGate, ...]] = ("occupied", "unread", "records")
"""Gates that hold a proof's order until its provider has accepted it once."""
PUBLISHED_MAX: Final = 10_000
"""Remembered event IDs; forgetting them publishes the events again."""


class NotRemoved(NamedTuple):
    """One attempt did not remove an instance, for this reason."""

    reason: str
    kind: ProviderErrorKind | None = None
    """None: the provider accepted the removal, and still lists the instance."""
    stopping: bool = False
    """The provider reports that it is removing the instance: it takes its time."""


class Remover:
    """Removes instances by their records."""

    def __init__(
        self, bus: Bus, clock: Clock, store: InstanceStore, providers: Providers, limits: TimeLimits
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers
        self._limits = limits
        self._published: set[str] = set()
        self.proposals = Proposals(bus, clock)

    async def remove(
        self,
        key: str,
        decide: Change,
        is_superseded: Callable[[], Awaitable[bool]],
        accepted_within_seconds: float,
    ) -> bool:
        """Retry until the saga need not wait any longer; False if it went on without it.

        It waits until the provider is removing the instance, and where capacity is fixed until that
        is free; each at most so long: the sweep goes on with the removal. `decide` makes the record
        say that the instance must go, before each attempt: it may be lost between two.
        """
        tries = 0
        while True:
            # Again immediately before the order is used; and meanwhile the store may have been set
            # back, to when the instance was in service.
            if await is_superseded():
                return False
            record = await self._store.change(key, decide)
            result = await self._try_removal(key, record, again=tries > 0)
            if record is None or result is None:
                return True
            waits = accepted_within_seconds
            if result.stopping:  # a launch in its place waits where it can have no other capacity
                calls = self._providers.calls.get(record.provider)
                can = calls.provider.capabilities if calls is not None else Capabilities()
                waits = can.freed_within_seconds if can.fixed_capacity else 0.0
            if removal_orders.may_go_on(record, self._clock.now(), waits):
                return True
            tries += 1
            await self._clock.sleep(self._limits.backoff_seconds(tries))

    async def try_removal(self, key: str) -> bool:
        """Try once; True if no instance of the record is left."""
        return await self._try_removal(key, await self._store.get(key), again=True) is None

    async def _try_removal(
        self, key: str, record: InstanceRecord | None, *, again: bool
    ) -> NotRemoved | None:
        """Try once, wherever it may be; None: no instance is left, or it need not go."""
        if record is None or record.state not in TERMINATING_STATES:
            return None
        judged = record
        for provider in instance_decisions.possible_providers(record, self._providers.calls):
            result, judged = await self._terminate_at(provider, key, judged, again=again)
            if result is not None:
                await self._record_attempt(key, record, result)
                return result
        ids = {record.provider_id, judged.provider_id}

        def gone(now: InstanceRecord | None) -> InstanceRecord | None:
            # What was launched since is not missing from an earlier list.
            known = now is not None and now.provider_id in ids
            return now and (mark_terminated(now, self._clock.now()) if known else now)

        now = await self._store.change(key, gone)
        if now is not None and now.provider_id not in ids:
            return NotRemoved(f"{now.provider_id} was launched meanwhile")
        return None

    async def _terminate_at(
        self, provider: str, key: str, record: InstanceRecord, *, again: bool
    ) -> tuple[NotRemoved | None, InstanceRecord]:
        """Terminate it at one provider; `again`: it was requested before, so a list comes first."""
        try:
            calls = self._providers.get(provider)
            can, record = calls.provider.capabilities, calls.canonical_record(record)
            if unseen := why_out_of_region(record, can):
                return NotRemoved(unseen, "INVALID"), record
            lag = timedelta(seconds=can.list_lag_seconds)
            # A list of many pages shows the state at the time it was started.
            asked_at = self._clock.now()
            # Of an ID that two records have, or that is in doubt, the list says whose it is.
            held = record.id_doubted or bool(await self._store.other_holder(key, record))
            # Only the answer to a recent launch may say that the ID is its own.
            unswept = record.running_at is not None and asked_at - record.running_at < UNSWEPT
            looks = again or not record.provider_id or held or unswept
            listed = await calls.list_instances() if looks else []
            if again and removal_orders.is_absent(record, listed, asked_at, lag):
                return None, record
            if not record.provider and (found := instance_decisions.find_adoptable(record, listed)):
                record = await self._record_found(key, record, provider, found)
            taken = await self._taken_ids(calls, key, record, listed)
            order = order_of(record, provider, listed, only_listed=held, taken=taken)
            await self._carry_out(order)
            if order.provider_ids or not again:
                asked_at = self._clock.now()
                listed = await calls.list_instances()
                taken = await self._taken_ids(calls, key, record, listed)
                more = order_of(record, provider, listed, only_listed=held, taken=taken)
                left = tuple(set(more.provider_ids) - set(order.provider_ids))
                await self._carry_out(msgspec.structs.replace(more, provider_ids=left))
        except ProviderError as error:
            return NotRemoved(str(error), error.kind), record
        if removal_orders.is_absent(record, listed, asked_at, lag):
            return None, record
        mine = removal_orders.ordered_instances(record, listed, taken)
        if mine and all(each.status == "stopping" for each in mine):
            return NotRemoved(f"{provider} is removing it", stopping=True), record
        return NotRemoved(f"{provider} still lists it"), record

    async def _taken_ids(
        self, calls: ProviderCalls, key: str, record: InstanceRecord, listed: Iterable[Instance]
    ) -> frozenset[str]:
        """Return the IDs under the node's name that other records have, in any of their forms."""
        named = InstanceList.of(listed).by_name.get((record.pool, record.instance), ())
        if not {each.provider_id for each in named} - {record.provider_id}:
            return frozenset()
        taken: set[str] = set()
        for name, each in (await self._store.all()).items():
            if name != key and each.state != "terminated":
                known = calls.canonical_record(each)
                taken |= {known.provider_id, *known.former_ids, *known.ordered}
        return frozenset(taken - {"", record.provider_id})

    async def _carry_out(self, order: TerminationOrder) -> None:
        """Ask the provider to terminate: the only place that does."""
        if not order.provider_ids:
            return
        by = order.authority
        about = {"ids": order.provider_ids, "authority": str(by)}
        log.info("terminating", extra={"instance": order.key, **about})
        unproven = by.proof is not None and by.accepted_at is None
        if by.proof is not None and unproven:
            await self._confirm(order, by.proof)
        within = PROOF_SECONDS_MAX - ANSWER_SECONDS_MAX if unproven else inf
        await self._providers.get(order.provider).terminate(order, within)
        if unproven:
            accepted = partial(removal_orders.with_accepted, by=by, now=self._clock.now())
            await self._store.amend(order.key, accepted)

    async def _confirm(self, order: TerminationOrder, proof: RemovalProposal) -> None:
        """Ask again; work that may be on the machine after all takes the order back."""
        answer = await self.proposals.ask(proof)
        if answer.gate == "occupied":
            log.warning("order taken back", extra={"instance": order.key, "reason": answer.reason})
            back = partial(removal_orders.taken_back, by=order.authority, why=answer.reason)
            record = await self._store.amend(order.key, back)
            if record is not None and record.state == "orphaned":
                await self.publish_orphan(record)
        if answer.gate in UNPROVEN:
            raise ProviderError("TRANSIENT", f"not proven any more: {answer.reason}")

    async def _record_found(
        self, key: str, record: InstanceRecord, provider: str, instance: Instance
    ) -> InstanceRecord:
        """Record where an instance is that had no record, before it is terminated there."""

        def decide(found: InstanceRecord) -> InstanceRecord:
            if found.provider:
                return found
            at = msgspec.structs.replace(found, provider=provider)
            return mark_listed(at, instance, self._clock.now())

        return await self._store.amend(key, decide, *TERMINATING_STATES) or record

    async def _record_attempt(self, key: str, record: InstanceRecord, result: NotRemoved) -> None:
        """Record the reason for operators; publish a leak when it is one."""
        log.info("not removed yet", extra={"instance": key, "reason": result.reason})
        after = timedelta(seconds=self._limits.leak_after_seconds)
        now = self._clock.now()
        leak = not result.stopping and removal_orders.is_leak(record, result.kind, now, after)
        if leak:
            # Before the record says so: a crash in between must not lose the event.
            log.warning(
                "instance leaked", extra={"instance": record.instance, "reason": result.reason}
            )
            await self._publish_leak(
                f"leaked-{key}-{record.terminating_at}",
                record.provider,
                instance_decisions.instance_of(record),
                f"{result.reason}. Removal is retried",
                record.saga,
            )
        # A cloud may take a minute to remove a machine: that is not recorded each time.
        if leak or record.state == "leaked" or result.kind is not None:
            counted = partial(
                removal_orders.count_removal_attempt, reason=result.reason, now=now, leak=leak
            )
            await self._store.amend(key, counted, *TERMINATING_STATES)

    async def publish_observed(self, provider: str, instance: Instance, why: str) -> None:
        """Publish an instance that would be removed if its pool were not in observe mode."""
        log.warning("would remove", extra={"instance": instance.name, "reason": why})
        if TOKEN.match(instance.pool):
            event_id = f"observed-{provider}-{instance.provider_id}"
            reason = f"{why}; it would be removed, but the mode is observe"
            await self._publish_leak(event_id, provider, instance, reason)

    async def publish_orphan(self, record: InstanceRecord) -> None:
        """Publish an instance that only an operator's command adopts or terminates: each day."""
        await self._publish_leak(
            f"orphaned-{record.provider}-{record.provider_id}-{self._clock.now():%Y-%m-%d}",
            record.provider,
            instance_decisions.instance_of(record),
            record.error,
            record.saga,
        )

    async def _publish_leak(
        self, event_id: str, provider: str, instance: Instance, reason: str, cause: str = ""
    ) -> None:
        if event_id in self._published:
            return
        event = InstanceLeaked(
            id=event_id,
            time=self._clock.now(),
            cause=cause,
            pool=instance.pool,
            instance=instance.name,
            provider=provider,
            provider_id=instance.provider_id,
            reason=reason,
            dollars_per_hour=instance.dollars_per_hour,
        )
        await publish_event(self._bus, event)
        if len(self._published) >= PUBLISHED_MAX:
            self._published.clear()
        self._published.add(event_id)

    async def remove_unnamed(self, provider: str, instance: Instance, by: Authority) -> bool:
        """Have an instance go that can have no record; an operator sees whether it did."""
        one = SurplusInstance(provider=provider, provider_id=instance.provider_id, authority=by)
        await self._carry_out(order_of_surplus(one, "", instance.name))
        return True

    async def remove_surplus(self, key: str) -> bool:
        """Try once to remove what is beside the instance of a record; False: some of it is left."""
        record = await self._store.get(key)
        if record is None:
            return True
        outcomes = [await self._remove_one(key, record.instance, each) for each in record.surplus]
        return all(outcomes)

    async def _remove_one(self, key: str, node: str, surplus: SurplusInstance) -> bool:
        gone = surplus.provider_id
        try:
            await self._carry_out(order_of_surplus(surplus, key, node))
            listed = await self._providers.get(surplus.provider).list_instances()
        except ProviderError as error:
            about = {"instance": key, "provider_id": gone, "reason": str(error)}
            log.warning("surplus instance not removed; the sweep tries again", extra=about)
            return False
        if gone in InstanceList.of(listed).by_id:
            return False

        def left(found: InstanceRecord) -> InstanceRecord:
            others = tuple(each for each in found.surplus if each.provider_id != gone)
            return msgspec.structs.replace(found, surplus=others)

        await self._store.amend(key, left)
        return True
