"""Explains a node, pool or saga: what was observed, decided and tried, and what it waits for. Pure.

The input is stored messages and records. Times are storage times: they come from one clock, the
server's.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.breaker_state import Breaker
from schemas.held_conditions import ConditionList, condition_views
from schemas.node_events import WorkRemains
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.fleet_client import blocked_text
from services.fleet_client.advice_text import advice_sentence
from services.fleet_client.history_text import HistoryLine, history_lines
from services.fleet_client.saga_progress import Progress, progress
from services.fleet_client.stopped_why import UNDECIDED, UNFILLED
from services.fleet_client.why_answer import WhyAnswer
from services.operator_text.condition_text import condition_line
from services.operator_text.quantities import local_time
from services.operator_text.safe_text import escape_line
from services.operator_text.workload_words import state_words, work_words
from services.pool_manager.planner.cloud_notices import taken_reason
from services.pool_manager.planner.node_counts import is_quarantined
from services.saga.saga_state import SagaState

LINES_MAX: Final = 40
"""The newest; `navarch timeline` has all."""
SAGAS_NAMED_MAX: Final = 20
IDLE: Final = "Nothing is in progress, and it waits for nothing."


# --- one node ------------------------------------------------------------------------------------


def why_node(
    node: NodeRecord,
    pool: PoolRecord | None,
    stored: Iterable[Stored],
    sagas: Sequence[SagaState],
    *,
    conditions: ConditionList | None = None,
    has_evidence: bool = False,
    at: datetime | None = None,
) -> WhyAnswer:
    """Explain a node; `stored`: its events, its pool's events about it, its sagas' entries.

    `conditions`: what its agent sees; `has_evidence`: whether evidence of it is stored; `at`: now,
    for how long what lasts.
    """
    stored = tuple(stored)
    lines = history_lines(stored)
    words: list[str] = [node.state, node.health]
    words += [word for word in ("spare", "cordoned", "drained", "lost") if getattr(node, word)]
    if node.drained and node.drain_expired:
        words[words.index("drained")] = "drain expired"
    if is_quarantined(node):
        words[words.index("cordoned")] = "quarantined"
    blocks = blocked_text.node_blocks(node, pool, at)
    words += [f"GPU {index} cordoned" for index in node.cordoned_gpus]
    now, then = _node_now(
        node, pool, sagas, lines, blocks, _remaining_work(node, sagas, stored, at)
    )
    now = (*blocked_text.quarantine_lines(node, pool), *blocks, *now)
    if not now and (waits := blocked_text.degraded_wait(node, pool, at)):
        now = (waits,)
    if not node.saga and (renewed := blocked_text.renewal_wait(node, pool, at)):
        now = (*now, renewed)
    return _answer(
        WhyAnswer(
            about=node.node,
            kind="node",
            summary=f"{node.node} in pool {node.pool} is {', '.join(words)}.",
            now=(*_workload_lines(node), *(now or (IDLE,)), *_condition_lines(node, conditions)),
            next=then,
            evidence=f"navarch evidence {node.node}" if has_evidence else "",
        ),
        lines,
    )


def _node_now(
    node: NodeRecord,
    pool: PoolRecord | None,
    sagas: Sequence[SagaState],
    lines: Sequence[HistoryLine],
    blocks: Sequence[str],
    remains: Sequence[str],
) -> tuple[tuple[str, ...], str]:
    saga = next((each for each in sagas if each.saga == node.saga), None)
    if saga is not None:
        where = progress(saga)
        return (_waiting_sentence(where), *remains), _next_steps(where)
    if node.state == "terminated":
        replaced = (each for each in sagas if (each.kind, each.status) == ("replace", "done"))
        params = (each.params for each in replaced if each.params.node == node.node)
        successor = next((each.promotes or each.new_node for each in params), "")
        place = f" {successor} replaced it." if successor else ""
        return (f"It is terminated; nothing is in progress.{place}",), ""
    if _is_unhealthy(node):
        manual = _manual_remedies(node)
        if blocks:
            return (
                f"It is unhealthy: {_fault_text(node)}.",
            ), "nothing automatic until the block ends"
        automatic = pool is not None and pool.spec.health.auto_replace
        notified = pool is not None and node.node in pool.operator_notified
        then = "it is remediated or replaced as soon as nothing blocks that"
        return (_block_reason(node, pool, lines),), then if automatic and not notified else manual
    if node.spare:
        return ("It is a spare: it stays cordoned until it replaces a node.",), ""
    if node.cordoned:
        return (
            "Nothing is in progress; it gets no new work, because it is cordoned.",
        ), f"nothing automatic; to return it to service: navarch uncordon {node.node}"
    return (), ""


def _remaining_work(
    node: NodeRecord, sagas: Sequence[SagaState], stored: Sequence[Stored], at: datetime | None
) -> tuple[str, ...]:
    """What the drain of the node's saga waits for, as the notifier last reported it."""
    if not any(each.saga == node.saga and progress(each).step == "drain" for each in sagas):
        return ()
    last: tuple[str, ...] = ()
    for each in stored:
        message = decode_stored(each)
        if isinstance(message, WorkRemains) and message.saga == node.saga:
            waits = work_words(message, at or each.time)
            last = (f"Its drain {waits} (reported at {local_time(each.time)}).",)
    return last


