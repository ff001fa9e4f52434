"""A node's record as INSTANCES, the saga logs and EVENTS have it, where NODES lost it. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.names import saga_number
from schemas.node_events import NodeEvent, NodeHeld, Released, Terminated, Verdict
from schemas.node_records import NodeRecord
from services.pool_manager.planner.node_projection import apply_event
from services.pool_manager.planner.safety.holds import NodeHold, with_hold
from services.pool_manager.planner.saga_projection import (
    coming_node,
    leaving_node,
    promoted_node,
)
from services.saga.saga_state import SagaState

REPLAYED_FACTS: Final = (
    *("registered", "boot-checked", "verdict", "lost", "returned", "provider-notice"),
    *("held", "released", "workload-state"),
)
"""Events of a node whose last one each is applied again; all of the cloud's notices."""

AGENT_FACTS: Final = ("registered", "boot-checked", "provider-notice")
"""Those that a node's own agent reports, whatever is recorded of an earlier node of its name."""


class StoredEvent(NamedTuple):
    """An event, and where and when it was stored."""

    sequence: int
    stored_at: datetime
    event: NodeEvent


class NodeSources(NamedTuple):
    """The sources hold what is stored about a node outside of NODES."""

    instance: InstanceRecord | None
    sagas: Sequence[SagaState]
    """Every saga that names it."""
    events: Sequence[StoredEvent]
    """The last of each of `REPLAYED_FACTS`, and earlier notices."""


def adopted_node(record: NodeRecord | None, instance: InstanceRecord, now: datetime) -> NodeRecord:
    """Return the node of an instance without a record: in service; a node with one keeps it."""
    if record is not None and record.state != "terminated":
        return record
    launch = msgspec.structs.replace(instance.launch, provider=instance.provider)
    return NodeRecord(
        pool=instance.pool,
        node=instance.instance,
        state="active",
        launch=launch,
        region=instance.region,
        zone=instance.zone,
        address=instance.address,
        host=instance.host,
        market=instance.offering.market if instance.offering is not None else "",
        admitted_at=now,
        changed_at=now,
    )


def is_missed(
    made: NodeRecord, *, launched: bool, beats: bool, now: datetime, expected: timedelta
) -> bool:
    """Return whether a node that is adopted now is silent, and only its record can say so.

    Its first heartbeat is `expected` that long after its agent registered; from then on the
    health-monitor misses it, but it takes a silence from before for that of an earlier node of the
    name. An agent on a machine that others made may not have started yet.
    """
    if beats or (made.registered_at is None and not launched):
        return False
    return made.registered_at is None or made.registered_at + expected <= now


def reconstructed_node(
    record: NodeRecord | None, name: str, sources: NodeSources, now: datetime
) -> NodeRecord | None:
    """Bring a record, of whatever age or lost, up to what else is stored; None: no such node.

    Its own sagas make most of it. A node whose first saga is not kept any more was in service.
    """
    instance, logs = sources.instance, sorted(sources.sagas, key=lambda each: each.sequence)
    earlier = [each for each in logs if _is_earlier(each, instance)]
    sagas = [each for each in logs if not _is_earlier(each, instance)]
    if record is None and not any(each.params.new_node == name for each in sagas):
        if instance is None or not _was_node(instance, sagas):
            return None
        record = adopted_node(None, instance, instance.running_at or now)
        read = max((each.sequence for each in earlier), default=0)
        record = msgspec.structs.replace(record, saga_entry=read)
    for state in sagas:
        record = _with_saga(record, name, state)
    if record is None:
        return None
    cleared_at = max((at for each in sagas if (at := _uncordoned_at(each, name))), default=None)
    for stored in sorted(sources.events, key=lambda each: each.sequence):
        if not _is_older(stored, instance) and not _is_cleared(stored.event, cleared_at):
            record = _with_event(record, stored, now) or record
    ended = [each.saga for each in logs if each.params.node == name and each.ended]
    record = msgspec.structs.replace(record, sagas=max((record.sagas, *map(saga_number, ended))))
    if instance is not None and instance.state == "terminated" and not record.saga:
        return msgspec.structs.replace(record, state="terminated")
    return record


def _was_node(instance: InstanceRecord, sagas: Sequence[SagaState]) -> bool:
    """Whether an instance that no saga brought is a node, or was one that a saga has removed."""
    removed = instance.state in ("terminating", "leaked", "terminated")
    return instance.state == "running" or (removed and bool(sagas))


def as_successor(
    record: NodeRecord, before: NodeRecord | None, ended: Terminated | None
) -> NodeRecord:
    """The record of a node that has the name of one which is gone: its sagas have other numbers."""
    numbers = [record.sagas]
    if before is not None:
        record = msgspec.structs.replace(record, saga_entry=before.saga_entry)
        numbers.append(before.sagas)
    if ended is not None:
        numbers += [ended.sagas, saga_number(ended.saga)]
    return msgspec.structs.replace(record, sagas=max(numbers))


def _is_earlier(state: SagaState, instance: InstanceRecord | None) -> bool:
    """Whether a saga was about an earlier node of the name of one that others have made."""
    joined_at = instance.running_at if instance and not instance.launch.fleet else None
    return joined_at is not None and state.ended and state.started_at < joined_at


def _is_older(stored: StoredEvent, instance: InstanceRecord | None) -> bool:
    """Whether an event was stored before others made the machine: it is about an earlier one.

    That one may never have been adopted, or its end may not be published yet. A verdict that an
    operator replays is stored later than it was decided on.
    """
    made_at = instance.created_at if instance is not None else None
    verdict_at = stored.event.time if isinstance(stored.event, Verdict) else stored.stored_at
    return made_at is not None and min(stored.stored_at, verdict_at) < made_at


def _with_saga(record: NodeRecord | None, name: str, state: SagaState) -> NodeRecord | None:
    params = state.params
    if params.node == name:
        record = leaving_node(record, state)
    if params.new_node == name:
        record = coming_node(record, state)
    if params.promotes == name != params.node:
        record = promoted_node(record, state)
    return record


def _with_event(record: NodeRecord, stored: StoredEvent, now: datetime) -> NodeRecord | None:
    match stored.event:
        case NodeHeld(pool=pool, node=node, until=until, by=by, reason=reason):
            hold = NodeHold(pool=pool, node=node, until=until, by=by, reason=reason)
            return with_hold(record, hold) if until > now else record
        case Released(pool=pool, node=node):
            return with_hold(record, NodeHold(pool=pool, node=node))
        case event:
            return apply_event(record, event, stored.stored_at)


def _uncordoned_at(state: SagaState, name: str) -> datetime | None:
    step = state.step("uncordon")
    return step.ended_at if state.params.node == name and step.status == "succeeded" else None


def _is_cleared(event: NodeEvent, cleared_at: datetime | None) -> bool:
    """Whether an uncordon has cleared a verdict."""
    return isinstance(event, Verdict) and cleared_at is not None and event.time <= cleared_at
