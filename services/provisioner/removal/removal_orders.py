"""Decides what an order to terminate means, what is left of it, and when it is a leak. Pure."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.enums import ProviderErrorKind
from schemas.instance_records import InstanceRecord
from schemas.names import TOKEN
from schemas.node_records import node_key
from schemas.termination_orders import Authority, SurplusInstance, TerminationOrder
from services.provisioner.instances.instance_decisions import (
    ERROR_CHARS_MAX,
    TERMINATING_STATES,
    authority_of,
    instances_of,
    may_be_hidden,
)
from services.provisioner.provider_client.instance_list import InstanceList
from services.provisioner.provider_client.provider import Instance

REFUSED_FOR_GOOD: Final[tuple[ProviderErrorKind, ...]] = ("INVALID", "UNSUPPORTED")
"""Kinds of a refused removal whose repetition is refused as well: a lock on the instance, a region
that its provider does not have. A login that has expired (AUTH) refuses every removal, until a
person renews it, and the next try succeeds."""


def is_ordered(record: InstanceRecord, instance: Instance) -> bool:
    """Return whether the order of a record, perhaps carried out already, means an instance.

    It means the IDs that it names, and under the node's name those by which its record knew it
    before. That of a launch in doubt knows none and means all that carries its token; what has the
    name of another node is never meant.
    """
    if is_of_other_node(record, instance):
        return False
    mine = (instance.pool, instance.name) == (record.pool, record.instance)
    by_launch = authority_of(record).kind == "launch" or not record.provider_id
    if by_launch and mine and instance.fleet == record.launch.fleet:
        # Not every provider lists tokens.
        return instance.token in ("", record.token) or instance.provider_id in record.ordered
    former = record.former_ids if mine else ()
    return instance.provider_id in (*(record.ordered or (record.provider_id,)), *former)


def is_late(record: InstanceRecord, instance: Instance) -> bool:
    """Return whether an order that was carried out means an instance that is listed still.

    Providers may give an ID again: what was made after its end is another instance.
    """
    ended, made = record.terminated_at, instance.created_at
    again = ended is not None and made is not None and made > ended
    if again and authority_of(record).kind != "launch":
        return False
    return is_ordered(record, instance)


def is_of_other_node(record: InstanceRecord, instance: Instance) -> bool:
    """Return whether a listed instance has the name of another node of the record's fleet."""
    fleet, name = record.launch.fleet, (instance.pool, instance.name)
    named = TOKEN.match(instance.pool) and TOKEN.match(instance.name)
    other = bool(fleet) and instance.fleet == fleet and name != (record.pool, record.instance)
    return other and bool(named)


def remaining_instances(record: InstanceRecord, listed: Iterable[Instance]) -> list[Instance]:
    """Return the listed instances of a record, ordered or not; an ID may be another node's now."""
    return [each for each in instances_of(record, listed) if not is_of_other_node(record, each)]


def ordered_instances(
    record: InstanceRecord, listed: Iterable[Instance], taken: Collection[str] = ()
) -> list[Instance]:
    """Return the listed instances that the order of a record means.

    An order that names another node's ID means the machine that its own launch made instead. None
    means an ID that is `taken`, that is, another record's, whatever name and token the list shows
    beside it: a list may give each node the ID of another one.
    """
    index = InstanceList.of(listed)
    ids = dict.fromkeys((*record.ordered, record.provider_id))
    known = [found for each in ids if each for found in index.by_id.get(each, ())]
    named = index.by_name.get((record.pool, record.instance), ())
    found = {e.provider_id: e for e in (*known, *named) if e.provider_id not in taken}
    mine = [each for each in found.values() if is_ordered(record, each)]
    if mine or not any(is_of_other_node(record, each) for each in known):
        return mine
    # The answer to its launch had another node's ID: the token says which machine it is.
    own = (each for each in named if record.token and each.token == record.token)
    return [each for each in own if each.provider_id not in taken]


