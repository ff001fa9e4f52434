"""Explains what one node waits for: each gate that holds it, until when, and the remedy. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from msgspec import structs

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.present_answers import Block, BlockedNode
from schemas.stops import Stop
from schemas.time_text import utc_seconds
from services.pool_manager.planner import cloud_notices, idle_nodes
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.node_gates import by_hand
from services.pool_manager.planner.gates.pool_gates import stopped
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import Nodes, is_lasting
from services.pool_manager.planner.remediation import drift, gpu_cordons, remedy_selection, renewals
from services.pool_manager.planner.remediator import lacks_driver
from services.pool_manager.planner.retirements import retired_at
from services.pool_manager.planner.sizing.open_sagas import why_full

UNTIL_ENDED: Final = "nothing automatic until the block ends"
ALONE: Final = ("hold", "observe", "retirement", "freeze-window")
"""Gates for which a node is left alone whatever else holds it."""
_TURN: Final = Block(
    gate="turn", text="It waits for its turn: the pool-manager decides at its next look."
)


def about(pool: PoolRecord, nodes: Nodes, now: datetime, stop: Stop | None = None) -> Proposal:
    """Return what the gates look at in a pool, whichever node it is; `stop`: the pool's."""
    allowed = allowance(pool, nodes, None, now)
    retiring = retired_at(nodes.needs_attention)
    full = why_full(pool, launches=False)
    return Proposal("repair", pool, now, retiring=retiring, allowed=allowed, full=full, stop=stop)


def blocked_node(node: NodeRecord, proposed: Proposal | None) -> BlockedNode:
    """Return everything that holds a node back, and what follows; None: its pool is gone."""
    fault = fault_text(node)
    if proposed is None:
        text = "Nothing is in progress: its pool is no longer there."
        gone = (Block(gate="removal", text=text),) if fault else ()
        return BlockedNode(fault=fault, blocked=gone, next=_by_operators(node) if fault else "")
    pool, stop, proposed = proposed.record, proposed.stop, structs.replace(proposed, node=node)
    alone = [each for each in gate_table.every(proposed, only=ALONE) if _concerns(node, each)]
    held = [*_quarantine(node, pool), *alone]
    then = ""
    if node.saga or node.state == "terminated":
        held += [stopped(stop)] if stop is not None and stop.running and node.saga else []
    elif fault:
        unhealthy = Block(gate="fault", text=f"It is unhealthy: {fault}.")
        held.append(unhealthy if alone else _waits(proposed))
        then = UNTIL_ENDED if alone else _then(node, pool)
    elif node.spare:
        text = "It is a spare: it stays cordoned until it replaces a node."
        held.append(Block(gate="spare", text=text))
    elif node.cordoned:
        remedy = f"navarch uncordon {node.node}"
        text = "Nothing is in progress; it gets no new work, because it is cordoned."
        held.append(Block(gate="cordon", text=text, remedy=remedy))
        then = f"nothing automatic; to return it to service: {remedy}"
    if not held and (waits_for := _degraded(node, proposed)):
        held.append(waits_for)
    if not node.saga and (waits_for := renewal(node, proposed)):
        held.append(waits_for)
    machine = possible_actions(node, pool)
    return BlockedNode(fault=fault, blocked=tuple(held), next=then, machine=machine)


def _waits(proposed: Proposal) -> Block:
    """Return the first gate that an unhealthy node waits for, or its turn."""
    found = (each for each in gate_table.every(proposed) if each.gate not in ALONE)
    return next(found, _TURN)


def _concerns(node: NodeRecord, block: Block) -> bool:
    """Return whether a gate that leaves a node alone whatever its health holds anything of it."""
    if block.gate == "hold":
        return node.state != "terminated"
    return block.gate != "freeze-window" or bool(fault_text(node))


def possible_actions(node: NodeRecord, pool: PoolRecord | None) -> str:
    """Return what can be done to a machine that others own: they may expect more, or less."""
    if pool is None or not is_lasting(node, pool) or node.state != "active":
        return ""
    rest = "nothing replaces or ends it."
    if node.registered_at is None and pool.spec.nodes == "adopted":
        return (
            "Its agent has not joined, so none of its faults are seen (navarch join): Navarch can "
            f"cordon and drain it, and can neither reset its GPUs nor reboot it; {rest}"
        )
    how = "joined the fleet" if pool.spec.nodes == "enrolled" else "was adopted, and its agent runs"
    can = "Navarch can cordon and drain it, and have its agent reset its GPUs and reboot it"
    return f"It {how}: {can}; {rest}"


def fault_text(node: NodeRecord) -> str:
    """Return why a node must not stay; empty: it may."""
    if node.state != "active":
        return ""
    if node.health == "unhealthy":
        return node.health_reason or "judged unhealthy"
    return cloud_notices.taken_reason(node) or ("its heartbeats stopped" if node.lost else "")


