"""Compares providers and records: what a sweep does about each difference. Pure.

An instance without a record is removed only where the records can judge it. One that was launched
by an earlier store of this fleet, before the records were lost, or after the backup from which the
store was restored, is an orphan: it is recorded and left alone until an operator's command adopts
or terminates it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from schemas.enums import FORGOTTEN, NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.machine_identity import MachineIdentity
from schemas.names import TOKEN, node_serial
from schemas.node_records import NodeRecord, is_made_by_others, node_key
from services.provisioner.instances.instance_decisions import (
    ADOPTABLE_STATUSES,
    TERMINATING_STATES,
    down_reason,
    find_adoptable,
    instance_of,
    may_be_hidden,
    why_out_of_region,
)
from services.provisioner.provider_client.instance_list import InstanceList
from services.provisioner.provider_client.provider import Capabilities, Instance
from services.provisioner.removal.kept_instances import kept_seconds
from services.provisioner.removal.removal_orders import (
    is_late,
    is_of_other_node,
    is_ordered,
    ordered_instances,
    remaining_instances,
)
from services.provisioner.removal.sweep_actions import (
    COMMANDED,
    DEPARTED,
    LEFT,
    REMOVALS,
    SweepAction,
    SweepInput,
    SweepKind,
)

FLEET_SUFFIX: Final = re.compile(r"-[0-9a-f]{6}")
"""What distinguishes the fleet ID of one store from those of earlier stores of the same fleet."""


def is_of_fleet(tag: str, fleet: str, name: str) -> bool:
    """Return whether a tag is of this fleet, or of an earlier store of a fleet of this name."""
    earlier = bool(name) and tag.startswith(name) and FLEET_SUFFIX.fullmatch(tag[len(name) :])
    return tag == fleet or bool(earlier)


def decide_sweep(seen: SweepInput) -> tuple[SweepAction, ...]:
    """Compare providers and records both ways; differences within the grace are included."""
    actions: list[SweepAction | None] = []
    shown: set[tuple[str, str]] = set()
    for provider, instances in seen.listed.items():
        adopts = seen.can.get(provider, Capabilities()).adopts
        decide = _decide_joined if adopts else _decide_instance
        for instance in instances:
            if adopts or is_of_fleet(instance.fleet, seen.fleet, seen.fleet_name):
                shown.add((provider, node_key(instance.pool, instance.name)))
                actions.append(decide(seen, provider, instance))
    unseen = {
        provider: InstanceList.of(instances).hidden_prefixes
        for provider, instances in seen.listed.items()
    }
    for key, record in seen.records.items():
        can = seen.can.get(record.provider, Capabilities())
        listed = (
            (record.provider, key) in shown
            or may_be_hidden(record, unseen.get(record.provider, ()))
            or bool(why_out_of_region(record, can))
        )
        actions.append(_decide_record(seen, key, record, can, listed=listed))
        for each in record.surplus[:1]:
            one = msgspec.structs.replace(instance_of(record), provider_id=each.provider_id)
            why = "it was ordered to go"
            actions.append(SweepAction("retry-surplus", key, each.provider, one, why))
    actions += [_decide_unrecorded(seen, key, node) for key, node in seen.unrecorded.items()]
    owners = {
        (each.provider, seen.canonical.get(key, each.provider_id)): (key, each.state)
        for key, each in seen.records.items()
        if each.provider_id
    }
    found = [_spared(each, owners) for each in actions if each is not None]
    found += _doubts(seen, owners)
    return tuple(_commanded(each, seen.terminate) for each in found)


def _doubts(
    seen: SweepInput, owners: Mapping[tuple[str, str], tuple[str, str]]
) -> list[SweepAction]:
    """Return the records whose IDs are listed under the names of other nodes: one of both is wrong.

    A launch that was answered with another node's ID would have that node's machine ended.
    """
    doubts: list[SweepAction] = []
    for provider, instances in seen.listed.items():
        for instance in instances:
            key, state = owners.get((provider, instance.provider_id), ("", ""))
            if state != "running" or (record := seen.records[key]).id_doubted:
                continue
            if is_of_other_node(record, instance):
                why = f"its ID is listed as {instance.name}'s"
                doubts.append(SweepAction("doubt-id", key, provider, instance, why))
    return doubts


def _spared(action: SweepAction, owners: Mapping[tuple[str, str], tuple[str, str]]) -> SweepAction:
    """Return an action that takes no instance for another than the one whose record has its ID.

    A provider whose list gives each node the ID of another one would have healthy machines ended.
    """
    at = action.provider, action.instance.provider_id
    owner, state = owners.get(at, (action.key, ""))
    removes = action.kind in REMOVALS and state == "running"
    corrects = action.kind == "correct-id" and state != "terminated"
    if owner == action.key or not (removes or corrects):
        return action
    return replace(action, kind="note-unclear", why=f"the record of {owner} has its ID")


def _commanded(action: SweepAction, terminate: Collection[str]) -> SweepAction:
    """Return an action as an operator's command makes it, which names an ID or a sole name."""
    if action.kind not in COMMANDED or not terminate:
        return action
    sole = action.kind in ("remove-unexpected", "keep-unnamed")
    names = {action.instance.provider_id, action.instance.name if sole else ""} - {""}
    if not names & set(terminate):
        return action
    kind: SweepKind = "remove-surplus" if action.kind == "note-unclear" else action.kind
    return replace(action, kind=kind, by_operator=True, waits_seconds=0.0)


