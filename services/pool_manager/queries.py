"""Answers questions about the fleet from what the pool-manager has in memory."""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from schemas import subjects
from schemas.fleet_budget import FleetBudgetRecord
from schemas.fleet_queries import (
    FleetBudgetView,
    GpuView,
    HealthEvent,
    ListedNode,
    NodeView,
    Page,
    PoolView,
    Query,
)
from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionView, condition_views, unreported_view
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord
from schemas.settings import FleetBudgetSpec, Settings
from schemas.time_text import utc_text
from services.bus.port import Endpoint, Headers
from services.operator_text.workload_words import state_words
from services.pool_manager.answer_store import AnswerStore
from services.pool_manager.heartbeat_reader import HeartbeatTimes
from services.pool_manager.planner import fixed_identity, rack_units
from services.pool_manager.planner.disruption_budget import allowance, others
from services.pool_manager.planner.node_counts import Nodes, busy, size
from services.pool_manager.planner.remediation import drift
from services.pool_manager.planner.remediation.renewals import renewal
from services.pool_manager.planner.sizing import on_demand_floor
from services.pool_manager.planner.sizing.open_sagas import why_full
from services.pool_manager.planner.unhealthy_nodes import remediation_reason
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.settings.drain_warnings import drain_warning

PAGE_BYTES_MAX: Final = 786_432
"""Of nodes in one page: a message has at most 1,048,576. Labels may be long."""
FIRST_SAMPLE_WITHIN: Final = timedelta(minutes=2)
"""After its registration every agent that reports conditions has sent a sample."""
MOMENTS_KEPT_MAX: Final = 32_768
"""Texts of date-times: a list asks for the same two of each node again."""


class UnknownNameError(ValueError):
    """The question names a node that is not there."""


V = TypeVar("V", bound=NodeView)


def node_view(
    kind: type[V], record: NodeRecord, health: HealthRecord | None, *, now: datetime, detailed: bool
) -> V:
    """Put a node together as people see it, `detailed` with its GPUs."""
    launch = record.launch
    return kind(
        id=record.node,
        pool=record.pool,
        status=record.state,
        health=_health(record, health),
        cordoned=record.cordoned,
        quarantined=record.is_quarantined,
        cordoned_gpus=record.cordoned_gpus,
        spare=record.spare,
        drained=record.drained and not record.drain_expired,
        drain_expired=record.drain_expired,
        lost=record.lost,
        gpu_count=len(record.gpus),
        provider=launch.provider if launch else "",
        region=record.region or (launch.region if launch else ""),
        zone=record.zone,
        rack=record.rack,
        nvlink_domain=record.nvlink_domain,
        instance_type=launch.instance_type if launch else "",
        market=record.market,
        address=record.address,
        hostname=record.hostname,
        labels=launch.labels if launch else {},
        driver_version=record.driver_version,
        agent_version=record.agent_version,
        identity_difference=fixed_identity.difference(record),
        identity_claim=fixed_identity.claim_of(record),
        saga=record.saga,
        reason=record.reason or record.health_reason,
        job=record.health_job,
        workload=state_words(record.workload) if record.workload else "",
        held_until=_moment(record.held_until),
        held_by=record.held_by,
        held_reason=record.held_reason,
        registered_at=_moment(record.registered_at),
        last_change=_moment(record.changed_at),
        gpus=tuple(_gpus(record, health)) if detailed else (),
        conditions=_conditions(record, health, now) if detailed and health else (),
        health_events=_health_events(health),
    )


def _conditions(
    record: NodeRecord, health: HealthRecord, now: datetime
) -> tuple[ConditionView, ...]:
    """Return what the node's agent sees, or that it does not say."""
    since = record.registered_at
    if health.conditions is not None or since is None or now - since < FIRST_SAMPLE_WITHIN:
        return condition_views(health.conditions)
    is_known = record.agent_version and health.status != "unknown"
    return (unreported_view(_moment(since)),) if is_known else ()


