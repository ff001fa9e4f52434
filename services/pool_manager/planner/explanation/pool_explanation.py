"""Explains what a pool and its nodes wait for, as one answer of a bounded size. Pure."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.present_answers import ANSWER_BYTES_MAX, Block, BlockedGroup, PresentAnswer
from schemas.stops import Stop
from schemas.time_text import utc_seconds
from services.operator_text.advice_text import advice_sentence
from services.operator_text.quantities import first_of
from services.pool_manager.planner.explanation import node_explanation
from services.pool_manager.planner.gates import node_gates, pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import Nodes, busy
from services.pool_manager.planner.safety import maintenance_windows
from services.pool_manager.planner.sizing import on_demand_floor

NAMED_MAX: Final = 10
"""Nodes or actions that one sentence or list names."""
EXPLAINED_MAX: Final = 1_000
"""Nodes whose sentences one answer may cost, some 20 µs each; the others are counted."""
HEADER_BYTES_MAX: Final = 16_384
"""Of an answer what is about the pool and the sentences of its groups, at the most."""


def present_answer(
    pool: PoolRecord,
    nodes: Nodes,
    now: datetime,
    *,
    stop: Stop | None = None,
    revision: int = 0,
    replica: str = "",
) -> PresentAnswer:
    """Return what a pool and those of its nodes that need attention wait for now.

    Nodes beyond 1,000, and beyond 64 KiB, are counted.
    """
    taken, proposed = busy(pool), node_explanation.about(pool, nodes, now, stop)
    groups: dict[bytes, BlockedGroup] = {}
    size = 0
    waiting = nodes.needs_attention
    more = max(0, len(waiting) - EXPLAINED_MAX)
    for node in waiting[:EXPLAINED_MAX]:
        if node.node in taken or node.state == "terminated":
            continue
        found = node_explanation.blocked_node(node, proposed)
        if not found.blocked:
            continue
        key = msgspec.json.encode(found)
        size += len(node.node) + 3 + (len(key) if key not in groups else 0)
        if size > ANSWER_BYTES_MAX - HEADER_BYTES_MAX:
            more += 1
            continue
        named = groups[key].nodes if key in groups else ()
        groups[key] = BlockedGroup(
            fault=found.fault, blocked=found.blocked, next=found.next, nodes=(*named, node.node)
        )
    return PresentAnswer(
        pool=pool.name,
        at=now,
        replica=replica,
        revision=revision,
        blocked=tuple(_of_pool(pool, nodes, stop, now)),
        groups=tuple(groups.values()),
        more=more,
    )


def _of_pool(pool: PoolRecord, nodes: Nodes, stop: Stop | None, now: datetime) -> Iterator[Block]:
    if stop is not None:
        yield pool_gates.stopped(stop)
    yield from _removal(pool, nodes)
    yield from _observed(pool)
    yield from open_windows(pool, now)
    yield from _spares(pool, nodes)
    yield from _on_demand(pool, nodes)
    for found in pool.conditions.values():
        if found.reported:
            yield Block(gate="condition", text=f"{found.reason}.")
    if pool.advice is not None:
        until = pool.advice.until
        yield Block(gate="autoscaler", text=advice_sentence(pool.advice), until=until)
    proposed = Proposal("repair", pool, now)
    yield from filter(None, (pool_gates.breaker(proposed), pool_gates.ramp(proposed)))
    for name, each in pool.incidents.items():
        if each.hold_ended_at is None:
            since = utc_seconds(each.since)
            text = f"The incident {name} is open since {since}: it has {each.nodes} nodes."
            yield Block(gate="incident", text=text)
    yield from filter(None, (pool_gates.retry(proposed), pool_gates.workload_system(proposed)))
    if stop is None:
        yield from _gap(pool, nodes)


def _removal(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> Iterator[Block]:
    """Yield that a pool is being removed; its nodes name what blocks each."""
    if pool.removing:
        left = sum(1 for node in nodes if node.state != "terminated")
        yield Block(gate="removal", text=f"It is being removed: {left} nodes remain.")


def _observed(pool: PoolRecord) -> Iterator[Block]:
    """Yield what a pool in observe mode would have begun."""
    if pool.spec.mode != "observe":
        return
    yield Block(gate="observe", text="It is in observe mode: nothing is begun.")
    would = list(pool.observed_actions.values())
    for each in would[:NAMED_MAX]:
        about = each.node or f"{each.nodes} nodes"
        yield Block(gate="observe", text=f"It would begin {each.kind} of {about}: {each.reason}.")
    if (more := len(would) - NAMED_MAX) > 0:
        yield Block(gate="observe", text=f"{more} more: navarch status -o json")


def open_windows(pool: PoolRecord, now: datetime) -> Iterator[Block]:
    """Yield the open windows of a pool, and when its next service window opens."""
    if not pool.spec.windows:
        return
    proposed = Proposal("degraded", pool, now)
    gates = (node_gates.freeze_window(proposed), node_gates.service_window(proposed))
    yield from filter(None, gates)
    serving = maintenance_windows.opening(pool.spec.windows, "service", now)
    if serving is not None:
        name, end = serving.window.name, utc_seconds(serving.end)
        text = f"The window {name} is open for service until {end}."
        yield Block(gate="service-window", text=text, until=serving.end)


def _on_demand(pool: PoolRecord, nodes: Nodes) -> Iterator[Block]:
    """Yield how many nodes are on demand or reserved, where the pool requires some."""
    if not pool.spec.on_demand_min:
        return
    present = Nodes(node for node in nodes if node.state != "terminated")
    text = f"{on_demand_floor.sentence(pool, present)}."
    if on_demand_floor.expected(pool, present) < on_demand_floor.required(pool):
        text = f"{text} To keep so many: {on_demand_floor.remedy(pool)}."
    yield Block(gate="on-demand", text=text)


def _spares(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> Iterator[Block]:
    """Yield the pool's ready spares, if it has or needs any."""
    spares = [node for node in nodes if node.spare and node.state != "terminated"]
    if not spares and not pool.spec.spares:
        return
    ready = sorted(
        node.node
        for node in spares
        if node.state == "active" and node.health == "healthy" and not node.lost
    )
    named = f": {first_of(ready, NAMED_MAX)}" if ready else ""
    yield Block(gate="spare", text=f"Spares ready: {len(ready)} of {pool.spec.spares}{named}.")


def _gap(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> Iterator[Block]:
    present = sum(1 for node in nodes if node.state != "terminated" and not node.spare)
    gap = pool.desired - present
    if gap > 0 and not pool.open and not pool.failures and pool.spec.mode == "act":
        text = f"{gap} nodes are missing: the pool-manager launches them at its next look."
        yield Block(gate="gap", text=text)
