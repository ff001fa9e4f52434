"""Explains in sentences what blocks automation on a node or a pool. Pure.

Read from the records: holds, observe mode, maintenance windows, spares and removal.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices, idle_nodes, retirements
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.remediation import drift, gpu_cordons, remedy_selection, renewals
from services.pool_manager.planner.safety import eligibility, maintenance_windows
from services.pool_manager.planner.sizing import on_demand_floor

WOULD_NAMED_MAX: Final = 10


def possible_actions(node: NodeRecord, pool: PoolRecord | None) -> tuple[str, ...]:
    """Return what can be done to a machine that joined: its owner may expect more, or less."""
    if pool is None or pool.spec.nodes != "enrolled" or node.state != "active":
        return ()
    what = "It joined the fleet: Navarch can drain it, and have its agent reset its GPUs and reboot"
    return (f"{what} it; nothing replaces or ends it.",)


def node_blocks(
    node: NodeRecord, pool: PoolRecord | None, now: datetime | None = None
) -> tuple[str, ...]:
    """Return why automation leaves a node alone whatever its health; `now`: for the windows."""
    lines: list[str] = []
    if node.held_until is not None and node.state != "terminated":
        by = f" by {node.held_by}" if node.held_by else ""
        lines.append(
            f"It is held until {node.held_until.astimezone():%m-%d %H:%M}{by}: {node.held_reason}. "
            f"To end it: navarch release {node.node}"
        )
    if pool is not None and pool.spec.mode == "observe":
        would = [each for each in pool.observed_actions.values() if each.node == node.node]
        lines += [
            f"Its pool is in observe mode: it would begin {each.kind}." for each in would
        ] or ["Its pool is in observe mode, so nothing is performed."]
    if pool is not None and now is not None and node.state == "active":
        lines += _retirement_lines(node, pool, now)
    if pool is not None and now is not None and node.health == "unhealthy" and not node.lost:
        lines += _freeze_lines(pool, now)
    return tuple(lines)


def _retirement_lines(node: NodeRecord, pool: PoolRecord, now: datetime) -> list[str]:
    latest = retirements.waits_until(node, pool, retirements.retired_at([node]), None, now)
    if latest is None:
        return []
    why, at = cloud_notices.taken_reason(node), f"{latest.astimezone():%m-%d %H:%M}"
    leaves = "once it has no work"
    if coming := retirements.window_before(latest, pool, now):
        leaves = f"in the window {coming.window.name}, from {coming.start.astimezone():%m-%d %H:%M}"
    line = (
        f"It is to be retired ({why}): it leaves {leaves}, or at {at} at last. "
        f"At once: navarch replace {node.node}"
    )
    return [line]


def quarantine_lines(node: NodeRecord, pool: PoolRecord | None) -> tuple[str, ...]:
    """Return lines on a node's quarantine, since when and why, or on the cap that prevents it."""
    if node.state == "terminated" or node.saga:
        return ()
    found = node.quarantine
    if node.cordoned and found is not None:
        since = f"{found.since.astimezone():%m-%d %H:%M}"
        last = "; the last order to the workload system failed and is repeated"
        return (f"It is quarantined since {since}: {found.reason}{last * bool(found.failed_at)}.",)
    full = pool is not None and pool.quarantine_full
    waits = node.health == "unhealthy" or gpu_cordons.is_wanted(node)
    if full and waits and not node.cordoned:
        by_hand = f"by hand: navarch cordon {node.node}"
        return (f"It still takes work, as budget.max_quarantined is reached; {by_hand}",)
    return ()


def _freeze_lines(pool: PoolRecord, now: datetime) -> list[str]:
    frozen = maintenance_windows.opening(pool.spec.windows, "freeze", now)
    if frozen is None:
        return []
    until = f"{frozen.end.astimezone():%m-%d %H:%M}"
    return [
        f"The window {frozen.window.name} freezes the pool until {until}: no node is disrupted."
    ]


def open_windows(pool: PoolRecord, now: datetime | None) -> tuple[str, ...]:
    """The open windows of a pool, and when its next service window opens."""
    if now is None or not pool.spec.windows:
        return ()
    lines = _freeze_lines(pool, now)
    serving = maintenance_windows.opening(pool.spec.windows, "service", now)
    coming = maintenance_windows.next_opening(pool.spec.windows, "service", now)
    if serving is not None:
        until = f"{serving.end.astimezone():%m-%d %H:%M}"
        lines.append(f"The window {serving.window.name} is open for service until {until}.")
    elif coming is not None:
        since = f"{coming.start.astimezone():%m-%d %H:%M}"
        lines.append(
            f"Remediation that can wait is done in the window {coming.window.name}, at {since}."
        )
    return tuple(lines)


