"""A registration is of the node's machine, of its successor, or of a second one. Pure.

A boot that has been followed by another one never comes back. So where the earlier of two boots
registers again, and not with GPUs or the instance ID that they share, two machines use one name.
The same holds where the GPUs change to those of another machine and back. The machine that was
heard later under the name is refused; it stays refused over its reboots, for as long as the node
exists. A machine of which nothing can be compared counts as the same one.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.machine_identity import GPUS_MAX, OTHERS_MAX, MachineIdentity, NodeMachines
from schemas.node_events import MachineRefused, NodeEvent, Registered
from schemas.node_records import NodeRecord
from services.pool_manager.planner.fixed_identity import identity_event

ALTERNATING: Final = timedelta(hours=1)
"""Within so long GPUs that change, change back and change again are those of two machines."""
REMEDY: Final = (
    "give the agent of the refused machine a node ID of its own (NAVARCH_NODE), or stop it; if it "
    "is the machine that is to stay, replace the node"
)
SERIALS_SHOWN_MAX: Final = 4


def identified(known: NodeMachines | None, event: Registered, stored_at: datetime) -> NodeMachines:
    """The identity of a node after a registration; the same twice changes nothing more."""
    seen = machine_of(event, stored_at)
    if known is None:
        return NodeMachines(machine=seen)
    refused = next((each for each in known.refused if _is_machine(each, seen)), None)
    if refused is not None:
        return replace(known, refused=_with(known.refused, _again(refused, seen)))
    current = known.machine
    if _is_boot(current, seen):
        return replace(known, machine=_again(current, seen))
    earlier = next((each for each in known.earlier if _is_boot(each, seen)), None)
    if earlier is not None and seen.registered_at <= earlier.registered_at:
        return known  # delivered once more
    if stored_at < current.heard_at:
        return replace(known, earlier=_with(known.earlier, seen))
    same = is_same(current, seen)
    heard = [e.since for e in (current, *known.earlier) if e is earlier or is_same(e, seen)]
    heard += [current.since] if same is None else []
    seen = replace(seen, since=min(heard, default=stored_at))
    if (earlier is not None and same is not True) or _alternates(known, seen):
        return _of_two(known, seen)
    return replace(known, machine=seen, earlier=_with(known.earlier, current))


def machine_of(event: Registered, stored_at: datetime) -> MachineIdentity:
    """Return what a registration says of its machine."""
    return MachineIdentity(
        boot_id=event.boot_id,
        provider_id=event.provider_id,
        hostname=event.hostname,
        address=event.address,
        gpus=tuple(each.uuid for each in event.gpus if each.uuid)[:GPUS_MAX],
        serials=tuple(each.serial for each in event.gpus if each.serial)[:GPUS_MAX],
        machine_id=event.machine_id,
        rack=event.rack,
        nvlink_domain=event.nvlink_domain,
        since=stored_at,
        heard_at=stored_at,
        registered_at=event.time,
    )


def is_same(one: MachineIdentity, other: MachineIdentity) -> bool | None:
    """Return whether two boots are of one machine; None: nothing of them can be compared."""
    if one.provider_id and other.provider_id:
        return one.provider_id == other.provider_id
    if one.gpus and other.gpus:
        return bool({*one.gpus} & {*other.gpus})
    return None


def is_own(known: NodeMachines, event: Registered, stored_at: datetime) -> bool:
    """Return whether a registration is of the boot that the node is in."""
    return _is_boot(known.machine, machine_of(event, stored_at))


def refusal(node: NodeRecord, event: NodeEvent, stored_at: datetime) -> MachineRefused | None:
    """The event that a registration was of a refused machine, or showed that there is one.

    Of a boot once an hour, so that its alert lasts as long as the machine is heard.
    """
    if not isinstance(event, Registered) or node.identity is None:
        return None
    known, seen = node.identity, machine_of(event, stored_at)
    own = is_own(known, event, stored_at)
    found = next(
        (
            each
            for each in known.refused
            if (stored_at - each.heard_at < ALTERNATING if own else _is_boot(each, seen))
        ),
        None,
    )
    if found is None:
        return None
    return MachineRefused(
        id=f"machine-refused-{node.pool}.{node.node}-{found.boot_id}-{stored_at:%Y-%m-%dT%H}",
        time=stored_at,
        cause=event.id,
        pool=node.pool,
        node=node.node,
        machine=known.machine,
        refused=found,
        reason=f"{called(found)} registers as this node, which is {called(known.machine)}",
        remedy=REMEDY,
    )


def identity_facts(node: NodeRecord, event: NodeEvent, stored_at: datetime) -> list[NodeEvent]:
    """Return what a registration showed: a second machine, or an identity that is not the fixed."""
    found = (refusal(node, event, stored_at), identity_event(node, event, stored_at))
    return [each for each in found if each is not None]


def called(machine: MachineIdentity) -> str:
    """A machine as an operator can find it."""
    serials = ", ".join(machine.serials[:SERIALS_SHOWN_MAX])
    about = (
        *("" if not machine.provider_id else f"instance {machine.provider_id}", machine.address),
        *("" if not serials else f"GPU serials {serials}", f"boot {machine.boot_id}"),
    )
    name = machine.hostname or "a machine without a host name"
    return f"{name} ({'; '.join(each for each in about if each)})"


def _of_two(known: NodeMachines, seen: MachineIdentity) -> NodeMachines:
    """Two machines use the name: the one that was heard later is refused."""
    current = known.machine
    earlier = tuple(each for each in known.earlier if not _is_machine(each, seen))
    if seen.since <= current.since:
        kept = tuple(each for each in earlier if is_same(each, current) is not True)
        return NodeMachines(machine=seen, earlier=kept, refused=_with(known.refused, current))
    return NodeMachines(machine=current, earlier=earlier, refused=_with(known.refused, seen))


def _alternates(known: NodeMachines, seen: MachineIdentity) -> bool:
    """Whether the GPUs were these, then those of now, then these, then those, within the time."""
    if is_same(known.machine, seen) is not False:
        return False
    after = [each for each in known.earlier if seen.heard_at - each.heard_at < ALTERNATING]
    place = next((n for n, each in enumerate(after) if is_same(each, seen)), len(after))
    return any(is_same(each, known.machine) for each in after[place + 1 :])


def _is_boot(one: MachineIdentity, other: MachineIdentity) -> bool:
    return one.boot_id == other.boot_id and is_same(one, other) is not False


def _is_machine(one: MachineIdentity, other: MachineIdentity) -> bool:
    return _is_boot(one, other) or bool(is_same(one, other))


def _again(known: MachineIdentity, seen: MachineIdentity) -> MachineIdentity:
    """A machine that registers once more; what this registration lacks stays known."""
    return replace(
        seen,
        provider_id=seen.provider_id or known.provider_id,
        machine_id=seen.machine_id or known.machine_id,
        gpus=_joined(seen.gpus, known.gpus),
        serials=_joined(seen.serials, known.serials),
        since=known.since,
        heard_at=max(seen.heard_at, known.heard_at),
        registered_at=max(seen.registered_at, known.registered_at),
    )


def _joined(new: Iterable[str], old: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*new, *old)))[:GPUS_MAX]


def _with(
    others: tuple[MachineIdentity, ...], machine: MachineIdentity
) -> tuple[MachineIdentity, ...]:
    """The machines with this one first; each boot is there once."""
    return (machine, *(each for each in others if not _is_boot(each, machine)))[:OTHERS_MAX]