def due_actions(actions: Sequence[SweepAction], removals_max: int) -> tuple[SweepAction, ...]:
    """Return the actions to perform now, which limits the damage of a mistake.

    They remove at most so many unexpected instances.
    """
    due = [each for each in actions if not each.waits_seconds]
    removals = [each for each in due if each.kind in REMOVALS]
    left = {id(each) for each in removals[removals_max:]}
    return tuple(each for each in due if id(each) not in left)


def _decide_instance(seen: SweepInput, provider: str, instance: Instance) -> SweepAction | None:
    key = node_key(instance.pool, instance.name)
    record = seen.records.get(key)
    waits = _grace_of_listed(seen, provider, instance)
    action = partial(SweepAction, key=key, provider=provider, instance=instance)
    if not (TOKEN.match(instance.pool) and TOKEN.match(instance.name)):
        why = "it has this fleet's tag and no node's name"
        return action("keep-unnamed", why=why)
    if record is not None and record.offering is not None and record.provider != provider:
        # Two names of the configuration may lead into one account; a launch has not ended yet.
        same = instance.provider_id == record.provider_id
        return None if same else _decide_running(seen, provider, instance, record)
    if record is None and key in seen.living:
        return action("restore-record", why="its node is in service, and its record is lost")
    if record is None:
        orphaned = _why_orphaned(seen, instance)
        kind: SweepKind = "keep-orphan" if orphaned else "remove-unexpected"
        waits = 0.0 if _is_unnamed(seen, instance) else waits
        return action(kind, why=orphaned or "no record of it", waits_seconds=waits)
    if record.state == "terminated":
        late: SweepKind = "remove-late" if is_late(record, instance) else "remove-unexpected"
        return action(late, why="its record says that it is gone")
    if record.state == "orphaned":
        kind, why = _judge_orphan(seen, record)
        return action(kind, why=why)
    if record.state == "intended" and find_adoptable(record, seen.listed[provider]) == instance:
        why = "it was launched, and the launch was not finished"
        return action("adopt-instance", why=why, waits_seconds=waits)
    if record.state in TERMINATING_STATES and not is_ordered(record, instance):
        why = f"its record has {', '.join(record.ordered)} removed, which is another"
        return action("remove-surplus", why=why, waits_seconds=waits)
    return _decide_running(seen, provider, instance, record) if record.state == "running" else None


def _decide_running(
    seen: SweepInput, provider: str, instance: Instance, record: InstanceRecord
) -> SweepAction | None:
    """Decide on an instance that has the name of a running one."""
    key = node_key(record.pool, record.instance)
    action = partial(SweepAction, key=key, provider=provider, instance=instance)
    if record.provider_id != instance.provider_id:
        return _decide_differing(seen, provider, instance, record)
    if key in seen.departed:
        waits = _grace_left(seen, record.running_at or record.intended_at)
        return action("orphan-departed", why=DEPARTED, waits_seconds=waits)
    if (down := down_reason(instance)) != record.down_reason:
        return action("mark-down" if down else "mark-up", why=down or "it runs again")
    return None