def degraded_wait(node: NodeRecord, pool: PoolRecord | None, now: datetime | None) -> str:
    """Return what the remediation of a degraded node waits for; empty: it needs none."""
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action)
    if node.health != "degraded" or verb is None or pool is None or now is None:
        return ""
    remediation = pool.spec.health.remediation.type
    verb = "replace" if remediation == "replace" and node.faulty_gpus else verb
    found = f"It keeps its work, and needs {verb} ({node.health_reason})"
    by_hand = f"by hand: navarch {verb} {node.node}"
    if remediation == "alert" or (remediation == "replace" and not node.faulty_gpus):
        return f"{found}: the pool's remediation leaves that to operators; {by_hand}"
    if maintenance_windows.opening(pool.spec.windows, "service", now) is not None:
        return f"{found}: it is done while the pool's service window is open."
    coming = maintenance_windows.next_opening(pool.spec.windows, "service", now)
    if coming is None:
        minutes = idle_nodes.IDLE_MIN.total_seconds() / 60
        rest = f"once it has no work and its GPUs have rested for {minutes:g} minutes"
        rest = f"without that it is done {rest}"
        return f"{found}: the pool has no service window for it; {by_hand}; {rest}"
    since = f"{coming.start.astimezone():%m-%d %H:%M}"
    return f"{found}: that waits for the window {coming.window.name}, at {since}; {by_hand}"


def renewal_wait(node: NodeRecord, pool: PoolRecord | None, now: datetime | None) -> str:
    """Return why a healthy node is to be replaced, and what that waits for; empty: it is not."""
    due = renewals.renewal(node, pool, now) if pool is not None and now is not None else None
    if pool is None or now is None or due is None:
        other = drift.remark(node, pool) if pool is not None else ""
        return f"It is reported, and left as it is: {other}." if other else ""
    by_hand = f"at once: navarch replace {node.node}"
    if why := eligibility.blocked_reason(node, pool, now, can_wait=True):
        return f"It is well, and to be replaced ({due.reason}): {why}; {by_hand}"
    if pool.renew_at is not None and now < pool.renew_at:
        why = pool.renew_wait or "the last replacement of a healthy node failed"
        until = f"not before {pool.renew_at.astimezone():%m-%d %H:%M}, as {why}"
        return f"It is well, and to be replaced ({due.reason}): {until}; {by_hand}"
    turn = "when its turn comes within half of the budget, and unhealthy nodes go first"
    rests = "once it has no work"
    if due.latest is not None:
        rests += f", at {due.latest.astimezone():%m-%d %H:%M} at last"
    if remedy_selection.is_served(pool) or node.spare or (due.latest and now >= due.latest):
        return f"It is well, and replaced ({due.reason}) {turn}; {by_hand}"
    return f"It is well, and replaced ({due.reason}) {rests}, {turn}; {by_hand}"


def observed_actions(pool: PoolRecord) -> tuple[str, ...]:
    """Return what a pool in observe mode would have begun."""
    if pool.spec.mode != "observe":
        return ()
    would = list(pool.observed_actions.values())
    lines = [
        f"It would begin {each.kind} of {each.node or f'{each.nodes} nodes'}: {each.reason}."
        for each in would[:WOULD_NAMED_MAX]
    ]
    more = len(would) - len(lines)
    if more > 0:
        lines.append(f"{more} more: navarch status -o json")
    return ("It is in observe mode: nothing is begun.", *lines)


def removal_progress(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Return lines on a pool's removal, and on those of its nodes that are blocked."""
    if not pool.removing:
        return ()
    left = [node for node in nodes if node.state != "terminated"]
    busy = {each.node for each in pool.open.values()}
    lines = [f"It is being removed: {len(left)} nodes remain."]
    for node in left[:WOULD_NAMED_MAX]:
        if node.node not in busy:
            lines += [f"{node.node}: {why}" for why in node_blocks(node, pool)]
    return tuple(lines)


def on_demand_lines(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Return how many nodes are on demand or reserved, where the pool requires some."""
    if not pool.spec.on_demand_min:
        return ()
    present = Nodes(node for node in nodes if node.state != "terminated")
    found = f"{on_demand_floor.sentence(pool, present)}."
    if on_demand_floor.expected(pool, present) < on_demand_floor.required(pool):
        return (f"{found} To keep so many: {on_demand_floor.remedy(pool)}.",)
    return (found,)


def ready_spares(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """The pool's ready spares, if it has or needs any."""
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
