"""Explains what one node waits for: each gate that holds it, until when, and the remedy. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.present_answers import Block, BlockedNode
from schemas.stops import Stop
from schemas.time_text import utc_seconds
from services.operator_text.breaker_text import breaker_sentence
from services.operator_text.quantities import first_of
from services.pool_manager.planner import cloud_notices, idle_nodes, retirements
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.remediation import drift, gpu_cordons, remedy_selection, renewals

SAGAS_NAMED_MAX: Final = 20
UNTIL_ENDED: Final = "nothing automatic until the block ends"


def blocked_node(
    node: NodeRecord, pool: PoolRecord | None, now: datetime, stop: Stop | None = None
) -> BlockedNode:
    """Return everything that holds a node back, and what follows; `stop`: the pool's, in force."""
    fault = fault_text(node)
    held = [*_quarantine(node, pool), *blocks(node, pool, now)]
    then = ""
    if node.saga or node.state == "terminated":
        held += [stopped(stop)] if stop is not None and stop.running and node.saga else []
    elif fault:
        blocked = bool(held) and any(each.gate not in _QUARANTINED for each in held)
        held += [_fault(fault)] if blocked else [_block(node, pool, stop)]
        then = UNTIL_ENDED if blocked else _then(node, pool)
    elif node.spare:
        text = "It is a spare: it stays cordoned until it replaces a node."
        held.append(Block(gate="spare", text=text))
    elif node.cordoned:
        remedy = f"navarch uncordon {node.node}"
        text = "Nothing is in progress; it gets no new work, because it is cordoned."
        held.append(Block(gate="cordon", text=text, remedy=remedy))
        then = f"nothing automatic; to return it to service: {remedy}"
    if not held and pool is not None and (waits := _degraded(node, pool, now)):
        held.append(waits)
    if not node.saga and pool is not None and (waits := renewal(node, pool, now)):
        held.append(waits)
    machine = possible_actions(node, pool)
    return BlockedNode(fault=fault, blocked=tuple(held), next=then, machine=machine)


_QUARANTINED: Final = ("quarantine", "quarantine-cap")


def possible_actions(node: NodeRecord, pool: PoolRecord | None) -> str:
    """Return what can be done to a machine that joined: its owner may expect more, or less."""
    if pool is None or pool.spec.nodes != "enrolled" or node.state != "active":
        return ""
    what = "It joined the fleet: Navarch can drain it, and have its agent reset its GPUs and reboot"
    return f"{what} it; nothing replaces or ends it."


def fault_text(node: NodeRecord) -> str:
    """Return why a node must not stay; empty: it may."""
    if node.state != "active":
        return ""
    if node.health == "unhealthy":
        return node.health_reason or "judged unhealthy"
    return cloud_notices.taken_reason(node) or ("its heartbeats stopped" if node.lost else "")


def _fault(text: str) -> Block:
    return Block(gate="fault", text=f"It is unhealthy: {text}.")


# --- what leaves a node alone whatever its health ------------------------------------------------


def blocks(node: NodeRecord, pool: PoolRecord | None, now: datetime) -> Iterator[Block]:
    """Yield why automation leaves a node alone whatever its health."""
    if pool is None:
        return
    shut = {each.gate: each for each in gate_table.every(Proposal("repair", pool, now, node))}
    if "hold" in shut and node.state != "terminated":
        yield shut["hold"]
    if pool.spec.mode == "observe":
        yield from _observed(node, pool)
    if node.state == "active":
        yield from _retirement(node, pool, now)
    if node.health == "unhealthy" and "freeze-window" in shut:
        yield shut["freeze-window"]


def _observed(node: NodeRecord, pool: PoolRecord) -> Iterator[Block]:
    would = [each for each in pool.observed_actions.values() if each.node == node.node]
    lines = [f"Its pool is in observe mode: it would begin {each.kind}." for each in would]
    for text in lines or ["Its pool is in observe mode, so nothing is performed."]:
        yield Block(gate="observe", text=text)


