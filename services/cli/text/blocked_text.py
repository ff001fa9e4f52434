"""What keeps a pool-manager from acting on a node or a pool, in sentences. Pure.

Read from the records alone: holds, a pool that only observes, its windows and its spares.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.safety import maintenance_windows

WOULD_NAMED_MAX: Final = 10


def node_kept(
    node: NodeRecord, pool: PoolRecord | None, now: datetime | None = None
) -> tuple[str, ...]:
    """Why nothing automatic is done about a node whatever it has; `now`: to look at windows."""
    told: list[str] = []
    if node.held_until is not None and node.state != "terminated":
        by = f" by {node.held_by}" if node.held_by else ""
        told.append(
            f"It is held until {node.held_until.astimezone():%m-%d %H:%M}{by}: {node.held_reason}. "
            f"To end it: navarch release {node.node}"
        )
    if pool is not None and pool.spec.mode == "observe":
        would = [each for each in pool.observed_actions.values() if each.node == node.node]
        told += [f"Its pool only observes: it would begin {each.kind}." for each in would] or [
            "Its pool only observes, so nothing is done about it."
        ]
    if pool is not None and now is not None and node.health == "unhealthy" and not node.lost:
        told += _frozen(pool, now)
    return tuple(told)


def _frozen(pool: PoolRecord, now: datetime) -> list[str]:
    frozen = maintenance_windows.opening(pool.spec.windows, "freeze", now)
    if frozen is None:
        return []
    until = f"{frozen.end.astimezone():%m-%d %H:%M}"
    return [
        f"The window {frozen.window.name} freezes the pool until {until}: no work is disturbed."
    ]


def windows_told(pool: PoolRecord, now: datetime | None) -> tuple[str, ...]:
    """Which of a pool's windows are open, and when the next for service opens."""
    if now is None or not pool.spec.windows:
        return ()
    told = _frozen(pool, now)
    serving = maintenance_windows.opening(pool.spec.windows, "service", now)
    coming = maintenance_windows.next_opening(pool.spec.windows, "service", now)
    if serving is not None:
        until = f"{serving.end.astimezone():%m-%d %H:%M}"
        told.append(f"The window {serving.window.name} is open for service until {until}.")
    elif coming is not None:
        since = f"{coming.start.astimezone():%m-%d %H:%M}"
        told.append(f"What can wait does so until the window {coming.window.name}, at {since}.")
    return tuple(told)


def degraded_told(node: NodeRecord, pool: PoolRecord | None, now: datetime | None) -> str:
    """What a degraded node waits for that a reset or a reboot would mend; empty: nothing."""
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action)
    if node.health != "degraded" or verb is None or pool is None or now is None:
        return ""
    found = f"It keeps its work, and {verb} would mend it ({node.health_reason})"
    by_hand = f"by hand: navarch {verb} {node.node}"
    if pool.spec.health.remediation.type in ("replace", "alert"):
        return f"{found}: the pool's remediation leaves that to people; {by_hand}"
    if maintenance_windows.opening(pool.spec.windows, "service", now) is not None:
        return f"{found}: its turn comes while the pool's window for service is open."
    coming = maintenance_windows.next_opening(pool.spec.windows, "service", now)
    if coming is None:
        return f"{found}: the pool has no window of kind service to do it in; {by_hand}"
    since = f"{coming.start.astimezone():%m-%d %H:%M}"
    return f"{found}: that waits for the window {coming.window.name}, at {since}; {by_hand}"


def pool_kept(pool: PoolRecord) -> tuple[str, ...]:
    """What a pool that only observes would have begun."""
    if pool.spec.mode != "observe":
        return ()
    would = list(pool.observed_actions.values())
    told = [
        f"It would begin {each.kind} of {each.node or f'{each.nodes} nodes'}: {each.reason}."
        for each in would[:WOULD_NAMED_MAX]
    ]
    more = len(would) - len(told)
    if more > 0:
        told.append(f"{more} more: navarch status -o json")
    return ("It only observes (mode: observe): nothing is begun.", *told)


def removal_told(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """That a pool is being removed, and which of its nodes nobody takes away yet."""
    if not pool.removing:
        return ()
    left = [node for node in nodes if node.state != "terminated"]
    busy = {each.node for each in pool.open.values()}
    told = [f"It is being removed: {len(left)} of its nodes are still to leave."]
    for node in left[:WOULD_NAMED_MAX]:
        if node.node not in busy:
            told += [f"{node.node}: {why}" for why in node_kept(node, pool)]
    return tuple(told)


def reserve_told(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """A pool's spares, where it has or wants some."""
    spares = [node for node in nodes if node.spare and node.state != "terminated"]
    if not spares and not pool.spec.spares:
        return ()
    ready = sorted(
        node.node
        for node in spares
        if node.state == "active" and node.health == "healthy" and not node.lost
    )
    named = f": {', '.join(ready[:WOULD_NAMED_MAX])}" if ready else ""
    return (f"Spares ready: {len(ready)} of {pool.spec.spares}{named}.",)