def _decide_differing(
    seen: SweepInput, provider: str, instance: Instance, record: InstanceRecord
) -> SweepAction | None:
    """Decide on an instance that has a running one's name, and another ID than its record.

    An ID alone proves nothing: providers spell them in several ways, and answer with wrong ones.
    """
    key = node_key(record.pool, record.instance)
    waits = _grace_of_listed(seen, provider, instance)
    action = partial(SweepAction, key=key, provider=provider, instance=instance)
    recorded = seen.canonical.get(key, record.provider_id)
    listed = machines_named(seen, record)
    serves = serving_machine(listed.values(), seen.machines.get(key))
    if record.state != "running" or record.provider not in seen.listed:
        return None
    if instance.status == "stopping":
        return None
    if serves is None:
        why = f"{' and '.join(sorted(listed))} have its name; which is the node is not known"
        return action("note-unclear", why=why, waits_seconds=waits)
    if serves.provider_id != instance.provider_id:
        if serves.provider_id != recorded:
            return None  # the record is corrected first
        why = f"its record names {recorded}, which serves"
        return action("remove-surplus", why=why, waits_seconds=waits, beside=recorded)
    if key in seen.departed:
        return action("orphan-departed", why=DEPARTED, waits_seconds=waits)
    other = recorded if recorded in listed and recorded != instance.provider_id else ""
    sole = "its agent reports its ID or address" if other else "it is the only machine of its name"
    why = f"{sole}, and its record names {record.provider_id}"
    if instance.provider_id == recorded:
        return action("correct-id", why=why)
    waiting = action("correct-id", why=why, waits_seconds=waits, beside=other)
    return waiting if key in seen.living else None


def machines_named(seen: SweepInput, record: InstanceRecord) -> dict[str, Instance]:
    """Return the machines that have the name of a record, by ID; no matter who lists them."""
    name = record.pool, record.instance
    found = (
        each
        for listed in seen.listed.values()
        for each in InstanceList.of(listed).by_name.get(name, ())
        if each.status != "stopping" and is_of_fleet(each.fleet, seen.fleet, seen.fleet_name)
    )
    return {each.provider_id: each for each in found}


def serving_machine(machines: Iterable[Instance], node: MachineIdentity | None) -> Instance | None:
    """Return which of the machines of one name is the node; None: that is not known.

    One that is stopped serves nothing; of the others it is the one whose instance ID, else address,
    its agent reports.
    """
    found = list(machines)
    found = [each for each in found if each.status in ADOPTABLE_STATUSES] or found
    if len(found) > 1 and node is not None and (node.provider_id or node.address):
        by_id = [each for each in found if node.provider_id == each.provider_id]
        known = bool(node.provider_id)
        found = by_id if known else [each for each in found if each.address == node.address]
    return found[0] if len(found) == 1 else None


def _decide_joined(seen: SweepInput, provider: str, instance: Instance) -> SweepAction | None:
    """An instance that others have made; one that this fleet has terminated is leaving."""
    key = node_key(instance.pool, instance.name)
    record = seen.records.get(key)
    action = partial(SweepAction, key=key, provider=provider)
    if instance.status not in ADOPTABLE_STATUSES:
        return None
    node = seen.unrecorded.get(key)
    if node is not None and _is_earlier(node, instance):
        return None
    if record is None and key in seen.living:
        why = "its node is in service, and its record is lost"
        return action("restore-record", instance=instance, why=why)
    same = record is not None and record.provider_id == instance.provider_id
    if record is None or record.state == "terminated":
        wanted = {instance.name, instance.provider_id} & seen.adopt
        ended = record is not None and same and record.error != LEFT and not wanted
        return None if ended else action("adopt-joined", instance=instance, why="it has joined")
    if record.state == "running" and not same:
        why = f"{instance.provider_id} has its name now"
        return action("retire-joined", instance=instance_of(record), why=why)
    if record.state == "running" and record.error == FORGOTTEN:
        return action("retire-joined", instance=instance, why=FORGOTTEN)
    if record.state == "running" and record.error == NOT_LISTED:
        return action("mark-listed", instance=instance, why="its provider lists it again")
    return None


def is_unrecorded(node: NodeRecord, record: InstanceRecord | None) -> bool:
    """Return whether there is no record of the instance of a node that others have made."""
    if not is_made_by_others(node) or node.state == "terminated":
        return False
    if record is None or record.state != "terminated":
        return record is None
    joined_at, ended_at = node.admitted_at, record.terminated_at
    return joined_at is not None and ended_at is not None and joined_at > ended_at


def _decide_unrecorded(seen: SweepInput, key: str, node: NodeRecord) -> SweepAction | None:
    """A node whose instance left before it was recorded: once it is, the node is retired."""
    provider = node.launch.provider if node.launch is not None else ""
    listed = seen.listed.get(provider)
    if listed is None or not seen.can.get(provider, Capabilities()).adopts:
        return None
    named = InstanceList.of(listed).by_name.get((node.pool, node.node), [])
    if any(not _is_earlier(node, each) for each in named):
        return None
    instance = Instance(
        name=node.node,
        provider_id="",
        pool=node.pool,
        region=node.region,
        zone=node.zone,
        address=node.address,
        created_at=node.admitted_at,
    )
    why = "others removed it before it was recorded, and its node is in service"
    waits = _grace_left(seen, node.admitted_at or seen.now)
    return SweepAction("restore-record", key, provider, instance, why, waits)


