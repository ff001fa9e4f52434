"""A node's identity is fixed at admission; later reports of its agent change nothing of it. Pure.

Root on a node may publish what it likes as its agent: the GPUs of other machines, whose serials
would be condemned for its faults, or the rack of others, which would be replaced with it. So GPUs,
rack, NVLink domain, machine and instance stay as they were, and a report that differs is a
condition of the node until the agent reports the fixed identity again or an operator accepts it.
What a report lacks is unknown, and no difference. GPUs of a live node are never taken.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas.enums import HardwareKind
from schemas.gpu_samples import GpuIdentity
from schemas.machine_identity import GPUS_MAX, FixedIdentity, NodeMachines
from schemas.node_events import IdentityChanged, NodeEvent, Registered
from schemas.node_records import NodeRecord, node_key

Owners = Callable[[HardwareKind, str], str]
"""Returns `<pool>.<node>` of the live node that has a GPU; empty: none has."""
CLOUD_FORMS: Final = {
    "aws": re.compile(r"i-[0-9a-f]{8,17}"),
    "gcp": re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]/[a-z][a-z0-9-]*"),
}
"""An agent's word on its instance is compared where the provider's has the same form: a machine of
SSH, or one that joined, may be of a cloud, too. An Azure machine is named like any host."""
SHOWN_MAX: Final = 4
DIGEST_CHARS: Final = 12


class NotAcceptedError(ValueError):
    """An identity cannot be accepted."""


def no_owner(_: HardwareKind, __: str) -> str:
    """Return that no live node has a GPU."""
    return ""


def reported(event: Registered, at: datetime) -> FixedIdentity:
    """Return what a registration says that is fixed at admission."""
    return FixedIdentity(
        gpus=event.gpus[:GPUS_MAX],
        rack=event.rack,
        nvlink_domain=event.nvlink_domain,
        machine_id=event.machine_id,
        provider_id=event.provider_id,
        since=at,
    )


def names(gpus: Sequence[GpuIdentity]) -> Iterator[tuple[HardwareKind, str]]:
    """Yield what GPUs are known by: UUIDs and serials."""
    for gpu in gpus:
        if gpu.uuid:
            yield "gpu", gpu.uuid
        if gpu.serial:
            yield "serial", gpu.serial


def is_live(node: NodeRecord) -> bool:
    """Return whether no other node can have this one's GPUs."""
    return not node.lost and node.state != "terminated"


def at_admission(node: NodeRecord, provider_id: str, at: datetime) -> NodeMachines | None:
    """Return a node's identity as it is admitted; `provider_id`: as its provider has answered.

    An ID that the agent reports otherwise is a difference, and does not count.
    """
    known = node.identity
    if known is None or known.fixed is not None:
        return known
    seen = FixedIdentity(
        gpus=node.gpus[:GPUS_MAX],
        rack=node.rack,
        nvlink_domain=node.nvlink_domain,
        machine_id=known.machine.machine_id,
        provider_id=known.machine.provider_id,
        since=at,
    )
    is_comparable = _cloud_of(provider_id) == _cloud_of(seen.provider_id) != ""
    fixed = replace(seen, provider_id=provider_id if is_comparable else seen.provider_id)
    claimed = seen if differences(fixed, seen) else None
    return replace(known, fixed=fixed, claimed=claimed, duplicate_of=())


def settled(
    node: NodeRecord, known: NodeMachines, event: Registered, owners: Owners, at: datetime
) -> NodeMachines:
    """Return a node's identity after a registration of its own machine."""
    seen, fixed = reported(event, at), known.fixed
    taken = _taken(node, seen, fixed, owners)
    if taken:
        return _claims(known, seen, taken)
    if node.admitted_at is None:
        return _without_claim(known, at)
    if fixed is None:
        # Admitted before this was recorded: fixed by the first report that is complete.
        is_whole = bool(seen.gpus) or not node.gpus
        return replace(_without_claim(known, at), fixed=seen if is_whole else None)
    if not differences(fixed, seen):
        return replace(_without_claim(known, at), fixed=_with_learned(fixed, seen))
    if _is_ordered(node, event, fixed, seen):
        return replace(_without_claim(known, at), fixed=_over(fixed, seen))
    return _claims(known, seen, ())


