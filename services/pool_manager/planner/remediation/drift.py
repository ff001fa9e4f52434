"""Finds the nodes launched with other settings than their pool has now, and what differs. Pure.

A node's record has digests of what it was launched with; one without them, of an older release or
made by others, never drifts. What was launched well after the settings changed has them, whatever
the digests say: a service that reads another configuration cannot have every new node replaced for
ever. A driver is compared by its version and never a reason to replace a node, since the same image
would bring the same one.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas import launch_fingerprints
from schemas.node_records import NodeRecord
from schemas.pool_events import NodesDrifted
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.pool_snapshot import PoolSnapshot

SETTLED: Final = timedelta(hours=1)
"""So long after a change services with the settings of before may still launch nodes."""
NAMED_MAX: Final = 50
"""Nodes that an event names."""


def differences(node: NodeRecord, record: PoolRecord) -> tuple[str, ...]:
    """Return what a node's launch differs in from what its pool would launch: `image`, `labels`."""
    launch, changed = node.launch, record.configured_at
    if record.spec.drift == "ignore" or launch is None or not launch.fingerprint:
        return ()
    if changed is None or node.admitted_at is None or node.admitted_at > changed + SETTLED:
        return ()
    return launch_fingerprints.differences(
        launch.fingerprint, record.launch_digests, launch.provider
    )


def has_other_driver(node: NodeRecord, record: PoolRecord) -> bool:
    """Return whether a node's agent reports another driver than its pool states."""
    stated = record.spec.driver_version if record.spec.drift != "ignore" else ""
    return bool(stated and node.driver_version and node.driver_version != stated)


def sentence(found: Iterable[str]) -> str:
    """Return what differs, in words."""
    return f"drifted: launched with another {', another '.join(found)}"


def remark(node: NodeRecord, record: PoolRecord) -> str:
    """Return a node's differences from its pool's settings; empty: none, or drift is ignored."""
    if node.state != "active":
        return ""
    found = differences(node, record)
    words = [sentence(found)] if found else []
    if has_other_driver(node, record):
        words.append(f"driver {node.driver_version} where {record.spec.driver_version} is stated")
    return "; ".join(words)


def reported(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> tuple[PoolRecord, tuple[NodesDrifted, ...]]:
    """Publish once, after the settings have changed, which nodes were launched with others."""
    if record.spec.drift == "ignore" or record.configured_at is None:
        return record, ()
    about = f"{record.configured_at.timestamp():.0f}"
    if record.drift_reported == about:
        return record, ()
    found = {node.node: each for node in snapshot.nodes if (each := differences(node, record))}
    if not found:
        return record, ()
    event = NodesDrifted(
        id=f"nodes-drifted-{record.name}-{about}",
        time=now,
        pool=record.name,
        nodes=len(found),
        names=tuple(sorted(found)[:NAMED_MAX]),
        differences=tuple(sorted({each for all_of_it in found.values() for each in all_of_it})),
        replaced=record.spec.drift == "replace",
    )
    return msgspec.structs.replace(record, drift_reported=about), (event,)