def _workload_lines(node: NodeRecord) -> tuple[str, ...]:
    """What the workload system says, if that keeps new work off the node."""
    if node.workload is None or node.state == "terminated":
        return ()
    return (f"{state_words(node.workload)}.",)


def _condition_lines(node: NodeRecord, listed: ConditionList | None) -> tuple[str, ...]:
    """What holds on the node and what cannot be read there, as its agent last said."""
    if node.state == "terminated":
        return ()
    seen = (condition_line(each, silent=node.lost) for each in condition_views(listed))
    return tuple(f"{each}." for each in seen)


def _manual_remedies(node: NodeRecord) -> str:
    """What an operator can do about an unhealthy node; first the action of its verdict."""
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action, "replace")
    return f"navarch {verb} {node.node}, or navarch uncordon {node.node} if it is healthy"


def _is_unhealthy(node: NodeRecord) -> bool:
    """Whether a node needs remediation."""
    return node.state == "active" and bool(
        node.health == "unhealthy" or node.lost or taken_reason(node)
    )


def _fault_text(node: NodeRecord) -> str:
    if node.health == "unhealthy":
        return node.health_reason or "judged unhealthy"
    return taken_reason(node) or "its heartbeats stopped"


def _block_reason(node: NodeRecord, pool: PoolRecord | None, lines: Sequence[HistoryLine]) -> str:
    """Why an unhealthy node is not being remediated."""
    if pool is None:
        return "Nothing is in progress: its pool is no longer configured."
    if not pool.spec.health.auto_replace:
        return (
            "Nothing is in progress: the pool has auto_replace: false, so an operator must decide."
        )
    last = next((each for each in reversed(lines) if each.topic == "blocked"), None)
    if node.node in pool.operator_notified:
        since = f", alerted at {local_time(last.at)}" if last else ""
        kind = pool.spec.health.remediation.type
        return f"It waits for an operator{since}: the pool has remediation: {kind}."
    if node.health != "unhealthy" and node.provider_state == "disconnected":
        return (
            "Its credentials are refused or have expired, and it is not replaced for that silence: "
            "navarch status shows what keeps its agent from connecting."
        )
    if node.health != "unhealthy" and node.lost_at is not None:
        due = node.lost_at + timedelta(seconds=float(pool.spec.health.lost_after))
        if pool.breaker.state == "closed":
            return (
                f"Its heartbeats stopped at {local_time(node.lost_at)}; unless they resume, the "
                f"pool acts at {local_time(due)}, or later if its provider cannot confirm the loss."
            )
    if pool.failures and pool.retry_at is not None and not pool.over_spend_cap:
        return f"It waits for the next try: {_retry_sentence(pool, lines)}"
    if pool.breaker.state != "closed":
        out = [saga for saga, each in pool.open.items() if each.node][:SAGAS_NAMED_MAX]
        spent = f" In progress: {', '.join(out)}." if out else ""
        words = _lower_first(breaker_sentence(pool.name, pool.breaker))
        return f"It waits for the breaker, which {words}{spent}"
    if pool.breaker.ramp:
        return (
            f"It waits for its turn: the breaker has closed and still allows only "
            f"{pool.breaker.ramp} remediations at once."
        )
    return f"It waits for the pool-manager to decide. {UNDECIDED}"