def differences(fixed: FixedIdentity, claimed: FixedIdentity) -> tuple[str, ...]:
    """Return how a claimed identity differs, one sentence each; nothing that was not read."""
    found: list[str] = []
    before = set(names(fixed.gpus))
    new = [each for each in names(claimed.gpus) if each not in before]
    for kind, word in (("gpu", "GPUs"), ("serial", "GPU serials")):
        values = [value for of, value in new if of == kind]
        if values:
            found.append(f"{word} {_some(values)} instead of {_some(_values(fixed, kind))}")
    if len(claimed.gpus) > len(fixed.gpus):
        found.append(f"{len(claimed.gpus)} GPUs instead of {len(fixed.gpus)}")
    for what in ("index", "uuid"):
        values = [str(getattr(each, what)) for each in claimed.gpus if getattr(each, what) != ""]
        if len(set(values)) < len(values):
            found.append(f"several GPUs of the same {what}")
    # Without the domain the rack is another source's word, or not read.
    has_rack = claimed.nvlink_domain or not fixed.nvlink_domain
    for word, old, now in (
        ("rack", fixed.rack, claimed.rack if has_rack else ""),
        ("NVLink domain", fixed.nvlink_domain, claimed.nvlink_domain),
    ):
        if now and now != old:
            found.append(f"{word} {now} instead of {old or 'none'}")
    for word, old, now in (
        ("machine", fixed.machine_id, claimed.machine_id),
        ("instance", fixed.provider_id, claimed.provider_id),
    ):
        if old and now and old.casefold() != now.casefold():
            found.append(f"{word} {now} instead of {old}")
    return tuple(found)


def digest(claimed: FixedIdentity) -> str:
    """Return the short name of a claim, so that what was shown is what is accepted."""
    text = msgspec.json.encode(
        (
            sorted(names(claimed.gpus)),
            *(claimed.rack, claimed.nvlink_domain, claimed.machine_id, claimed.provider_id),
        )
    )
    return hashlib.sha256(text).hexdigest()[:DIGEST_CHARS]


def claim_of(node: NodeRecord) -> str:
    """Return the short name of what a node's agent reports; empty where that is the node's own."""
    known = node.identity
    return digest(known.claimed) if known is not None and known.claimed is not None else ""


def duplicates(node: NodeRecord) -> str:
    """Return why a node that claims a live node's GPUs is not admitted; empty where it does not."""
    known = node.identity
    if known is None or not known.duplicate_of:
        return ""
    return (
        f"its agent reports GPUs of {', '.join(known.duplicate_of[:SHOWN_MAX])}, which is in "
        "service"
    )


def accepted(node: NodeRecord, claim: str, by: str, owners: Owners, now: datetime) -> NodeRecord:
    """Return a node's record with the claimed identity as its own; raise where that cannot be."""
    known = node.identity
    if known is None or known.claimed is None or node.state == "terminated":
        raise NotAcceptedError(f"{node.node} reports the identity that it was admitted with")
    if known.fixed is None:
        raise NotAcceptedError(f"{node.node} is not admitted: {duplicates(node)}")
    if claim != digest(known.claimed):
        raise NotAcceptedError(
            f"{node.node} reports another identity since: "
            f"{'; '.join(differences(known.fixed, known.claimed))}; look at it again"
        )
    taken = _taken(node, known.claimed, known.fixed, owners)
    if taken:
        raise NotAcceptedError(
            f"GPUs of what {node.node} reports are in {_some(taken)}: one of the two reports a "
            "false identity, or both run on one machine; terminate the other one first"
        )
    fixed = replace(_over(known.fixed, known.claimed), since=now)
    identity = replace(
        known, fixed=fixed, claimed=None, duplicate_of=(), settled_at=now, accepted_by=by
    )
    return replace(
        node,
        identity=identity,
        gpus=fixed.gpus,
        rack=fixed.rack,
        nvlink_domain=fixed.nvlink_domain,
        changed_at=now,
    )


def identity_event(node: NodeRecord, event: NodeEvent, at: datetime) -> IdentityChanged | None:
    """Return the event that a registration showed another identity, or the fixed one again."""
    known = node.identity
    if known is None or not isinstance(event, Registered):
        return None
    if known.claimed is not None:
        return changed_event(node, event.id, at)
    if known.settled_at != at or known.accepted_by:
        return None
    return IdentityChanged(
        id=f"identity-{node_key(node.pool, node.node)}-restored-{event.id}",
        time=at,
        cause=event.id,
        pool=node.pool,
        node=node.node,
        status="restored",
        reason="its agent reports the identity that it was admitted with",
    )


