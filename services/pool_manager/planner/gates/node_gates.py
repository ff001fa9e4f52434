"""Holds back what is proposed about one node: for an operator, a window or the cloud. Pure."""

from schemas.node_records import NodeRecord
from schemas.present_answers import Block
from schemas.time_text import utc_seconds
from services.pool_manager.planner import (
    cloud_notices,
    rack_units,
    retirements,
    unhealthy_nodes,
)
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.safety import maintenance_windows, rack_faults


def hold(proposal: Proposal) -> Block | None:
    """Return the hold of an operator on the node."""
    node = proposal.node
    if node is None or node.held_until is None or proposal.now >= node.held_until:
        return None
    by = f" by {node.held_by}" if node.held_by else ""
    remedy = f"navarch release {node.node}"
    text = f"It is held until {utc_seconds(node.held_until)}{by}: {node.held_reason}."
    return Block(
        gate="hold", text=f"{text} To end it: {remedy}", until=node.held_until, remedy=remedy
    )


def freeze_window(proposal: Proposal) -> Block | None:
    """Return the open window in which no node of the pool is disrupted.

    On a silent node nothing can be disturbed any more, and what the cloud takes it takes.
    """
    node, spec = proposal.node, proposal.record.spec
    if not spec.windows:
        return None
    if node is not None and (node.lost or cloud_notices.urgent(node, spec, proposal.now)):
        return None
    frozen = maintenance_windows.opening(spec.windows, "freeze", proposal.now)
    if frozen is None:
        return None
    until = utc_seconds(frozen.end)
    text = f"The window {frozen.window.name} freezes the pool until {until}: no node is disrupted."
    return Block(gate="freeze-window", text=text, until=frozen.end)


def service_window(proposal: Proposal) -> Block | None:
    """Return that work which can wait does so until a service window opens, where there are any."""
    windows = proposal.record.spec.windows
    if not any(window.kind == "service" for window in windows):
        return None
    if maintenance_windows.opening(windows, "service", proposal.now) is not None:
        return None
    coming = maintenance_windows.next_opening(windows, "service", proposal.now)
    if coming is None:
        return Block(gate="service-window", text="No service window for it opens.")
    name, start = coming.window.name, utc_seconds(coming.start)
    text = f"Remediation that can wait is done in the window {name}, at {start}."
    return Block(gate="service-window", text=text, until=coming.start)


def retirement(proposal: Proposal) -> Block | None:
    """Return until when at most a node serves that its cloud retires in days."""
    node, pool, now = proposal.node, proposal.record, proposal.now
    if node is None or node.state != "active" or not node.notices:
        return None
    times = proposal.retiring or retirements.retired_at([node])
    latest = retirements.waits_until(node, pool, times, proposal.use, now)
    if latest is None:
        return None
    remedy, leaves = f"navarch replace {node.node}", "once it has no work"
    if coming := retirements.window_before(latest, pool, now):
        leaves = f"in the window {coming.window.name}, from {utc_seconds(coming.start)}"
    text = (
        f"It is to be retired ({cloud_notices.taken_reason(node)}): it leaves {leaves}, or at "
        f"{utc_seconds(latest)} at last. At once: {remedy}"
    )
    return Block(gate="retirement", text=text, until=latest, remedy=remedy)


def credentials(proposal: Proposal) -> Block | None:
    """Return that a node is silent as its agent cannot connect: an operator readmits it."""
    node = proposal.node
    if node is None or node.provider_state != "disconnected" or not _is_awaited(proposal):
        return None
    text = (
        "Its credentials are refused or have expired, and it is not replaced for that silence: "
        "navarch status shows what keeps its agent from connecting."
    )
    return Block(gate="agent-credentials", text=text, remedy=f"navarch readmit {node.node}")


def silence(proposal: Proposal) -> Block | None:
    """Return until when a silent node is waited for: it may be heard again."""
    node, pool = proposal.node, proposal.record
    if node is None or node.lost_at is None or not _is_awaited(proposal):
        return None
    due = unhealthy_nodes.given_up_at(node, pool)
    if due is None or due <= proposal.now:
        return None
    unknown = "" if node.provider_state else ", as its provider cannot confirm the loss"
    text = (
        f"Its heartbeats stopped at {utc_seconds(node.lost_at)}; unless they resume, the pool acts "
        f"at {utc_seconds(due)}{unknown}."
    )
    return Block(gate="loss-confirmation", text=text, until=due)


def _is_awaited(proposal: Proposal) -> bool:
    """Return whether a node is silent, and nothing else is a reason to remediate it."""
    node = proposal.node
    if node is None or not node.lost:
        return False
    return not unhealthy_nodes.remediation_reason(node, proposal.record, proposal.now)


def rack(proposal: Proposal) -> Block | None:
    """Return until when it is not known whether what a node has is its rack's, a unit of the pool.

    What the cloud takes it takes alone.
    """
    node, pool, now = proposal.node, proposal.record, proposal.now
    if (
        node is None
        or not rack_units.is_by_rack(pool)
        or cloud_notices.urgent(node, pool.spec, now)
    ):
        return None
    at = rack_faults.decided_at(pool, node)
    if at is None or now >= at:
        return None
    text = f"Whether its fault is that of rack {node.rack} is decided at {utc_seconds(at)}."
    return Block(gate="rack", text=text, until=at)


def operator(proposal: Proposal) -> Block | None:
    """Return that the pool leaves the node's repair to operators, who know of it."""
    node, pool = proposal.node, proposal.record
    if node is None or node.node not in pool.operator_notified:
        return None
    if node.health_drill:
        remedy = f"navarch uncordon {node.node}"
        return Block(gate="operator", text=f"A drill ends here. To end it: {remedy}", remedy=remedy)
    kind = pool.spec.health.remediation.type
    text = f"It waits for an operator: the pool has remediation: {kind}."
    return Block(gate="operator", text=text, remedy=by_hand(node))


def by_hand(node: NodeRecord) -> str:
    """Return the command for what an unhealthy node needs."""
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action, "replace")
    return f"navarch {verb} {node.node}"
