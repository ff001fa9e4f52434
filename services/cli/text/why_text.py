"""Why something is as it is: what was seen, decided, tried and refused, and what it waits for.

Pure: stored messages and records in, sentences out; nothing is remembered beside the log. The
moments are those of storing, because they come from one clock, the server's.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from schemas.breaker_state import Breaker
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.bus.port import Stored
from services.cli.text import blocked_text
from services.cli.text.advice_text import advice_words
from services.cli.text.history_text import HistoryLine, history_lines
from services.cli.text.saga_progress import Progress, progress
from services.operator_text.quantities import local_time
from services.pool_manager.planner.sizing.cloud_notices import taken
from services.saga.saga_state import SagaState

LINES_MAX: Final = 40
"""The newest; what was before is `navarch timeline`."""
SAGAS_NAMED_MAX: Final = 20


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    about: str
    kind: Literal["node", "pool", "saga"]
    summary: str
    lines: tuple[HistoryLine, ...] = ()
    omitted: int = 0
    """Older lines that are not shown."""
    now: tuple[str, ...] = ()
    """What it waits for, and since when."""
    next: str = ""
    """What comes after that."""
    evidence: str = ""
    """The command that shows what is kept of a node that was sick."""


# --- one node ------------------------------------------------------------------------------------


def why_node(
    node: NodeRecord,
    pool: PoolRecord | None,
    stored: Iterable[Stored],
    sagas: Sequence[SagaState],
    *,
    kept: bool = False,
    at: datetime | None = None,
) -> Answer:
    """Answer for a node; `stored`: its events, its pool's about it, its sagas' entries.

    `kept`: whether there is evidence of it; `at`: now, to say which windows are open.
    """
    told = history_lines(stored)
    words: list[str] = [node.state, node.health]
    words += [word for word in ("spare", "cordoned", "drained", "lost") if getattr(node, word)]
    keeps = blocked_text.node_kept(node, pool, at)
    now, then = _node_now(node, pool, sagas, told, keeps)
    now = (*keeps, *now)
    if not now and (waits := blocked_text.degraded_told(node, pool, at)):
        now = (waits,)
    return _answer(
        Answer(
            about=node.node,
            kind="node",
            summary=f"{node.node} in pool {node.pool} is {', '.join(words)}.",
            now=now or ("Nothing is under way, and nothing is waited for.",),
            next=then,
            evidence=f"navarch evidence {node.node}" if kept else "",
        ),
        told,
    )


def _node_now(
    node: NodeRecord,
    pool: PoolRecord | None,
    sagas: Sequence[SagaState],
    told: Sequence[HistoryLine],
    keeps: Sequence[str],
) -> tuple[tuple[str, ...], str]:
    saga = next((each for each in sagas if each.saga == node.saga), None)
    if saga is not None:
        where = progress(saga)
        return (_waits(where),), _then(where)
    if node.state == "terminated":
        replaced = (each for each in sagas if (each.kind, each.status) == ("replace", "done"))
        heirs = (e.params for e in replaced if e.params.node == node.node)
        heir = next((each.promotes or each.new_node for each in heirs), "")
        took = f" {heir} took its place." if heir else ""
        return (f"It is gone; nothing is under way about it.{took}",), ""
    if _sick(node):
        by_hand = _by_hand(node)
        if keeps:
            return (f"It is sick: {_illness(node)}.",), "nothing by itself until that ends"
        asked = pool is not None and pool.spec.health.auto_replace
        left = pool is not None and node.node in pool.operator_notified
        then = "it is mended or replaced, as soon as nothing holds that back any more"
        return (_held_back(node, pool, told),), then if asked and not left else by_hand
    if node.spare:
        return ("It is a spare, kept cordoned until it takes a node's place.",), ""
    if node.cordoned:
        return (
            "Nothing is under way; it takes no new work, because it is cordoned.",
        ), f"nothing by itself; to have it back: navarch uncordon {node.node}"
    return (), ""


def _by_hand(node: NodeRecord) -> str:
    """What a person can do about a sick node; first what its verdict calls for."""
    verb = {"reset_gpu": "reset-gpu", "reboot": "reboot"}.get(node.health_action, "replace")
    return f"navarch {verb} {node.node}, or navarch uncordon {node.node} if it is well"


def _sick(node: NodeRecord) -> bool:
    """Whether something must be done about a node."""
    return node.state == "active" and bool(node.health == "unhealthy" or node.lost or taken(node))


def _illness(node: NodeRecord) -> str:
    if node.health == "unhealthy":
        return node.health_reason or "judged unhealthy"
    return taken(node) or "its heart does not beat"


def _held_back(node: NodeRecord, pool: PoolRecord | None, told: Sequence[HistoryLine]) -> str:
    """Why a sick node is not being replaced."""
    if pool is None:
        return "Nothing is under way: its pool is not configured any more."
    if not pool.spec.health.auto_replace:
        return "Nothing is under way: the pool has auto_replace: false, so a person must decide."
    last = next((each for each in reversed(told) if each.topic == "blocked"), None)
    if node.node in pool.operator_notified:
        asked = f", asked for at {local_time(last.at)}" if last else ""
        how = pool.spec.health.remediation.type
        return f"It waits for a person{asked}: the pool leaves it to people (remediation: {how})."
    if node.health != "unhealthy" and node.lost_at is not None:
        due = node.lost_at + timedelta(seconds=float(pool.spec.health.lost_after))
        if pool.breaker.state == "closed":
            return (
                f"Its heartbeats stopped at {local_time(node.lost_at)}; unless they resume, the "
                f"pool acts at {local_time(due)}, or later if its provider cannot confirm the loss."
            )
    if pool.failures and pool.retry_at is not None and not pool.over_spend_cap:
        return f"It waits for the next try: {_failing(pool, told)}"
    if pool.breaker.state != "closed":
        out = [saga for saga, each in pool.open.items() if each.node][:SAGAS_NAMED_MAX]
        spent = f" Under way: {', '.join(out)}." if out else ""
        words = _small(breaker_words(pool.name, pool.breaker))
        return f"It waits for the breaker, which {words}{spent}"
    if pool.breaker.ramp:
        return (
            f"It waits for its turn: the breaker has closed, and {pool.breaker.ramp} at once are "
            "repaired until it is clear that it goes well."
        )
    return "It waits for the pool-manager to decide; is it running? `nats micro ls` lists it."


def _failing(pool: PoolRecord, told: Sequence[HistoryLine]) -> str:
    """How often in a row it went wrong, the last time why, and when it is tried again."""
    assert pool.retry_at is not None
    last = next((each for each in reversed(told) if each.topic == "tried"), None)
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
) -> Answer:
    """Answer for a pool; `stored`: its events, `sagas`: its open ones, `at`: now."""
    nodes = tuple(nodes)
    present = [each for each in nodes if each.state != "terminated" and not each.spare]
    healthy = sum(1 for each in present if each.state == "active" and each.health == "healthy")
    summary = (
        f"Pool {pool.name} wants {pool.desired} nodes and has {len(present)}, {healthy} of them "
        f"healthy and in service; open sagas: {len(pool.open)}, breaker: {pool.breaker.state}."
    )
    told = history_lines(stored)
    now: list[str] = [
        *blocked_text.removal_told(pool, nodes),
        *blocked_text.pool_kept(pool),
        *blocked_text.windows_told(pool, at),
    ]
    now += blocked_text.reserve_told(pool, nodes)
    if pool.advice is not None:
        now.append(advice_words(pool.advice))
    if pool.breaker.state != "closed":
        now.append(f"The breaker {breaker_words(pool.name, pool.breaker)}")
    elif pool.breaker.ramp:
        now.append(f"The breaker has closed; {pool.breaker.ramp} repairs at once for now.")
    now += [
        f"The incident {name} is open since {local_time(each.since)}: {each.nodes} nodes have it."
        for name, each in pool.incidents.items()
        if each.settled is None
    ]
    if pool.failures and pool.retry_at is not None:
        now.append(_failing(pool, told))
    now += [f"{each.saga}: {_small(_waits(progress(each)))}" for each in sagas[:SAGAS_NAMED_MAX]]
    if len(sagas) > SAGAS_NAMED_MAX:
        now.append(f"{len(sagas) - SAGAS_NAMED_MAX} more: navarch saga list")
    now += _waiting(present, pool, told, shown=len(now))
    nothing = "Nothing is under way, and nothing is waited for."
    found = Answer(about=pool.name, kind="pool", summary=summary, now=tuple(now or [nothing]))
    return _answer(found, told)


def _waiting(
    nodes: Sequence[NodeRecord], pool: PoolRecord, told: Sequence[HistoryLine], *, shown: int
) -> list[str]:
    """The nodes that something should be done about, and what keeps it from being done."""
    named = []
    busy = {each.node for each in pool.open.values()}
    for node in (each for each in nodes if not each.saga and each.node not in busy):
        if _sick(node):
            kept = blocked_text.node_kept(node, pool) or (_held_back(node, pool, told),)
            # What holds all of them back stands above, once.
            above = pool.breaker.state != "closed" or (pool.failures and not pool.over_spend_cap)
            why = "It waits for that" if above else kept[0]
            named.append(f"{node.node}: {_illness(node)}. {why}")
        elif node.cordoned:
            named.append(f"{node.node} is cordoned: to have it back: navarch uncordon {node.node}")
    room = max(1, SAGAS_NAMED_MAX - shown)
    more = [f"{len(named) - room} nodes more: navarch list"] if len(named) > room else []
    gap = pool.desired - len(nodes)
    if gap > 0 and not pool.open and not pool.failures and pool.spec.mode == "act":
        more.append(
            f"{gap} nodes are missing and nothing is under way: is the pool-manager running? "
            "`nats micro ls` lists it."
        )
    return [*named[:room], *more]


# --- one saga ------------------------------------------------------------------------------------


def why_saga(state: SagaState, stored: Iterable[Stored]) -> Answer:
    """Answer for a saga; `stored`: its entries, and the events that led to it or came of it."""
    where = progress(state)
    nodes = " -> ".join(name for name in (where.node, where.new_node) if name)
    now = ("It has ended; nothing is waited for.",) if state.ended else (_waits(where),)
    asked = f", asked by {state.params.by}" if state.params.by else ""
    began = f" It began because: {state.params.reason}{asked}." if state.params.reason else ""
    summary = f"{state.saga} ({where.kind} {nodes}) is {state.status}.{began}"
    if state.status in ("unwinding", "unwound"):
        summary += f" Unwinding leaves behind: {where.leaves}."
    found = Answer(about=state.saga, kind="saga", summary=summary, now=now, next=_then(where))
    return _answer(found, history_lines(stored))


# --- sentences -----------------------------------------------------------------------------------


def _waits(where: Progress) -> str:
    if where.status == "stuck":
        return (
            f"It is stuck at {where.step} since {local_time(where.since)}: {where.reason}. "
            f"It waits for {where.waiting_for}."
        )
    until = f", until {local_time(where.deadline)} at the latest" if where.deadline else ""
    doing = " while it is unwound" if where.status == "unwinding" else ""
    at = f" (at {where.step}{doing})" if where.step else ""
    why = f" {where.reason}." if where.status == "unwinding" else ""
    return f"It waits for {where.waiting_for}{at}, since {local_time(where.since)}{until}.{why}"


def breaker_words(pool: str, breaker: Breaker) -> str:
    """What a breaker that is not closed is like, and what is waited for; after its name."""
    since = f" since {local_time(breaker.since)}" if breaker.since else ""
    if breaker.state == "half-open":
        return f"is half-open{since}: {breaker.probe} is tried first, and how it ends decides."
    by = f" by {breaker.by}" if breaker.by else ""
    if breaker.forced:
        then = f"it stays open until somebody closes it: navarch breaker close {pool} --reason …"
    elif breaker.probe_at is not None:
        then = f"one repair is tried at {local_time(breaker.probe_at)} at the earliest"
    else:
        then = "when that is over one repair is tried, and then the others"
    return f"is open{by}{since}: {breaker.reason}; {then}."


def _small(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _then(where: Progress) -> str:
    if not where.next:
        return ""
    names = ", ".join(where.next)
    return f"{names} to be taken back" if where.status == "unwinding" else names


def _answer(found: Answer, lines: Sequence[HistoryLine]) -> Answer:
    return msgspec.structs.replace(
        found, lines=tuple(lines[-LINES_MAX:]), omitted=max(0, len(lines) - LINES_MAX)
    )


def page(answer: Answer) -> str:
    """The answer as people read it."""
    lines = [answer.summary]
    if answer.omitted:
        lines.append(f"  … {answer.omitted} older lines: navarch timeline tells them")
    lines += [f"  {local_time(each.at)}  {each.topic:<9}  {each.text}" for each in answer.lines]
    lines += [f"Now:   {each}" for each in answer.now]
    if answer.next:
        lines.append(f"Next:  {answer.next}.")
    if answer.evidence:
        lines.append(f"See:   {answer.evidence}")
    return "\n".join(lines)