def _retry_sentence(pool: PoolRecord, lines: Sequence[HistoryLine]) -> str:
    """How many tries failed in a row, why the last one failed, and when the next is."""
    assert pool.retry_at is not None
    last = next((each for each in reversed(lines) if each.topic == "tried"), None)
    why = f", the last at {local_time(last.at)}: {last.text}" if last else ""
    tries = "1 try" if pool.failures == 1 else f"{pool.failures} tries in a row"
    return f"{tries} failed{why}. The next is at {local_time(pool.retry_at)}."


# --- one pool ------------------------------------------------------------------------------------


def why_pool(
    pool: PoolRecord,
    nodes: Iterable[NodeRecord],
    stored: Iterable[Stored],
    sagas: Sequence[SagaState],
    *,
    at: datetime | None = None,
) -> WhyAnswer:
    """Explain a pool; `stored`: its events, `sagas`: its open ones, `at`: now."""
    nodes = tuple(nodes)
    present = [each for each in nodes if each.state != "terminated" and not each.spare]
    serving = (each for each in present if each.state == "active" and not each.lost)
    healthy = sum(1 for each in serving if each.health == "healthy")
    summary = (
        f"Pool {pool.name} has {len(present)} of {pool.desired} desired nodes, {healthy} of them "
        f"healthy and in service; open sagas: {len(pool.open)}, breaker: {pool.breaker.state}."
    )
    lines = history_lines(stored)
    now: list[str] = [
        *blocked_text.removal_progress(pool, nodes),
        *blocked_text.observed_actions(pool),
        *blocked_text.open_windows(pool, at),
    ]
    now += blocked_text.ready_spares(pool, nodes)
    now += blocked_text.on_demand_lines(pool, nodes)
    now += [f"{each.reason}." for each in pool.conditions.values() if each.reported]
    if pool.advice is not None:
        now.append(advice_sentence(pool.advice))
    if pool.breaker.state != "closed":
        now.append(f"The breaker {breaker_sentence(pool.name, pool.breaker)}")
    elif pool.breaker.ramp:
        now.append(
            f"The breaker has closed and allows only {pool.breaker.ramp} remediations at once."
        )
    now += [
        f"The incident {name} is open since {local_time(each.since)}: it has {each.nodes} nodes."
        for name, each in pool.incidents.items()
        if each.hold_ended_at is None
    ]
    if pool.failures and pool.retry_at is not None:
        now.append(_retry_sentence(pool, lines))
    now += [
        f"{each.saga}: {_lower_first(_waiting_sentence(progress(each)))}"
        for each in sagas[:SAGAS_NAMED_MAX]
    ]
    if len(sagas) > SAGAS_NAMED_MAX:
        now.append(f"{len(sagas) - SAGAS_NAMED_MAX} more: navarch saga list")
    now += _waiting_nodes(present, pool, lines, shown=len(now))
    found = WhyAnswer(about=pool.name, kind="pool", summary=summary, now=tuple(now or [IDLE]))
    return _answer(found, lines)


def _waiting_nodes(
    nodes: Sequence[NodeRecord], pool: PoolRecord, lines: Sequence[HistoryLine], *, shown: int
) -> list[str]:
    """The nodes that need remediation, and what blocks it."""
    named = []
    busy = {each.node for each in pool.open.values()}
    for node in (each for each in nodes if not each.saga and each.node not in busy):
        if _is_unhealthy(node):
            blocks = blocked_text.node_blocks(node, pool) or (_block_reason(node, pool, lines),)
            # A block that applies to all nodes is reported once, above.
            above = pool.breaker.state != "closed" or (pool.failures and not pool.over_spend_cap)
            why = "It waits for the same" if above else blocks[0]
            named.append(f"{node.node}: {_fault_text(node)}. {why}")
        elif node.cordoned:
            named.append(
                f"{node.node} is cordoned; to return it to service: navarch uncordon {node.node}"
            )
    room = max(1, SAGAS_NAMED_MAX - shown)
    more = [f"{len(named) - room} nodes more: navarch list"] if len(named) > room else []
    gap = pool.desired - len(nodes)
    if gap > 0 and not pool.open and not pool.failures and pool.spec.mode == "act":
        more.append(f"{gap} nodes are missing and nothing is in progress. {UNFILLED}")
    return [*named[:room], *more]