def changed_event(node: NodeRecord, cause: str, at: datetime) -> IdentityChanged | None:
    """Return the event that a node's agent reports another identity; None: it does not.

    Each hour once for each claim.
    """
    known = node.identity
    if known is None or known.claimed is None:
        return None
    remedy = (
        "find out what runs as this node's agent; where the machine was repaired or moved: "
        f"navarch identity accept {node.node}"
        if known.fixed
        else "find out which of the two has these GPUs; the new node is not admitted"
    )
    name = f"identity-{node_key(node.pool, node.node)}-{digest(known.claimed)}"
    return IdentityChanged(
        id=f"{name}-{at:%Y-%m-%dT%H}",
        time=at,
        cause=cause,
        pool=node.pool,
        node=node.node,
        status="changed",
        reason=f"its agent reports {difference(node)}; what it was admitted with stays in force",
        remedy=remedy,
    )


def difference(node: NodeRecord) -> str:
    """Return what a node's agent reports that is not the node's; empty where it reports nothing."""
    known = node.identity
    if known is None or known.claimed is None:
        return ""
    found = differences(known.fixed, known.claimed) if known.fixed else ()
    of = (f"GPUs of {_some(known.duplicate_of)}, which is in service",)
    return "; ".join(found + (of if known.duplicate_of else ()))


def accepted_event(node: NodeRecord, reason: str, by: str, now: datetime) -> IdentityChanged:
    """Return the event that an operator has accepted what a node's agent reports."""
    return IdentityChanged(
        id=f"identity-{node_key(node.pool, node.node)}-accepted-{now.isoformat()}",
        time=now,
        pool=node.pool,
        node=node.node,
        status="accepted",
        reason=reason,
        by=by,
    )


def _taken(
    node: NodeRecord, seen: FixedIdentity, fixed: FixedIdentity | None, owners: Owners
) -> tuple[str, ...]:
    """Return the live nodes that have GPUs of a report; its own do not count."""
    own = set(names(fixed.gpus)) if fixed else set()
    mine = node_key(node.pool, node.node)
    found = (owners(*each) for each in names(seen.gpus) if each not in own)
    return tuple(dict.fromkeys(each for each in found if each not in ("", mine)))


def _claims(known: NodeMachines, seen: FixedIdentity, taken: tuple[str, ...]) -> NodeMachines:
    before = known.claimed
    if before is not None and digest(before) == digest(seen):
        seen = replace(seen, since=before.since)
    return replace(known, claimed=seen, duplicate_of=taken)


def _without_claim(known: NodeMachines, at: datetime) -> NodeMachines:
    if known.claimed is None:
        return known
    return replace(known, claimed=None, duplicate_of=(), settled_at=at, accepted_by="")


def _with_learned(fixed: FixedIdentity, seen: FixedIdentity) -> FixedIdentity:
    """Return the fixed identity with what decides about no other node, and was not read before."""
    return replace(
        fixed,
        machine_id=fixed.machine_id or seen.machine_id,
        provider_id=fixed.provider_id or seen.provider_id,
    )


def _over(fixed: FixedIdentity, seen: FixedIdentity) -> FixedIdentity:
    """Return a new identity; what it does not say stays as it was."""
    return FixedIdentity(
        gpus=seen.gpus or fixed.gpus,
        rack=seen.rack or fixed.rack,
        nvlink_domain=seen.nvlink_domain or fixed.nvlink_domain,
        machine_id=seen.machine_id or fixed.machine_id,
        provider_id=seen.provider_id or fixed.provider_id,
        since=seen.since,
    )


def _is_ordered(
    node: NodeRecord, event: Registered, fixed: FixedIdentity, seen: FixedIdentity
) -> bool:
    """Return whether Navarch has switched the machine off and on: its cloud may have moved it.

    As many GPUs, all of them others; its rack and its instance are the same.
    """
    last = node.attempts[-1] if node.attempts else None
    runs = last is not None and last.kind == "reboot" and last.outcome == "open"
    if not runs or not node.restarts_cold or event.boot_id in ("", node.boot_id):
        return False
    others = not set(names(fixed.gpus)) & set(names(seen.gpus))
    known = replace(fixed, gpus=seen.gpus, machine_id="")
    return others and len(seen.gpus) == len(fixed.gpus) and not differences(known, seen)


def _cloud_of(provider_id: str) -> str:
    """Return the cloud whose form an instance's ID has; empty: other providers name a host."""
    found = (cloud for cloud, form in CLOUD_FORMS.items() if form.fullmatch(provider_id))
    return next(found, "")


def _values(identity: FixedIdentity, kind: str) -> list[str]:
    return [value for of, value in names(identity.gpus) if of == kind]


def _some(values: Sequence[str]) -> str:
    shown = ", ".join(values[:SHOWN_MAX]) or "none"
    more = len(values) - SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