def _is_earlier(node: NodeRecord, instance: Instance) -> bool:
    """Whether a node was there before an instance of its name was made."""
    admitted_at, created_at = node.admitted_at, instance.created_at
    return admitted_at is not None and created_at is not None and admitted_at < created_at


def _why_orphaned(seen: SweepInput, instance: Instance) -> str:
    """Why these records cannot judge an instance that they lack; empty: they can."""
    if instance.fleet != seen.fleet:
        return f"launched as {instance.fleet}, by a store that is lost: this fleet is {seen.fleet}"
    if _is_unnamed(seen, instance):
        return f"pool {instance.pool} has not named it yet: the store was rolled back since"
    since = seen.records_since
    if since is not None and (instance.created_at is None or instance.created_at < since):
        return f"launched before the records of instances were lost at {since:%Y-%m-%d %H:%M:%S}Z"
    return ""


def _is_unnamed(seen: SweepInput, instance: Instance) -> bool:
    """Whether an instance has a higher number than its pool has given."""
    named = seen.serials.get(instance.pool, 0)
    return node_serial(instance.pool, instance.name) > named


def _judge_orphan(seen: SweepInput, record: InstanceRecord) -> tuple[SweepKind, str]:
    names = {record.instance, record.provider_id}
    if names & seen.terminate:
        return "terminate-orphan", "an operator removes this orphan"
    if names & seen.adopt:
        return "adopt-orphan", "an operator adopts this orphan"
    return "keep-orphan", record.error


def _decide_record(
    seen: SweepInput, key: str, record: InstanceRecord, can: Capabilities, *, listed: bool
) -> SweepAction | None:
    action = partial(SweepAction, key=key, provider=record.provider, instance=instance_of(record))
    if record.state in TERMINATING_STATES:
        kind, why = _judge_removal(seen, record, listed=listed)
        leaked = record.state == "leaked"
        waits = 0.0 if leaked else _grace_left(seen, record.terminating_at or record.intended_at)
        kept = kept_seconds(record, seen.admitted.get(record.pool), seen.now)
        return action(kind, why=why, waits_seconds=max(waits, kept))
    if record.provider not in seen.listed:
        return None
    began = record.intended_at if record.state == "intended" else record.running_at
    waiting = partial(action, waits_seconds=_grace_left(seen, began or record.intended_at))
    found: SweepAction | None = None
    if listed and record.state == "running" and record.error == NOT_LISTED and not can.adopts:
        found = action("mark-listed", why="its provider lists it again")
    if listed or record.state == "terminated":
        return found
    gone = key in seen.departed  # of a running one: its record was rolled back
    match record.state:
        case "orphaned":
            found = action("forget-instance", why="this orphan is no longer listed")
        case "intended" if gone:
            why = "its node is gone, and nothing that it launched is listed"
            found = waiting("end-launch", why=why)
        case "running" if can.adopts:
            found = waiting("retire-joined", why=LEFT)
        case "running" if gone:
            why = "its node is gone, and its provider no longer lists it"
            found = waiting("forget-instance", why=why)
        case "running" if not record.error:
            found = waiting("mark-unlisted", why=NOT_LISTED)
    return found


def _judge_removal(
    seen: SweepInput, record: InstanceRecord, *, listed: bool
) -> tuple[SweepKind, str]:
    instances = seen.listed.get(record.provider)
    if instances is None:
        why = "its provider could not be listed, so it may still exist"
    elif ordered_instances(record, instances):
        why = "it should be gone, and is listed"
    elif remaining_instances(record, instances):
        why = "another machine of its name is listed"
    elif listed:
        why = "its provider could not list the place where it ran, so it may still exist"
    else:
        return "confirm-removal", "its provider no longer lists it"
    return "retry-removal", f"{why}: {record.error}" if record.error else why


def _grace_of_listed(seen: SweepInput, provider: str, instance: Instance) -> float:
    return _grace_left(seen, seen.first_seen.get((provider, instance.provider_id), seen.now))


def _grace_left(seen: SweepInput, since: datetime) -> float:
    return max((seen.grace - (seen.now - since)).total_seconds(), 0.0)