def _gpus(record: NodeRecord, health: HealthRecord | None) -> Iterator[GpuView]:
    """The node's GPUs, each with what the policy makes of it."""
    affected = {each.index: each for each in health.gpus} if health is not None else {}
    known = "unknown" if health is None or health.status == "unknown" else "healthy"
    for gpu in record.gpus:
        view = GpuView(
            health=known,
            cordoned=gpu.index in record.cordoned_gpus,
            **msgspec.structs.asdict(gpu),
        )
        if (found := affected.get(gpu.index)) is not None:
            view = msgspec.structs.replace(
                view,
                health=found.status,
                action=found.action,
                rule=found.rule,
                reason=found.reason,
                fault=found.fault,
                kind=found.kind,
                code=found.code,
                since=_moment(found.since),
            )
        yield view


def _health(record: NodeRecord, health: HealthRecord | None) -> str:
    # The last verdict of a node that is silent says nothing of now, and `status` counts it so.
    if record.lost:
        return "unhealthy"
    # The verdict as delivered to the pool-manager is what it acts on, so it is what people see.
    if record.health != "unknown" or health is None:
        return record.health
    return health.status


def _health_events(health: HealthRecord | None) -> tuple[HealthEvent, ...]:
    if health is None:
        return ()
    return tuple(
        HealthEvent(
            time=_moment(note.time),
            kind=note.kind,
            message=note.message,
            code=note.code,
            gpu_index=note.gpu_index,
            result=note.result,
            rule=note.rule,
        )
        for note in health.recent
    )


@lru_cache(MOMENTS_KEPT_MAX)
def _moment(value: datetime | None) -> str:
    return utc_text(value) if value else ""


def _apart(record: PoolRecord, missing: int) -> tuple[str, ...]:
    """That nodes which must be together were not launched, though it was tried."""
    at, failures = record.retry_at, record.failures
    if not record.spec.placement.required or not failures or at is None or missing <= 0:
        return ()
    text = (
        f"{missing} nodes are missing, which must be in one {record.spec.placement.together} with "
        f"all others: tried {failures} times, next at {_moment(at)}; why: navarch why {record.name}"
        f"; at once: navarch scale {record.name} {record.desired}"
    )
    return (text,)


def _on_demand(record: PoolRecord, nodes: Nodes) -> tuple[str, ...]:
    """That too few nodes are on demand, and nothing under way changes it."""
    if on_demand_floor.expected(record, nodes) >= on_demand_floor.required(record):
        return ()
    return (f"{on_demand_floor.sentence(record, nodes)}; {on_demand_floor.remedy(record)}",)