def _retirement(node: NodeRecord, pool: PoolRecord, now: datetime) -> Iterator[Block]:
    latest = retirements.waits_until(node, pool, retirements.retired_at([node]), None, now)
    if latest is None:
        return
    remedy = f"navarch replace {node.node}"
    leaves = "once it has no work"
    if coming := retirements.window_before(latest, pool, now):
        leaves = f"in the window {coming.window.name}, from {utc_seconds(coming.start)}"
    text = (
        f"It is to be retired ({cloud_notices.taken_reason(node)}): it leaves {leaves}, or at "
        f"{utc_seconds(latest)} at last. At once: {remedy}"
    )
    yield Block(gate="retirement", text=text, until=latest, remedy=remedy)


def _quarantine(node: NodeRecord, pool: PoolRecord | None) -> Iterator[Block]:
    """Yield that a node is quarantined, since when and why, or that the cap prevents it."""
    if node.state == "terminated" or node.saga:
        return
    found = node.quarantine
    if found is not None and node.is_quarantined:
        last = "; the last order to the workload system failed and is repeated"
        text = f"It is quarantined since {utc_seconds(found.since)}: {found.reason}"
        yield Block(gate="quarantine", text=f"{text}{last * bool(found.failed_at)}.")
        return
    full = pool is not None and pool.quarantine_full
    waits = node.health == "unhealthy" or gpu_cordons.is_wanted(node)
    if full and waits and not node.cordoned:
        remedy = f"navarch cordon {node.node}"
        text = f"It still takes work, as budget.max_quarantined is reached; by hand: {remedy}"
        yield Block(gate="quarantine-cap", text=text, remedy=remedy)


# --- what an unhealthy node waits for ------------------------------------------------------------


def stopped(stop: Stop) -> Block:
    """Return that operators have stopped what is automatic."""
    named = f" --pool {stop.pool}" if stop.pool else ""
    named = f" --provider {stop.provider}" if stop.provider else named
    remedy = f"navarch resume{named}"
    held = "nothing automatic begins"
    if stop.running:
        held += ", and open sagas that no operator asked for wait before what has no undo"
    text = f"{stop.scope} is stopped {stop}: {held}. To end it: {remedy}"
    return Block(gate="stop", text=text, until=stop.until, remedy=remedy)


def _block(node: NodeRecord, pool: PoolRecord | None, stop: Stop | None) -> Block:
    """Return why an unhealthy node is not being remediated."""
    if pool is None:
        return Block(gate="removal", text="Nothing is in progress: its pool is no longer there.")
    if stop is not None:
        return stopped(stop)
    if not pool.spec.health.auto_replace:
        text = (
            "Nothing is in progress: the pool has auto_replace: false, so an operator must decide."
        )
        return Block(gate="auto-replace-off", text=text, remedy=_by_hand(node))
    if node.node in pool.operator_notified:
        kind = pool.spec.health.remediation.type
        text = f"It waits for an operator: the pool has remediation: {kind}."
        return Block(gate="operator", text=text, remedy=_by_hand(node))
    if node.health != "unhealthy" and (silent := _silent(node, pool)):
        return silent
    if (again := retry(pool)) is not None:
        return Block(
            gate="retry", text=f"It waits for the next try: {again.text}", until=again.until
        )
    if (shut := breaker(pool)) is not None:
        out = [saga for saga, each in pool.open.items() if each.node]
        spent = f" In progress: {first_of(out, SAGAS_NAMED_MAX)}." if out else ""
        text = f"It waits for the breaker, which {_after_subject(shut.text)}{spent}"
        return Block(gate=shut.gate, text=text, until=shut.until, remedy=shut.remedy)
    text = "It waits for its turn: the pool-manager decides at its next look."
    return Block(gate="turn", text=text)


def _silent(node: NodeRecord, pool: PoolRecord) -> Block | None:
    if node.provider_state == "disconnected":
        text = (
            "Its credentials are refused or have expired, and it is not replaced for that silence: "
            "navarch status shows what keeps its agent from connecting."
        )
        return Block(gate="agent-credentials", text=text, remedy=f"navarch readmit {node.node}")
    if node.lost_at is None or pool.breaker.state != "closed":
        return None
    due = node.lost_at + timedelta(seconds=float(pool.spec.health.lost_after))
    text = (
        f"Its heartbeats stopped at {utc_seconds(node.lost_at)}; unless they resume, the pool acts "
        f"at {utc_seconds(due)}, or later if its provider cannot confirm the loss."
    )
    return Block(gate="loss-confirmation", text=text, until=due)


