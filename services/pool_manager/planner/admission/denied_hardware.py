"""Hardware that must not come back: what is remembered of it, and what it is recognised by. Pure.

A node whose verdict calls for its replacement, or that resets and reboots did not help, leaves its
GPU's UUID and serial behind, or its host's identity where the GPU is not known: whether it is
replaced for that, removed as surplus, or by an operator. A new node that has one of them is not
admitted. Where only the node as a whole is suspect, one of its GPUs is remembered, and not for as
long: a node that fell silent for good, and one that was not admitted although others of its kind
serve. It is enough for the machine to be recognised.

All of it is what an agent has reported, so that it is limited: one GPU of a node in a day, of those
that the node was admitted with, and none while its agent reports others.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from schemas.enums import DENIED_HARDWARE, MISPLACED, Action, HardwareKind
from schemas.fault_signature import SILENCE, called, is_of_drill
from schemas.gpu_samples import GpuIdentity
from schemas.hardware_denylist import HardwareRecord
from schemas.node_records import NodeRecord
from services.pool_manager.planner import fixed_identity
from services.pool_manager.planner.node_counts import in_place_attempts
from services.saga.saga_state import SagaState

TTL_SECONDS: Final = 180 * 86_400
"""How long it is remembered; by then it has been repaired, or is gone."""
LOST_FOR: Final = timedelta(days=7)
"""A machine may have died of what a power cycle or a technician ends."""
ARRIVAL_FOR: Final = timedelta(days=1)
"""Of a machine that was not admitted; by then its provider has found or repaired it."""
SILENT_FOR: Final = timedelta(minutes=5)
"""A node that leaves for another reason has been silent for good after so long."""
LISTED_EACH: Final = timedelta(days=1)
"""A node's reports have one GPU listed within so long."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_=-]{1,128}\Z")


def key(kind: HardwareKind, value: str) -> str:
    """Key of a piece of hardware in HARDWARE; a value that no key may hold is hashed."""
    plain = value if _PLAIN.match(value) else hashlib.sha256(value.encode()).hexdigest()[:32]
    return f"{kind}.{plain}"


def host_of(node: NodeRecord) -> str:
    """The host as its provider names it, and whose word that is."""
    return f"{node.launch.provider}/{node.host}" if node.launch and node.host else ""


def identities(node: NodeRecord) -> list[tuple[HardwareKind, str]]:
    """Everything that a node is recognised by."""
    found = list(fixed_identity.names(node.gpus))
    host = host_of(node)
    return [*found, ("host", host)] if host else found


def condemned(
    state: SagaState, node: NodeRecord | None, now: datetime, *, in_incident: bool = False
) -> dict[str, HardwareRecord]:
    """Return what to remember of a removed node's hardware; nothing where it had no fault.

    `in_incident`: many nodes have its fault, so that the hardware may not be the cause.
    """
    if node is None:
        return {}
    reason = _replaced_for(state, node) or ("" if in_incident else _known_against(node))
    if reason:
        named = _of_gpu(node)
        host = host_of(node)
        if not named and host:
            named = [("host", host)]
        return _records(named, node, state, reason, now)
    if in_incident or not _is_lost_for_good(state, node, now):
        return {}
    reason = "its node fell silent and did not return"
    return _records(_first_gpu(node), node, state, reason, now, LOST_FOR)


def dead_on_arrival(
    state: SagaState,
    node: NodeRecord | None,
    now: datetime,
    *,
    in_incident: bool,
    others_serve: bool = False,
) -> dict[str, HardwareRecord]:
    """Return what to remember of a node that was not admitted: the GPU of its verdict, else one.

    One only where `others_serve`: nodes of its kind that passed what it has failed. Else the image
    may be the cause, or the driver, and no host is to blame.
    """
    if node is None or node.admitted_at is not None:
        return {}
    if _of_gpu(node) and (named := condemned(state, node, now, in_incident=in_incident)):
        return named
    failed = state.step(state.failed_step)
    known = failed.error in (DENIED_HARDWARE, MISPLACED)
    if known or in_incident or not others_serve or failed.status != "failed":
        return {}
    return _records(_first_gpu(node), node, state, state.reason, now, ARRIVAL_FOR)


