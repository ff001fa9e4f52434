"""Tells what is done about a drill's node from what a real fault would have done. Pure."""

from schemas.node_records import NodeRecord


def is_drill(node: NodeRecord) -> bool:
    """Return whether a drill alone made a node unhealthy, or degraded it."""
    return bool(node.health_drill) and not node.lost


def is_only_drained(node: NodeRecord) -> bool:
    """Return whether a node's drill does no more than to cordon and drain it."""
    return node.health_drill == "drain" and is_drill(node)


def end_of(node: NodeRecord) -> str:
    """Return how the drill on a node is ended."""
    return f"to end the drill: navarch uncordon {node.node}"