def _quarantine(node: NodeRecord, pool: PoolRecord) -> Iterator[Block]:
    """Yield that a node is quarantined, since when and why, or that the cap prevents it."""
    if node.state == "terminated" or node.saga:
        return
    found = node.quarantine
    if found is not None and node.is_quarantined:
        last = "; the last order to the workload system failed and is repeated"
        text = f"It is quarantined since {utc_seconds(found.since)}: {found.reason}"
        yield Block(gate="quarantine", text=f"{text}{last * bool(found.failed_at)}.")
        return
    waits = node.health == "unhealthy" or gpu_cordons.is_wanted(node)
    if pool.quarantine_full and waits and not node.cordoned:
        remedy = f"navarch cordon {node.node}"
        text = f"It still takes work, as budget.max_quarantined is reached; by hand: {remedy}"
        yield Block(gate="quarantine-cap", text=text, remedy=remedy)


def _then(node: NodeRecord, pool: PoolRecord) -> str:
    """Return what follows where nothing but its turn holds an unhealthy node."""
    if pool.spec.health.auto_replace and node.node not in pool.operator_notified:
        return "it is remediated or replaced as soon as nothing blocks that"
    return _by_operators(node)


def _by_operators(node: NodeRecord) -> str:
    if node.health_drill:
        return f"navarch uncordon {node.node}, which ends the drill"
    return f"{by_hand(node)}, or navarch uncordon {node.node} if it is healthy"


# --- what a node that works waits for ------------------------------------------------------------


def _first(proposed: Proposal) -> Block | None:
    return next(gate_table.every(proposed), None)


def _degraded(node: NodeRecord, proposed: Proposal) -> Block | None:
    """Return what the remediation of a degraded node waits for; None: it needs none."""
    pool = proposed.record
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action)
    if node.health != "degraded" or verb is None:
        return None
    remediation = pool.spec.health.remediation.type
    verb = "replace" if remediation == "replace" and node.faulty_gpus else verb
    remedy = f"navarch {verb} {node.node}"
    found = f"It keeps its work, and needs {verb} ({node.health_reason})"
    if node.node in pool.operator_notified:
        text = f"It waits for an operator, who was notified; by hand: {remedy}"
        return Block(gate="operator", text=text, remedy=remedy)
    repaired = node.faulty_gpus or lacks_driver(node)
    if remediation == "alert" or (remediation == "replace" and not repaired):
        text = f"{found}: the pool's remediation leaves that to operators; by hand: {remedy}"
        return Block(gate="operator", text=text, remedy=remedy)
    if (shut := _first(structs.replace(proposed, kind="degraded"))) is not None:
        text = f"{found}. {shut.text} By hand: {remedy}"
        return structs.replace(shut, text=text, remedy=shut.remedy or remedy)
    if remedy_selection.is_served(pool):
        text = f"{found}: it is done while the pool's service window is open."
        return Block(gate="turn", text=text)
    minutes = idle_nodes.IDLE_MIN.total_seconds() / 60
    rest = f"once it has no work and its GPUs have rested for {minutes:g} minutes"
    text = (
        f"{found}: the pool has no service window for it; by hand: {remedy}; without that it is "
        f"done {rest}"
    )
    return Block(gate="idle", text=text, remedy=remedy)


def renewal(node: NodeRecord, proposed: Proposal) -> Block | None:
    """Return why a healthy node is to be replaced, and what that waits for; None: it is not."""
    pool, now = proposed.record, proposed.now
    due = renewals.renewal(node, pool, now)
    if due is None:
        other = drift.remark(node, pool)
        text = f"It is reported, and left as it is: {other}."
        return Block(gate="drift", text=text) if other else None
    remedy = f"navarch replace {node.node}"
    begin, end = f"It is well, and to be replaced ({due.reason})", f"; at once: {remedy}"
    if (shut := _first(structs.replace(proposed, kind="renewal"))) is not None:
        text = f"{begin}. {shut.text}" + (f" At once: {remedy}" if not shut.remedy else "")
        return structs.replace(shut, text=text, remedy=shut.remedy or remedy)
    turn = "when its turn comes within its budget (max_voluntary), and unhealthy nodes go first"
    begin = f"It is well, and replaced ({due.reason})"
    past = due.latest is not None and now >= due.latest
    if remedy_selection.is_served(pool) or node.spare or past:
        return Block(gate="turn", text=f"{begin} {turn}{end}", remedy=remedy)
    rests = "once it has no work"
    if due.latest is not None:
        rests += f", at {utc_seconds(due.latest)} at last"
    text = f"{begin} {rests}, {turn}{end}"
    return Block(gate="idle", text=text, until=due.latest, remedy=remedy)