def pool_view(record: PoolRecord, nodes: Iterable[NodeRecord], now: datetime) -> PoolView:
    """Put a pool together as people see it."""
    nodes = Nodes(nodes)
    breaker, taken = record.breaker, busy(record)
    allowed = allowance(record, nodes, None, now)
    active = [node for node in nodes if node.state == "active"]
    return PoolView(
        name=record.name,
        desired=record.desired,
        nodes=len(nodes),
        active=len(active),
        healthy=sum(1 for node in active if node.health == "healthy" and not node.lost),
        unhealthy=sum(1 for node in nodes if node.health == "unhealthy" or node.lost),
        cordoned=sum(1 for node in nodes if node.cordoned and not node.spare),
        spares=record.spec.spares,
        spares_ready=sum(
            1 for node in active if node.spare and node.health == "healthy" and not node.lost
        ),
        min_nodes=record.spec.min_nodes,
        max_nodes=record.spec.max_nodes,
        gpu_count=record.spec.gpu_count,
        breaker=breaker.state,
        requested=bool(record.applied),
        removing=bool(record.removing),
        open_sagas=tuple(record.open),
        breaker_since=_moment(breaker.since),
        breaker_cause=breaker.cause,
        breaker_reason=breaker.reason,
        breaker_by=breaker.by,
        breaker_forced=breaker.forced,
        breaker_probe=breaker.probe,
        breaker_probe_at=_moment(breaker.probe_at),
        ramp=breaker.ramp,
        unavailable=allowed.unavailable,
        unavailable_limit=allowed.level,
        disruptions=allowed.disruptions,
        disruptions_limit=-1 if allowed.rate is None else allowed.rate,
        resets=allowed.resets,
        resets_limit=-1 if allowed.reset_rate is None else allowed.reset_rate,
        window_seconds=float(record.spec.budget.window),
        drifted=sum(1 for node in nodes if drift.remark(node, record)),
        to_renew=sum(1 for node in nodes if node.node not in taken and renewal(node, record, now)),
        awaiting_remediation=sum(
            1 for node in nodes if node.node not in taken and remediation_reason(node, record, now)
        ),
        mode=record.spec.mode,
        unhealthy_after=record.spec.health.unhealthy_after,
        cordon_scope=record.spec.health.cordon_scope,
        advice=record.advice,
        warnings=(
            *filter(None, (why_full(record, launches=True),)),
            *_apart(record, record.desired - size(record, nodes)),
            *_on_demand(record, nodes),
            *rack_units.disagreements(nodes),
        ),
        observed_actions=tuple(
            msgspec.to_builtins(each) for each in record.observed_actions.values()
        ),
    )


def fleet_view(claims: FleetBudgetRecord, spec: FleetBudgetSpec, now: datetime) -> FleetBudgetView:
    """Put the fleet's budget together as people see it."""
    fleet = others(spec, claims, "")
    window = float(spec.window)
    if fleet is None:
        return FleetBudgetView(
            desired=0,
            unavailable=0,
            unavailable_limit=0,
            disruptions=0,
            window_seconds=window,
            lifted=True,
        )
    rate, reset_rate = fleet.rate(0), fleet.reset_rate(0)
    return FleetBudgetView(
        desired=fleet.desired,
        unavailable=fleet.unavailable,
        unavailable_limit=fleet.level(0),
        disruptions=fleet.begun(now),
        disruptions_limit=-1 if rate is None else rate,
        resets=fleet.resets(now),
        resets_limit=-1 if reset_rate is None else reset_rate,
        window_seconds=window,
    )