def order_of(
    record: InstanceRecord,
    provider: str,
    listed: Iterable[Instance],
    *,
    only_listed: bool = False,
    taken: Collection[str] = (),
) -> TerminationOrder:
    """Return the order for the next attempt: without what is being removed, or another node's.

    `only_listed`: another record has its ID, too, so that the list must show whose it is. `taken`:
    as for `ordered_instances`.
    """
    mine = ordered_instances(record, listed, taken)
    index = InstanceList.of(listed).by_id
    stopping = {each.provider_id for each in mine if each.status == "stopping"}
    known = record.ordered or ((record.provider_id,) if record.provider_id else ())
    unseen = [each for each in known if each not in index and not only_listed]
    ids = (*unseen, *sorted(each.provider_id for each in mine))
    return TerminationOrder(
        provider=provider,
        provider_ids=tuple(each for each in dict.fromkeys(ids) if each not in stopping),
        key=node_key(record.pool, record.instance),
        node=record.instance,
        authority=authority_of(record),
    )


def with_accepted(record: InstanceRecord, by: Authority, now: datetime) -> InstanceRecord:
    """Return a record after a provider has accepted the order of a proof."""
    accepted = replace(by, accepted_at=now)
    surplus = tuple(
        replace(each, authority=accepted) if each.authority == by else each
        for each in record.surplus
    )
    own = accepted if record.authority == by else record.authority
    return replace(record, authority=own, surplus=surplus)


def taken_back(record: InstanceRecord, by: Authority, why: str) -> InstanceRecord:
    """Return a record without the order of a proof: its machine is left to an operator."""
    record = replace(record, surplus=tuple(e for e in record.surplus if e.authority != by))
    if record.state not in TERMINATING_STATES or record.authority != by:
        return record
    error = f"{why}; {orphan_remedy(record.instance)}"[:ERROR_CHARS_MAX]
    return replace(
        record, state="orphaned", error=error, authority=None, ordered=(), terminating_at=None
    )


def orphan_remedy(name: str) -> str:
    """Return the commands that resolve an orphan."""
    return (
        f"`navarch sweep --adopt {name}` makes it a node of its pool, "
        f"`navarch sweep --terminate {name}` removes it"
    )


def order_of_surplus(surplus: SurplusInstance, key: str, node: str) -> TerminationOrder:
    """Return the order for one instance beside that of a record."""
    ids, by = (surplus.provider_id,), surplus.authority
    return TerminationOrder(
        provider=surplus.provider, provider_ids=ids, key=key, node=node, authority=by
    )


def is_absent(
    record: InstanceRecord, listed: Iterable[Instance], asked_at: datetime, lag: timedelta
) -> bool:
    """Return whether a list that was started at `asked_at` proves that the instance is gone.

    It must be late enough that even a lagging list would show the instance: `lag` after its ID
    became known or, without one, after the launch was given up.
    """
    index = InstanceList.of(listed)
    # Also what the order does not mean: it may be the same machine under another ID.
    if remaining_instances(record, index) or may_be_hidden(record, index.hidden_prefixes):
        return False
    known_at = record.running_at if record.provider_id else None
    return asked_at - (known_at or record.terminating_at or record.intended_at) >= lag


def count_removal_attempt(
    record: InstanceRecord, reason: str, now: datetime, *, leak: bool
) -> InstanceRecord:
    """Return the record after another failed removal."""
    return replace(
        record,
        state="leaked" if leak else record.state,
        error=reason[:ERROR_CHARS_MAX],
        removal_attempts=record.removal_attempts + 1,
        removal_tried_at=now,
    )


def is_leak(
    record: InstanceRecord, kind: ProviderErrorKind | None, now: datetime, after: timedelta
) -> bool:
    """Return whether it leaks: the removal takes too long, or no repetition can succeed."""
    if record.state != "terminating":
        return False
    waited = now - (record.terminating_at or record.intended_at)
    return kind in REFUSED_FOR_GOOD or waited >= after


def may_go_on(record: InstanceRecord, now: datetime, waits_seconds: float) -> bool:
    """Return whether a saga need not wait for a removal any longer: the sweep goes on with it."""
    waited = now - (record.terminating_at or record.intended_at)
    return not waits_seconds or waited >= timedelta(seconds=waits_seconds)