def retry(pool: PoolRecord) -> Block | None:
    """Return how many tries failed in a row, and when the next is; None: none waits."""
    if not pool.failures or pool.retry_at is None or pool.over_spend_cap:
        return None
    tries = "1 try" if pool.failures == 1 else f"{pool.failures} tries in a row"
    text = f"{tries} failed. The next is at {utc_seconds(pool.retry_at)}."
    return Block(gate="retry", text=text, until=pool.retry_at)


def breaker(pool: PoolRecord) -> Block | None:
    """Return what the breaker allows, as long as that is less than everything."""
    found = pool.breaker
    if found.state != "closed":
        remedy = f"navarch breaker close {pool.name} --reason …"
        text = f"The breaker {breaker_sentence(pool.name, found)}"
        return Block(gate="breaker", text=text, until=found.probe_at, remedy=remedy)
    if found.ramp:
        text = f"The breaker has closed and allows only {found.ramp} remediations at once."
        return Block(gate="ramp", text=text)
    return None


def _after_subject(sentence: str) -> str:
    return sentence.removeprefix("The breaker ")


def _then(node: NodeRecord, pool: PoolRecord | None) -> str:
    """Return what follows where nothing but its turn holds an unhealthy node."""
    automatic = pool is not None and pool.spec.health.auto_replace
    if automatic and pool is not None and node.node not in pool.operator_notified:
        return "it is remediated or replaced as soon as nothing blocks that"
    return f"{_by_hand(node)}, or navarch uncordon {node.node} if it is healthy"


def _by_hand(node: NodeRecord) -> str:
    """Return the command for what an unhealthy node needs."""
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action, "replace")
    return f"navarch {verb} {node.node}"


# --- what a node that works waits for ------------------------------------------------------------


def _degraded(node: NodeRecord, pool: PoolRecord, now: datetime) -> Block | None:
    """Return what the remediation of a degraded node waits for; None: it needs none."""
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action)
    if node.health != "degraded" or verb is None:
        return None
    remediation = pool.spec.health.remediation.type
    verb = "replace" if remediation == "replace" and node.faulty_gpus else verb
    remedy = f"navarch {verb} {node.node}"
    found = f"It keeps its work, and needs {verb} ({node.health_reason})"
    if remediation == "alert" or (remediation == "replace" and not node.faulty_gpus):
        text = f"{found}: the pool's remediation leaves that to operators; by hand: {remedy}"
        return Block(gate="operator", text=text, remedy=remedy)
    if (shut := gate_table.first(Proposal("degraded", pool, now, node))) is not None:
        text = f"{found}. {shut.text} By hand: {remedy}"
        return msgspec.structs.replace(shut, text=text, remedy=shut.remedy or remedy)
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


def renewal(node: NodeRecord, pool: PoolRecord, now: datetime) -> Block | None:
    """Return why a healthy node is to be replaced, and what that waits for; None: it is not."""
    due = renewals.renewal(node, pool, now)
    if due is None:
        other = drift.remark(node, pool)
        text = f"It is reported, and left as it is: {other}."
        return Block(gate="drift", text=text) if other else None
    remedy = f"navarch replace {node.node}"
    begin, end = f"It is well, and to be replaced ({due.reason})", f"; at once: {remedy}"
    if (shut := gate_table.first(Proposal("renewal", pool, now, node))) is not None:
        text = f"{begin}. {shut.text}" + (f" At once: {remedy}" if not shut.remedy else "")
        return msgspec.structs.replace(shut, text=text, remedy=shut.remedy or remedy)
    if pool.renew_at is not None and now < pool.renew_at:
        why = pool.renew_wait or "the last replacement of a healthy node failed"
        text = f"{begin}: not before {utc_seconds(pool.renew_at)}, as {why}{end}"
        return Block(gate="retry", text=text, until=pool.renew_at, remedy=remedy)
    turn = "when its turn comes within half of the budget, and unhealthy nodes go first"
    begin = f"It is well, and replaced ({due.reason})"
    past = due.latest is not None and now >= due.latest
    if remedy_selection.is_served(pool) or node.spare or past:
        return Block(gate="turn", text=f"{begin} {turn}{end}", remedy=remedy)
    rests = "once it has no work"
    if due.latest is not None:
        rests += f", at {utc_seconds(due.latest)} at last"
    text = f"{begin} {rests}, {turn}{end}"
    return Block(gate="idle", text=text, until=due.latest, remedy=remedy)
