"""Holds back what is proposed about one node: holds and maintenance windows. Pure."""

from schemas.present_answers import Block
from schemas.time_text import utc_seconds
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.safety import maintenance_windows


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