# --- one saga ------------------------------------------------------------------------------------


def why_saga(state: SagaState, stored: Iterable[Stored]) -> WhyAnswer:
    """Explain a saga; `stored`: its entries, and the events that caused it or that it caused."""
    where = progress(state)
    nodes = " -> ".join(name for name in (where.node, where.new_node) if name)
    now = ("It has ended.",) if state.ended else (_waiting_sentence(where),)
    requested = f", requested by {state.params.by}" if state.params.by else ""
    began = f" Reason: {state.params.reason}{requested}." if state.params.reason else ""
    summary = f"{state.saga} ({where.kind} {nodes}) is {state.status}.{began}"
    if state.status in ("unwinding", "unwound"):
        summary += f" Unwinding leaves behind: {where.leaves}."
    found = WhyAnswer(
        about=state.saga, kind="saga", summary=summary, now=now, next=_next_steps(where)
    )
    return _answer(found, history_lines(stored))


# --- sentences -----------------------------------------------------------------------------------


def _waiting_sentence(where: Progress) -> str:
    if where.status == "stuck":
        return (
            f"It is stuck at {where.step} since {local_time(where.since)}: {where.reason}. "
            f"It waits for {where.waiting_for}."
        )
    until = f", at most until {local_time(where.deadline)}" if where.deadline else ""
    doing = " while it is unwound" if where.status == "unwinding" else ""
    at = f" (at {where.step}{doing})" if where.step else ""
    why = f" {where.reason}." if where.status == "unwinding" else ""
    return f"It waits for {where.waiting_for}{at}, since {local_time(where.since)}{until}.{why}"


def breaker_sentence(pool: str, breaker: Breaker) -> str:
    """The state of a breaker that is not closed, and what it waits for; follows its name."""
    since = f" since {local_time(breaker.since)}" if breaker.since else ""
    if breaker.state == "half-open":
        return f"is half-open{since}: {breaker.probe} is the probe, and its outcome decides."
    by = f" by {breaker.by}" if breaker.by else ""
    if breaker.forced:
        then = f"it stays open until an operator closes it: navarch breaker close {pool} --reason …"
    elif breaker.cause == "wave":
        return f"is open{by}{since}: {breaker.reason}."  # which names the command
    elif breaker.probe_at is not None:
        then = f"one probe is tried at {local_time(breaker.probe_at)} at the earliest"
    else:
        then = "when that has passed, one probe is tried, and then others"
    return f"is open{by}{since}: {breaker.reason}; {then}."


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _next_steps(where: Progress) -> str:
    if not where.next:
        return ""
    names = ", ".join(where.next)
    return f"{names} to be undone" if where.status == "unwinding" else names


def _answer(found: WhyAnswer, lines: Sequence[HistoryLine]) -> WhyAnswer:
    return msgspec.structs.replace(
        found, lines=tuple(lines[-LINES_MAX:]), omitted=max(0, len(lines) - LINES_MAX)
    )


def why_page(answer: WhyAnswer) -> str:
    """Return the explanation as text."""
    lines = [answer.summary]
    if answer.omitted:
        lines.append(f"  … {answer.omitted} older lines: navarch timeline has all")
    lines += [f"  {local_time(each.at)}  {each.topic:<9}  {each.text}" for each in answer.lines]
    lines += [f"Now:   {each}" for each in answer.now]
    if answer.next:
        lines.append(f"Next:  {answer.next}.")
    if answer.evidence:
        lines.append(f"See:   {answer.evidence}")
    return "\n".join(map(escape_line, lines))
