"""A fleet over HTTP, as everyday commands see it: the same texts as over the bus.

Events and entries come with the places where they are stored, so that they become the messages that
the bus has, and are written by the same functions.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, Final, TypeVar, cast

import msgspec

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.alert_records import OpenAlertRecord
from schemas.dry_run import DryRun
from schemas.evidence_bundles import EvidenceBundle, KeptEvidence
from schemas.fleet_queries import FleetBudgetView, NodeView, Query
from schemas.hardware_denylist import HardwareRecord
from schemas.log_excerpts import LogExcerpt, LogRequest
from schemas.messages import encode
from schemas.names import InvalidNameError
from schemas.node_work import JobNodes
from schemas.offering_records import OfferingsQuery, OfferingView
from schemas.operation_bodies import DIAGNOSE_SECONDS_MAX
from schemas.operations import CHANGE, ServiceOrder
from schemas.operator_requests import Request
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import Incident, pool_codec
from schemas.settings import HealthSpec
from schemas.stops import ResumeRequest, StopsAnswer
from services.bus.port import Stored
from services.cli.fleet_discovery import NEEDS_BUS
from services.fleet_client.cost_report import CostReport
from services.fleet_client.fleet_client import (
    HEALTH_FILTERS,
    RequestAnswer,
    ends_saga,
    no_pool,
)
from services.fleet_client.fleet_use import UseRow
from services.fleet_client.instance_reader import INSTANCES_PAGE
from services.fleet_client.node_filter import labels_asked
from services.fleet_client.node_timeline import AUDIT_FILTERS, TimelineRow
from services.fleet_client.pool_watch import PoolChange
from services.fleet_client.repair_report import RepairReport
from services.fleet_client.saga_progress import Progress
from services.fleet_client.saga_summaries import SagaSummary, no_name, no_saga
from services.fleet_client.why_answer import WhyAnswer
from services.gateway.views import (
    ChangeAnswer,
    EventView,
    FleetStatus,
    InstanceView,
    PoolStatus,
    StoredPlace,
)
from services.http_client.api_call import (
    ApiCall,
    ChangeRefusedError,
    FleetUnavailableError,
    GatewayError,
    NoAnswerError,
    NotFoundError,
)
from services.http_client.api_clients import AsyncNavarch
from services.http_client.operation_calls import change_call, dry_run, order_call
from services.operator_text.safe_text import escape_line
from services.primitives.errors import AnswerError, NavarchError

T = TypeVar("T")
PAGE: Final = 1_000
ROWS_MAX: Final = 10_000
EVER: Final = "30d"
"""As long as events are kept."""
STREAMS_MAX: Final = 16
"""Sagas that are followed at once; further ones wait, and are then printed from their beginning."""
INVALID: Final = frozenset({"invalid"})


class HttpFleet:
    """Answers what a command asks, from a gateway."""

    def __init__(self, client: AsyncNavarch) -> None:
        self._client = client
        self._streams = asyncio.Semaphore(STREAMS_MAX)

    async def pages(
        self, name: str, query: Query | OfferingsQuery, *, who: str = "pool-manager"
    ) -> list[msgspec.Raw]:
        """Return all items of a paged query, as JSON."""
        del who
        found: Sequence[msgspec.Struct]
        match name, query:
            case "pools", Query(pool=pool):
                pools = await self._client.list_pools()
                found = [each for each in pools if pool in ("", each.name)]
            case "offerings", OfferingsQuery():
                found = await self._offerings(query)
            case _:
                raise NavarchError(f"the query {name} {NEEDS_BUS}")
        return [msgspec.Raw(encode(each)) for each in found]

    async def nodes(self, query: Query) -> list[NodeView]:
        """Return all nodes of a query."""
        nodes = self._client.each_node(
            pool=query.pool,
            terminated=query.terminated,
            gpus=query.gpus,
            compact=True,
            limit=PAGE,
        )
        return [each async for each in nodes]

    async def _offerings(self, query: OfferingsQuery) -> list[OfferingView]:
        try:
            return await self._client.list_offerings(
                pool=query.pool,
                provider=query.provider,
                instance_type=query.instance_type,
                everything=query.everything,
            )
        except FleetUnavailableError:
            raise
        except (GatewayError, NoAnswerError) as error:
            # Not what a service that is away means: then `up` plans with the catalogue here.
            raise AnswerError(str(error)) from error

    async def node(self, node: str) -> tuple[NodeView, bytes]:
        """One node with its recent faults, and as JSON; AnswerError if there is none."""
        try:
            view = await self._client.get_node(node)
        except (NotFoundError, InvalidNameError) as error:
            raise AnswerError(str(error)) from error
        return view, encode(view)

    async def pool_names(self) -> list[str]:
        """Return the names of the pools."""
        return [each.name for each in await self._client.list_pools()]

    async def check_pool(self, pool: str) -> None:
        """Fail if there is no such pool; an empty name is every pool."""
        if pool and pool not in (names := await self.pool_names()):
            raise no_pool(pool, names)

    async def pools_labelled(self, labels: Sequence[str]) -> frozenset[str]:
        """The pools with all these labels; ValueError for what is not `KEY=VALUE`."""
        labels_asked(labels)
        nodes = self._client.each_node(labels=labels, terminated=True, limit=PAGE)
        return frozenset([each.pool async for each in nodes])

    async def job_nodes(self, job: str, pool: str) -> JobNodes:
        """Return the nodes on which a job runs, of one pool or of all."""
        return await self._client.get_job_nodes(job, pool=pool)

    async def budget(self) -> FleetBudgetView:
        """The fleet's budget and how much of it is used."""
        return await self._client.get_budget()

    async def stops(self, scope: ResumeRequest) -> StopsAnswer:
        """Return every stop in force, and what would begin if that of a scope ended."""
        return await self._client.get_stops(pool=scope.pool, provider=scope.provider)

    async def pool_status(self, pool: str) -> PoolStatus:
        """A pool in numbers."""
        return await self._client.get_pool_status(pool)

    async def pool_events(self, pool: str, start: datetime | None) -> list[Stored]:
        """Return what was requested of a pool and decided for it, since a time or since ever."""
        events = self._client.each_event(since=_since(start), pool=pool)
        stored = [stored_of(each) async for each in events]
        return [each for each in stored if subjects.parse_pool_event(each.subject)]

    async def audited_events(self, start: datetime | None) -> list[Stored]:
        """The outcomes of changes that were requested."""
        kinds = [each.rpartition(".")[2] for each in AUDIT_FILTERS]
        events = self._client.each_event(since=_since(start), kinds=kinds)
        return [stored_of(each) async for each in events]

    async def incident_events(self, start: datetime) -> list[Stored]:
        """Return the beginnings and ends of incidents since a time."""
        events = self._client.each_event(since=_since(start), kinds=[POOL_FACTS[Incident]])
        return [stored_of(each) async for each in events]

    async def health_events(self, start: datetime) -> AsyncGenerator[Sequence[Stored], None]:
        """Yield what the health-monitor decided on, and its verdicts, since a time."""
        kinds = [each.rpartition(".")[2] for each in HEALTH_FILTERS]
        events = self._client.each_event(since=_since(start), kinds=kinds, limit=PAGE)
        async for each in events:
            yield (stored_of(each),)

    async def health_settings(self) -> Mapping[str, HealthSpec]:
        """Return what verdicts depend on beside the policy, of each pool."""
        pools = await self._client.list_pools()
        return {
            each.name: HealthSpec(
                unhealthy_after=each.unhealthy_after,
                cordon_scope=cast("Any", each.cordon_scope),
            )
            for each in pools
        }

    async def why(self, name: str) -> WhyAnswer:
        """Explain the node, pool or saga of this name."""
        client = self._client
        for explain in (client.get_node_why, client.get_pool_why, client.get_saga_why):
            with suppress(NotFoundError, InvalidNameError):
                return await explain(name)
        raise no_name(name)

    async def timeline(self, node: str) -> tuple[TimelineRow, ...]:
        """Return what happened to the node of this name; nothing if there is none."""
        with suppress(NotFoundError, InvalidNameError):
            return tuple(await self._client.get_node_timeline(node, limit=ROWS_MAX))
        return ()

    async def open_sagas(self, pool: str) -> list[Progress]:
        """Return the open sagas, oldest first."""
        return await self._client.list_sagas(pool=pool)

    async def saga(self, saga: str) -> tuple[Progress, list[Stored]]:
        """Return a saga and the entries of its log."""
        try:
            found = await self._client.get_saga(saga)
        except (NotFoundError, InvalidNameError) as error:
            raise no_saga(saga) from error
        entries = zip(found.log, found.stored, strict=True)
        return found.saga, [_stored(entry, place) for entry, place in entries]

    async def follow_saga(
        self, saga: str, *, after: int | None = None
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """A saga's entries, all or those after a sequence, also future ones, until it has ended."""
        async with self._streams, _waiting_for(saga):
            following = self._client.follow_saga(saga, after=after)
            async with aclosing(following) as entries:
                async for entry in entries:
                    stored = _stored(entry.entry, entry)
                    yield (stored,)
                    if ends_saga(stored):
                        return

    async def follow_pool(self, pool: str) -> AsyncGenerator[PoolChange, None]:
        """A pool's nodes and sagas: the whole, again after a lost connection, and changes."""
        async with _waiting_for(pool):
            try:
                async with aclosing(self._client.follow_pool(pool)) as changes:
                    async for change in changes:
                        yield PoolChange(
                            whole=change.whole,
                            nodes=change.nodes,
                            entries=tuple(_stored(each.entry, each) for each in change.entries),
                            removed=change.removed,
                        )
            except NotFoundError:
                # It was removed before this connection.
                yield PoolChange(removed=True)

    async def last_event(self) -> int:
        """Return the sequence of the newest event."""
        return (await self._client.list_events(since="1s", limit=PAGE)).next

    async def follow_events(
        self, *, pool: str, node: str, since: datetime | int | None, follow: bool = True
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """Yield events from now, from a time on, or after a sequence; to `follow`: also later."""
        after: int | None = None if isinstance(since, datetime) else since
        more = isinstance(since, datetime)
        while more and isinstance(since, datetime):
            page = await self._client.list_events(
                since=_since(since), after=after or 0, pool=pool, node=node, limit=PAGE
            )
            after, more = page.next or after, page.more
            if page.items:
                yield tuple(map(stored_of, page.items))
        if not follow:
            return
        async with aclosing(
            self._client.follow_events(after=after, pool=pool, node=node)
        ) as following:
            async for event in following:
                yield (stored_of(event),)

    async def status(self) -> FleetStatus:
        """The pools, the open sagas, and what fails."""
        return await self._client.get_status()

    async def saga_history(self, pool: str, start: datetime | None) -> list[SagaSummary]:
        """Every saga that began since a time, open or ended, of one pool or of all."""
        return await self._client.list_saga_history(pool=pool, since=_since(start), limit=ROWS_MAX)

    async def instances(self, pool: str, *, terminated: bool) -> list[InstanceView]:
        """Return the instances of one pool, or of all."""
        pages = self._client.each_instance(pool=pool, terminated=terminated, limit=INSTANCES_PAGE)
        return [each async for each in pages]

    async def evidence(self, node: str, saga: str) -> EvidenceBundle:
        """The evidence of a node's newest outage, or of the one that a saga ended."""
        try:
            return await self._client.get_node_evidence(node, saga=saga)
        except (NotFoundError, InvalidNameError) as error:
            from services.fleet_client.evidence_lookup import no_evidence  # noqa: PLC0415

            kept = await self._client.list_evidence() if saga else []
            sagas = [each.saga for each in kept if each.node == node and each.saga]
            raise no_evidence(node, saga, sagas) from error

    async def evidence_list(self) -> tuple[list[KeptEvidence], int]:
        """All evidence, and how many objects beside it are none."""
        return await self._client.list_evidence(), 0

    async def report(self, start: datetime, pool: str) -> RepairReport:
        """Return what unhealthy nodes cost since a time."""
        return await self._client.get_report(since=_since(start), pool=pool)

    async def use(self, pool: str, *, of_gpus: bool) -> list[UseRow]:
        """Return how much each node or GPU is used."""
        return await self._client.list_use(pool=pool, gpus=of_gpus)

    async def hardware(self) -> list[HardwareRecord]:
        """The hardware that is not admitted again."""
        return await self._client.list_hardware()

    async def alerts(self) -> list[OpenAlertRecord]:
        """The open alerts, the most severe first."""
        return await self._client.list_alerts()

    async def cost(self, pool: str, start: datetime, label: str) -> CostReport:
        """Return what instances have cost since a time."""
        return await self._client.get_cost(pool=pool, since=_since(start), by_label=label)

    async def node_logs(self, node: NodeView, request: LogRequest) -> LogExcerpt:
        """Return the newest log lines of a node's agent."""
        since = _since(request.since)
        with _as_over_bus():
            return await self._client.get_node_logs(
                node.id, lines=request.lines, since=since, kernel=request.kernel
            )

    async def service_logs(
        self, service: str, request: LogRequest
    ) -> tuple[tuple[LogExcerpt, ...], int]:
        """Return the log lines of each replica of a service; how many run is not known here."""
        since = _since(request.since)
        with _as_over_bus():
            found = await self._client.get_service_logs(
                service, lines=request.lines, since=since, replica=request.replica
            )
        return tuple(found), 0

    async def diagnose(
        self, node: NodeView, request: DiagnoseRequest, seconds_max: float
    ) -> Diagnosis:
        """Have a node's agent test its host."""
        if seconds_max > DIAGNOSE_SECONDS_MAX:
            raise NavarchError(
                f"a gateway waits {DIAGNOSE_SECONDS_MAX:g} s for a diagnosis: give --timeout 10m, "
                "or name the bus with --nats-url"
            )
        with _as_over_bus():
            return await self._client.diagnose_node(node.id, request, wait=f"{seconds_max}s")

    async def request(self, pool: str, verb: str, request: Request) -> RequestAnswer:
        """Send a request to a pool and wait for the event that answers it."""
        try:
            answer = await self._client.send(_call(pool, verb, request))
        except ChangeRefusedError as error:
            problem = error.problem
            text = f"refused ({problem.refusal}): {escape_line(problem.detail)}"
            raise AnswerError(text, problem.refusal) from error
        event = pool_codec.decode(msgspec.json.encode(answer.event))
        if not isinstance(event, RequestAnswer):
            raise NavarchError(
                f"{verb} is accepted as {answer.request}, with an event that this release does not "
                "know: navarch events shows it"
            )
        return event

    async def dry_run(self, pool: str, verb: str, request: Request) -> DryRun:
        """Return what a request would do; nothing is changed."""
        return await self._client.send(dry_run(_call(pool, verb, request)))

    async def perform(self, order: ServiceOrder[T], request: msgspec.Struct) -> T:
        """Have a service perform an order at once; its answer."""
        with _as_over_bus():
            return await self._client.send(order_call(order, request))


def _call(pool: str, verb: str, request: Request) -> ApiCall[ChangeAnswer]:
    if not CHANGE[verb].path:
        raise NavarchError(f"{verb} {NEEDS_BUS}")
    return change_call(pool, CHANGE[verb], request)


@contextmanager
def _as_over_bus() -> Iterator[None]:
    """Raise what the same request raises over the bus."""
    try:
        yield
    except ChangeRefusedError as error:
        raise AnswerError(error.problem.detail) from error
    except FleetUnavailableError as error:
        raise NavarchError(error.problem.detail) from error


@asynccontextmanager
async def _waiting_for(what: str) -> AsyncIterator[None]:
    """Say, where the gateway stays away, that what is waited for goes on."""
    try:
        yield
    except NoAnswerError as error:
        raise NavarchError(f"{error}; it goes on: navarch why {what}") from error


def stored_of(event: EventView) -> Stored:
    """The message that an event is a view of. Pure."""
    place = StoredPlace(subject=event.subject, sequence=event.sequence, time=event.time)
    return _stored(event.event, place)


def _stored(content: dict[str, Any], place: StoredPlace) -> Stored:
    is_quoted = content.keys() == INVALID
    data = str(content["invalid"]).encode() if is_quoted else msgspec.json.encode(content)
    return Stored(place.subject, data, place.sequence, place.time)


def _since(start: datetime | None) -> str:
    return start.isoformat() if start else EVER