class Queries:
    """Answers the questions of clients about nodes, pools, sagas and the budget."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: Settings,
        warning: Callable[[PoolRecord], Awaitable[str]],
        beats: HeartbeatTimes,
        answers: AnswerStore,
    ) -> None:
        """Answer from `store`; `settings` say what a pool risks, `warning` if it is unlisted.

        `answers`: what pools and their nodes wait for.
        """
        self._answers = answers
        self._warning = warning
        self._beats = beats
        self._store = store
        self._clock = clock
        self._settings = settings

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Subject -> what answers it."""
        return {
            subjects.query("nodes"): self._nodes,
            subjects.query("node"): self._node,
            subjects.query("pools"): self._pools,
            subjects.query("sagas"): self._sagas,
            subjects.query("budget"): self._budget,
            subjects.query("why"): self._why,
        }

    async def _nodes(self, data: bytes, _: Headers) -> bytes:
        query = _read(data)
        beats = await self._beats.all() if query.gpus else {}
        records = self._store.nodes.records
        # Sorted for each page of a large fleet: without the records, and the views are made last.
        keys = sorted(records)
        rest = keys[bisect_right(keys, query.after) :]
        wanted = ((key, records[key]) for key in rest if _is_wanted(records[key], query))
        views = ((key, self._listed(key, record, query, beats.get(key))) for key, record in wanted)
        return msgspec.json.encode(page_of(views, query.limit))

    def _view(self, kind: type[V], key: str, record: NodeRecord, *, detailed: bool) -> V:
        health, now = self._store.health.records.get(key), self._clock.now()
        view = node_view(kind, record, health, now=now, detailed=detailed)
        pool = self._store.last_read(record.pool)
        if pool is None:
            return view
        due = renewal(record, pool[0], now)
        other = drift.remark(record, pool[0])
        reason = due.reason if due and due.reason not in other else ""
        text = "; ".join(filter(None, (reason, other)))
        return msgspec.structs.replace(view, renewal=text) if text else view

    def _listed(
        self, key: str, record: NodeRecord, query: Query, beat: datetime | None
    ) -> ListedNode:
        """A node in a list: without its faults, so that many fit in a message."""
        view = self._view(ListedNode, key, record, detailed=query.gpus)
        if not view.health_events and beat is None:
            return view
        return msgspec.structs.replace(view, health_events=(), last_heartbeat=_moment(beat))

    async def _node(self, data: bytes, _: Headers) -> bytes:
        query = _read(data)
        for record in self._store.nodes.records.values():
            if record.node == query.node:
                key = node_key(record.pool, record.node)
                view = self._view(NodeView, key, record, detailed=True)
                beat = await self._beats.of(record.pool, record.node)
                found = msgspec.structs.replace(view, last_heartbeat=_moment(beat))
                return msgspec.json.encode(found)
        raise UnknownNameError(f"there is no node {query.node!r}; see navarch list")

    async def _pools(self, data: bytes, _: Headers) -> bytes:
        query = _read(data)
        items = []
        for record in await self._store.pools():
            if not query.pool or record.name == query.pool:
                view = pool_view(record, self._store.nodes_of(record.name), self._clock.now())
                found = await self._warning(record), drain_warning(self._settings, record.spec)
                warnings = (*view.warnings, *filter(None, found))
                items.append(msgspec.structs.replace(view, warnings=warnings))
        return _page(items, "")

    async def _why(self, data: bytes, _: Headers) -> bytes:
        """Answer what a pool waits for, or one of its nodes, at which gate and until when."""
        query = _read(data)
        if query.node:
            found = await self._answers.of_node(query.pool, query.node)
            about = f"node {query.node!r}; see navarch list"
        else:
            found = await self._answers.answer(query.pool)
            about = f"pool {query.pool!r}; see navarch status"
        if found is None:
            raise UnknownNameError(f"there is no {about}")
        return msgspec.json.encode(found)

    async def _budget(self, _: bytes, __: Headers) -> bytes:
        """The fleet's budget, and what of it is used."""
        claims, _revision = await self._store.claims()
        spec = self._store.fleet_budget
        return msgspec.json.encode(fleet_view(claims, spec, self._clock.now()))

    async def _sagas(self, data: bytes, _: Headers) -> bytes:
        query = _read(data)
        items: list[Any] = [
            {"saga": saga, "pool": record.name, **msgspec.structs.asdict(opened)}
            for record in await self._store.pools()
            if not query.pool or record.name == query.pool
            for saga, opened in record.open.items()
        ]
        return _page(items[: query.limit], "")


def page_of(views: Iterable[tuple[str, ListedNode]], limit: int) -> Page:
    """Return as many views as are asked for and fit in a message; `next` is the last one's key."""
    items: list[msgspec.Raw] = []
    size, after = 0, ""
    for key, view in views:
        item = msgspec.json.encode(view)
        size += len(item)
        if len(items) == limit or (items and size > PAGE_BYTES_MAX):
            return Page(items=tuple(items), next=after)
        items.append(msgspec.Raw(item))
        after = key
    return Page(items=tuple(items))


def _is_wanted(record: NodeRecord, query: Query) -> bool:
    return (not query.pool or record.pool == query.pool) and (
        query.terminated or record.state != "terminated"
    )


def _read(data: bytes) -> Query:
    return msgspec.json.decode(data or b"{}", type=Query)


def _page(items: Iterable[Any], after: str) -> bytes:
    raw = tuple(msgspec.Raw(msgspec.json.encode(item)) for item in items)
    return msgspec.json.encode(Page(items=raw, next=after))