def within_limit(
    records: Mapping[str, HardwareRecord], listed: Mapping[str, HardwareRecord], now: datetime
) -> bool:
    """Return whether a node's reports may have a GPU listed: no other was within the last day."""
    nodes = {(each.pool, each.node) for each in records.values() if each.reporter}
    return not any(
        (each.pool, each.node) in nodes and each.reporter and now - each.since < LISTED_EACH
        for known, each in listed.items()
        if known not in records
    )


def is_of_its_kind(other: NodeRecord, node: NodeRecord) -> bool:
    """Return whether a node in service shows that the image is not at fault for another's refusal.

    It is healthy, and has as many GPUs of the same model under the same driver.
    """
    return (
        other.state == "active"
        and other.health == "healthy"
        and not other.lost
        and other.driver_version == node.driver_version
        and {gpu.name for gpu in other.gpus} == {gpu.name for gpu in node.gpus}
    )


def _records(
    named: Iterable[tuple[HardwareKind, str]],
    node: NodeRecord,
    state: SagaState,
    reason: str,
    now: datetime,
    lasts: timedelta | None = None,
) -> dict[str, HardwareRecord]:
    return {
        key(kind, value): HardwareRecord(
            kind=kind,
            value=value,
            reason=reason,
            since=now,
            until=now + lasts if lasts else None,
            pool=node.pool,
            node=node.node,
            saga=state.saga,
        )
        for kind, value in named
    }


def _first_gpu(node: NodeRecord) -> list[tuple[HardwareKind, str]]:
    """The first GPU that can be recognised, by its serial where that is known."""
    known = next((gpu for gpu in _own_gpus(node) if gpu.serial or gpu.uuid), None)
    if known is None:
        return []
    return [("serial", known.serial) if known.serial else ("gpu", known.uuid)]


def _is_lost_for_good(state: SagaState, node: NodeRecord, now: datetime) -> bool:
    """Whether a node leaves silent whose instance runs, by its provider."""
    if not node.lost or node.lost_at is None or node.provider_state != "present":
        return False
    if node.down_reason:
        return False
    replaced = state.kind == "replace" and state.params.fault_signature == SILENCE
    return replaced or now - node.lost_at >= SILENT_FOR


def _of_gpu(node: NodeRecord) -> list[tuple[HardwareKind, str]]:
    """The GPU that the node's verdict names."""
    named = next((gpu for gpu in _own_gpus(node) if gpu.index == node.health_gpu), None)
    return list(fixed_identity.names([named])) if named is not None else []


def _own_gpus(node: NodeRecord) -> tuple[GpuIdentity, ...]:
    """The node's GPUs, where its agent reports no others than those that it was admitted with."""
    known = node.identity
    return node.gpus if known is None or known.claimed is None else ()


def _replaced_for(state: SagaState, node: NodeRecord) -> str:
    """The fault of the hardware that a node was replaced for."""
    params = state.params
    if state.kind != "replace" or not params.fault or is_of_drill(params.fault_signature):
        return ""
    tried = _exhausted(params.action, params.fault_signature, node)
    return params.reason if params.action == "replace" or tried else ""


def _known_against(node: NodeRecord) -> str:
    """The fault of the hardware of a node that left for another reason."""
    if node.health != "unhealthy" or not node.health_fault or node.health_drill:
        return ""
    tried = _exhausted(node.health_action, called(node.health_kind, node.health_code), node)
    return node.health_reason if node.health_action == "replace" or tried else ""


def _exhausted(action: Action, what: str, node: NodeRecord) -> bool:
    """Whether a fault was there again after resets or reboots that its verdict called for."""
    keeps = action in ("reset_gpu", "reboot")
    return keeps and any(each.fault_signature == what for each in in_place_attempts(node.attempts))


def refused(node: NodeRecord, listed: Mapping[str, HardwareRecord]) -> str:
    """Return why a new node must not be admitted; empty where nothing is known against it."""
    if reason := fixed_identity.duplicates(node):
        return reason
    for kind, value in identities(node):
        known = listed.get(key(kind, value))
        if known is not None:
            of = f" ({known.node})" if known.node else ""
            what = f"--node {known.node}" if known.until and known.node else f"{kind} {value}"
            return (
                f"{kind} {value} is known to be bad since {known.since:%Y-%m-%d}: {known.reason}"
                f"{of}; to admit it all the same: navarch hardware forget {what}"
            )
    return ""
