"""Explains a node, pool or saga: what was observed, decided and tried, and what it waits for. Pure.

History comes from stored messages; what holds a node or pool back comes from the pool-manager's
answer about the present. Times are storage times: they come from one clock, the server's.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from schemas.held_conditions import ConditionList, condition_views
from schemas.node_events import WorkRemains
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.present_answers import Block, BlockedGroup, BlockedNode, PresentAnswer
from schemas.stored_messages import decode_stored
from schemas.time_text import utc_seconds
from services.bus.port import Stored
from services.fleet_client.history_text import HistoryLine, history_lines
from services.fleet_client.saga_progress import Progress, progress
from services.fleet_client.why_answer import WhyAnswer
from services.operator_text.condition_text import condition_line
from services.operator_text.quantities import first_of, local_time, localized
from services.operator_text.safe_text import escape_line
from services.operator_text.workload_words import state_words, work_words
from services.saga.saga_state import SagaState

LINES_MAX: Final = 40
"""The newest; `navarch timeline` has all."""
SAGAS_NAMED_MAX: Final = 20
NODES_NAMED_MAX: Final = 5
"""Nodes that wait for the same, by name."""
OF_THE_POOL: Final = frozenset({"stop", "breaker", "retry"})
"""Gates that hold every node of a pool alike: they are explained once."""
IDLE: Final = "Nothing is in progress, and it waits for nothing."


# --- one node ------------------------------------------------------------------------------------


def why_node(
    node: NodeRecord,
    present: BlockedNode,
    stored: Iterable[Stored],
    sagas: Sequence[SagaState],
    *,
    conditions: ConditionList | None = None,
    has_evidence: bool = False,
    at: datetime | None = None,
    away: str = "",
) -> WhyAnswer:
    """Explain a node; `stored`: its events, its pool's events about it, its sagas' entries.

    `present`: what holds it back; `conditions`: what its agent sees; `has_evidence`: whether
    evidence of it is stored; `at`: now, for how long what lasts; `away`: that the pool-manager
    does not answer.
    """
    stored = tuple(stored)
    lines = history_lines(stored)
    words: list[str] = [node.state, node.health]
    words += [word for word in ("spare", "cordoned", "drained", "lost") if getattr(node, word)]
    if node.drained and node.drain_expired:
        words[words.index("drained")] = "drain expired"
    if node.is_quarantined:
        words[words.index("cordoned")] = "quarantined"
    words += [f"GPU {index} cordoned" for index in node.cordoned_gpus]
    held = tuple(_with_history(each, lines) for each in present.blocked)
    now = tuple(each.text for each in held)
    then = present.next
    saga = next((each for each in sagas if each.saga == node.saga), None)
    if saga is not None:
        where = progress(saga)
        now = (*now, _waiting_sentence(where), *_remaining_work(node, sagas, stored, at))
        then = _next_steps(where)
    elif node.state == "terminated":
        now, away = (_end_of(node, sagas),), ""  # it waits for nothing any more
    idle = () if now or away else (IDLE,)
    return _answer(
        WhyAnswer(
            about=node.node,
            kind="node",
            summary=f"{node.node} in pool {node.pool} is {', '.join(words)}.",
            now=(
                *filter(None, (away,)),
                *_workload_lines(node),
                *(now or idle),
                *filter(None, (present.machine,)),
                *_condition_lines(node, conditions),
            ),
            blocked=held,
            next=then,
            evidence=f"navarch evidence {node.node}" if has_evidence else "",
        ),
        lines,
    )


def _end_of(node: NodeRecord, sagas: Sequence[SagaState]) -> str:
    replaced = (each for each in sagas if (each.kind, each.status) == ("replace", "done"))
    params = (each.params for each in replaced if each.params.node == node.node)
    successor = next((each.promotes or each.new_node for each in params), "")
    place = f" {successor} replaced it." if successor else ""
    return f"It is terminated; nothing is in progress.{place}"


def _with_history(held: Block, lines: Sequence[HistoryLine]) -> Block:
    """Add to what waits the last event behind it: the failed try, or the alert to operators."""
    topic, words = {"retry": ("tried", "The last"), "operator": ("blocked", "Alerted")}.get(
        held.gate, ("", "")
    )
    last = next((each for each in reversed(lines) if each.topic == topic), None)
    if last is None:
        return held
    text = f"{held.text} {words} at {utc_seconds(last.at)}: {last.text.rstrip('.')}."
    return msgspec.structs.replace(held, text=text)


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
            last = (f"Its drain {waits} (reported at {utc_seconds(each.time)}).",)
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


# --- one pool ------------------------------------------------------------------------------------


def why_pool(
    pool: PoolRecord,
    nodes: Iterable[NodeRecord],
    present: PresentAnswer | None,
    stored: Iterable[Stored],
    sagas: Sequence[SagaState],
    *,
    away: str = "",
) -> WhyAnswer:
    """Explain a pool; `stored`: its events, `sagas`: its open ones.

    `present`: what it and its nodes wait for; `away`: that the pool-manager does not answer.
    """
    counted = [each for each in nodes if each.state != "terminated" and not each.spare]
    serving = (each for each in counted if each.state == "active" and not each.lost)
    healthy = sum(1 for each in serving if each.health == "healthy")
    summary = (
        f"Pool {pool.name} has {len(counted)} of {pool.desired} desired nodes, {healthy} of them "
        f"healthy and in service; open sagas: {len(pool.open)}, breaker: {pool.breaker.state}."
    )
    lines = history_lines(stored)
    held = tuple(_with_history(each, lines) for each in present.blocked) if present else ()
    now = [*filter(None, (away,)), *(each.text for each in held)]
    now += [
        f"{each.saga}: {_lower_first(_waiting_sentence(progress(each)))}"
        for each in sagas[:SAGAS_NAMED_MAX]
    ]
    if len(sagas) > SAGAS_NAMED_MAX:
        now.append(f"{len(sagas) - SAGAS_NAMED_MAX} more: navarch saga list")
    if present is not None:
        now += _waiting_nodes(present, pool, room=max(1, SAGAS_NAMED_MAX - len(now)))
    return _answer(
        WhyAnswer(
            about=pool.name, kind="pool", summary=summary, now=tuple(now or [IDLE]), blocked=held
        ),
        lines,
    )


def _waiting_nodes(present: PresentAnswer, pool: PoolRecord, *, room: int) -> Iterator[str]:
    """Yield the nodes that need something, and what each group of them waits for."""
    above = any(each.gate in OF_THE_POOL for each in present.blocked)
    left = present.more
    for group in present.groups:
        text = _group_sentence(group, above=above, removing=bool(pool.removing))
        if text and room:
            room -= 1
            yield f"{first_of(group.nodes, NODES_NAMED_MAX)}{text}"
        elif text:
            left += len(group.nodes)
    if left:
        yield f"{left} nodes more: navarch list"


def _group_sentence(group: BlockedGroup, *, above: bool, removing: bool) -> str:
    """Return what follows the names of a group; empty: a pool has nothing to report of it."""
    waits = [each for each in group.blocked if each.gate != "fault"]
    if group.fault:
        same = above and all(each.gate in OF_THE_POOL for each in waits)
        why = "It waits for the same" if same or not waits else waits[0].text
        return f": {group.fault}. {why}"
    for each in waits:
        if each.gate == "cordon":
            is_one = "is" if len(group.nodes) == 1 else "are"
            return f" {is_one} cordoned; to return it to service: {each.remedy}"
        if removing and each.gate == "hold":
            return f": {each.text}"
    return ""


# --- one saga ------------------------------------------------------------------------------------


def why_saga(state: SagaState, stored: Iterable[Stored], stops: Sequence[Block] = ()) -> WhyAnswer:
    """Explain a saga; `stored`: its entries, and the events that caused it or that it caused.

    `stops`: what operators have stopped in its pool; nothing once it has ended.
    """
    where = progress(state)
    nodes = " -> ".join(name for name in (where.node, where.new_node) if name)
    now = ("It has ended.",) if state.ended else (_waiting_sentence(where),)
    said = (*(each.text for each in stops), *now)
    requested = f", requested by {state.params.by}" if state.params.by else ""
    began = f" Reason: {state.params.reason}{requested}." if state.params.reason else ""
    summary = f"{state.saga} ({where.kind} {nodes}) is {state.status}.{began}"
    if state.status in ("unwinding", "unwound"):
        summary += f" Unwinding leaves behind: {where.leaves}."
    found = WhyAnswer(
        about=state.saga,
        kind="saga",
        summary=summary,
        now=said,
        blocked=tuple(stops),
        next=_next_steps(where),
    )
    return _answer(found, history_lines(stored))


# --- sentences -----------------------------------------------------------------------------------


def _waiting_sentence(where: Progress) -> str:
    if where.status == "stuck":
        return (
            f"It is stuck at {where.step} since {utc_seconds(where.since)}: {where.reason}. "
            f"It waits for {where.waiting_for}."
        )
    until = f", at most until {utc_seconds(where.deadline)}" if where.deadline else ""
    doing = " while it is unwound" if where.status == "unwinding" else ""
    at = f" (at {where.step}{doing})" if where.step else ""
    why = f" {where.reason}." if where.status == "unwinding" else ""
    return f"It waits for {where.waiting_for}{at}, since {utc_seconds(where.since)}{until}.{why}"


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
    lines += [f"Now:   {localized(each)}" for each in answer.now]
    if answer.next:
        lines.append(f"Next:  {answer.next}.")
    if answer.evidence:
        lines.append(f"See:   {answer.evidence}")
    return "\n".join(map(escape_line, lines))
