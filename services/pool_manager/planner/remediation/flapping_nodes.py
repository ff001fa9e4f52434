"""Decides which nodes lose contact and return again and again, and get no new work for it. Pure."""

from datetime import datetime, timedelta

from schemas.node_records import NodeRecord
from schemas.pool_events import OperatorNeeded
from schemas.pool_records import PoolRecord


def calm_at(node: NodeRecord, record: PoolRecord) -> datetime | None:
    """Return until when a node counts as flapping, unless it is lost again; None: it does not."""
    spec = record.spec.health.flapping
    if not spec.losses or len(node.losses) < spec.losses:
        return None
    return node.losses[-spec.losses] + timedelta(seconds=float(spec.window))


def flaps(node: NodeRecord, record: PoolRecord, now: datetime) -> bool:
    """Return whether a node has lost contact so often lately that it may lose work again."""
    until = calm_at(node, record)
    return until is not None and now < until


def reason(node: NodeRecord, record: PoolRecord, now: datetime) -> str:
    """Return why a flapping node gets no new work."""
    window = float(record.spec.health.flapping.window)
    count = sum(at > now - timedelta(seconds=window) for at in node.losses)
    return f"it lost contact {count} times within {window / 60:g} minutes and returned"


def alerted(node: NodeRecord, record: PoolRecord, now: datetime) -> tuple[OperatorNeeded, ...]:
    """Return the event with which an operator learns of a flapping node."""
    if node.quarantine is not None or record.spec.mode == "observe":
        return ()  # its cordon is repeated, or would not be made
    return (
        OperatorNeeded(
            id=f"flapping-{record.name}.{node.node}-{node.losses[-1].isoformat()}",
            time=now,
            pool=record.name,
            node=node.node,
            reason=reason(node, record, now),
            remedy=(
                f"look at its network and its agent's log; navarch replace {node.node} replaces "
                "it. It takes work again once it has kept contact, or by navarch uncordon "
                f"{node.node}"
            ),
            cordoned=True,
            flapping=True,
        ),
    )
