"""A fleet over the bus, as commands see it: connected with a user's credentials."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.alert_records import OpenAlertRecord
from schemas.evidence_bundles import EvidenceBundle, KeptEvidence
from schemas.fleet_queries import NodeView, Query
from schemas.hardware_denylist import HardwareRecord
from schemas.log_excerpts import LogExcerpt, LogRequest
from schemas.node_work import JobNodes
from schemas.permissions import ADMIN, CLI, OPERATOR, USER_ROLES, inbox, user_inbox
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import Incident
from schemas.settings import HealthSpec, NatsSettings
from schemas.stops import ResumeRequest, StopsAnswer
from schemas.topology import EVENTS, EVIDENCE
from services.bus.nats.connection_expiry import expiries, expiring
from services.bus.nats.connection_options import SERVICE, ConnectOptions
from services.bus.nats.credentials_file import name_of, role_and_key
from services.bus.port import Stored
from services.fleet_client import service_orders
from services.fleet_client.cost_report import CostReport
from services.fleet_client.fleet_client import HEALTH_FILTERS, FleetClient
from services.fleet_client.fleet_status import fleet_state, read_stops
from services.fleet_client.fleet_use import UseRow, total
from services.fleet_client.instance_reader import INSTANCES_PAGE, fleet_cost, read_instances
from services.fleet_client.node_timeline import AUDIT_FILTERS, TimelineRow, timeline_rows
from services.fleet_client.pool_watch import PoolChange, pool_changes
from services.fleet_client.query_answers import decode_answer, decode_pools
from services.fleet_client.repair_report import RepairReport, repair_report
from services.fleet_client.saga_progress import Progress, progress
from services.fleet_client.saga_summaries import SagaSummary, open_sagas, saga_log, saga_summaries
from services.fleet_client.service_orders import diagnose
from services.fleet_client.stored_events import stored_batches
from services.fleet_client.use_reader import read_use
from services.fleet_client.why_answer import WhyAnswer
from services.gateway.views import (
    FleetStatus,
    InstanceView,
    PoolStatus,
    instance_view,
    pool_status,
    status_view,
)
from services.primitives.errors import NavarchError, Unavailable


class BusFleet(FleetClient):
    """Answers what a command asks, from the queries and the histories of the bus."""

    async def job_nodes(self, job: str, pool: str) -> JobNodes:
        """Return the nodes on which a job runs, of one pool or of all."""
        return await service_orders.job_nodes(self, job, (pool,) if pool else ())

    async def pool_names(self) -> list[str]:
        """Return the names of the pools."""
        return [each.name for each in await self.pool_records()]

    async def pool_status(self, pool: str) -> PoolStatus:
        """A pool in numbers."""
        pools, nodes, sagas, (use, _) = await asyncio.gather(
            self.pages("pools", Query(pool=pool)),
            self.nodes(Query(pool=pool)),
            self.open_sagas(pool),
            read_use(self.bus, pool, datetime.now(UTC)),
        )
        [view] = decode_pools(pools)
        return pool_status(view, nodes, sagas, total(use.rows()).utilization_percent)

    async def pool_events(self, pool: str, start: datetime | None) -> list[Stored]:
        """Return what was requested of a pool and decided for it, since a time or since ever."""
        stored = await self.bus.read(EVENTS.name, subjects.pool_events_of(pool))
        return [each for each in stored if start is None or each.time >= start]

    async def audited_events(self, start: datetime | None) -> list[Stored]:
        """The outcomes of changes that were requested."""
        batches = stored_batches(self.bus, EVENTS.name, AUDIT_FILTERS, start or 0)
        return [each async for batch in batches for each in batch]

    async def incident_events(self, start: datetime) -> list[Stored]:
        """Return the beginnings and ends of incidents since a time."""
        subject = subjects.pool_event_wildcard(POOL_FACTS[Incident])
        batches = stored_batches(self.bus, EVENTS.name, [subject], start)
        return [each async for batch in batches for each in batch]

    def health_events(self, start: datetime) -> AsyncGenerator[Sequence[Stored], None]:
        """Yield what the health-monitor decided on, and its verdicts, since a time."""
        return stored_batches(self.bus, EVENTS.name, HEALTH_FILTERS, start)

    async def health_settings(self) -> Mapping[str, HealthSpec]:
        """Return what verdicts depend on beside the policy, of each pool."""
        return {each.name: each.spec.health for each in await self.pool_records()}

    async def why(self, name: str) -> WhyAnswer:
        """Explain the node, pool or saga of this name."""
        # Imported where it is needed: it takes as long as many a command.
        from services.fleet_client import explanation  # noqa: PLC0415

        return await explanation.why(self, name)

    async def timeline(self, node: str) -> tuple[TimelineRow, ...]:
        """Return what happened to the node of this name; nothing if there is none."""
        return timeline_rows(await self.node_history(node))

    async def open_sagas(self, pool: str) -> list[Progress]:
        """Return the open sagas, oldest first."""
        return [progress(each) for each in await open_sagas(self.bus, pool)]

    async def saga(self, saga: str) -> tuple[Progress, list[Stored]]:
        """Return a saga and the entries of its log."""
        state, stored = await saga_log(self.bus, saga)
        return progress(state), stored

    async def last_event(self) -> int:
        """Return the sequence of the newest event."""
        return await self.bus.last_sequence(EVENTS.name)

    def follow_pool(self, pool: str) -> AsyncGenerator[PoolChange, None]:
        """A pool's nodes and sagas: the whole, and changes, until it is removed."""
        return pool_changes(self.bus, pool)

    async def stops(self, scope: ResumeRequest) -> StopsAnswer:
        """Return every stop in force, and what would begin if that of a scope ended."""
        return await read_stops(self, scope)

    async def status(self) -> FleetStatus:
        """The pools, the open sagas, and what fails."""
        state = await fleet_state(self, lambda _: True)
        return status_view(state, state.expiries)

    async def saga_history(self, pool: str, start: datetime | None) -> list[SagaSummary]:
        """Every saga that began since a time, open or ended, of one pool or of all."""
        return await saga_summaries(self.bus, pool, start)

    async def instances(self, pool: str, *, terminated: bool) -> list[InstanceView]:
        """Return the instances of one pool, or of all."""
        query = Query(pool=pool, terminated=terminated, limit=INSTANCES_PAGE)
        return [instance_view(each) for each in await read_instances(self, query)]

    async def evidence(self, node: str, saga: str) -> EvidenceBundle:
        """The evidence of a node's newest outage, or of the one that a saga ended."""
        # With what assembles the evidence of an open outage; other commands do not need it.
        from services.fleet_client.evidence_lookup import find_evidence  # noqa: PLC0415

        return await find_evidence(self.bus, node, saga)

    async def evidence_list(self) -> tuple[list[KeptEvidence], int]:
        """All evidence, and how many objects beside it are none."""
        from services.fleet_client.evidence_lookup import kept_evidence  # noqa: PLC0415

        return kept_evidence(await self.bus.objects(EVIDENCE))

    async def report(self, start: datetime, pool: str) -> RepairReport:
        """Return what unhealthy nodes cost since a time."""
        return await repair_report(self.bus, start, datetime.now(UTC), pool)

    async def use(self, pool: str, *, of_gpus: bool) -> list[UseRow]:
        """Return how much each node or GPU is used."""
        use, _ = await read_use(self.bus, pool, datetime.now(UTC))
        return use.rows(of_gpus=of_gpus)

    async def hardware(self) -> list[HardwareRecord]:
        """The hardware that is not admitted again."""
        answer = await self.query("hardware", Query())
        return decode_answer(list[HardwareRecord], answer, "hardware")

    async def alerts(self) -> list[OpenAlertRecord]:
        """The open alerts, the most severe first."""
        return await service_orders.open_alerts(self.bus)

    async def cost(self, pool: str, start: datetime, label: str) -> CostReport:
        """Return what instances have cost since a time."""
        return await fleet_cost(self, pool, start, datetime.now(UTC), label, lambda _: True)

    async def node_logs(self, node: NodeView, request: LogRequest) -> LogExcerpt:
        """Return the newest log lines of a node's agent."""
        return await service_orders.node_logs(self, node, request)

    async def service_logs(
        self, service: str, request: LogRequest
    ) -> tuple[tuple[LogExcerpt, ...], int]:
        """Return the log lines of each replica of a service, and how many replicas run."""
        from services.cli.service_replies import every_replica  # noqa: PLC0415

        found, replicas = await asyncio.gather(
            service_orders.service_logs(self, service, request), every_replica(self)
        )
        return found, sum(each.service == service for each in replicas)

    async def diagnose(
        self, node: NodeView, request: DiagnoseRequest, seconds_max: float
    ) -> Diagnosis:
        """Have a node's agent test its host."""
        return await diagnose(self, node, request, seconds_max)


if TYPE_CHECKING:
    from services.bus.nats.archive_bus import ArchiveBus
    from services.bus.nats.nats_bus import NatsBus

B = TypeVar("B", bound="NatsBus")

CONNECT_SECONDS_MAX: Final = 5.0


def user_options(settings: NatsSettings) -> ConnectOptions:
    """Return how a user of the fleet connects, by the role in its credentials file."""
    options = ConnectOptions(
        settings=settings, name="navarch-cli", inbox_prefix=inbox(CLI), role=OPERATOR
    )
    role, key = role_and_key(settings.creds_file.replace(SERVICE, OPERATOR))
    if role not in USER_ROLES or role == ADMIN:
        return options
    return replace(options, inbox_prefix=user_inbox(key), may_create_consumers=False)


def person(options: ConnectOptions) -> str:
    """The name of the user whose credentials these are; empty: they are no person's."""
    file = options.settings.creds_file.replace(SERVICE, OPERATOR)
    return name_of(file) if role_and_key(file)[0] in USER_ROLES else ""


@asynccontextmanager
async def connect_fleet(settings: NatsSettings) -> AsyncIterator[BusFleet]:
    """Connect to the fleet; raise NavarchError if no server answers."""
    # The trim loads the bus's client without what it does not need.
    import services.runtime.import_trim  # noqa: F401, PLC0415
    from services.bus.nats.nats_bus import NatsBus  # noqa: PLC0415

    async with _connected(NatsBus, settings) as (_, fleet):
        yield fleet


@asynccontextmanager
async def connect_archives(
    settings: NatsSettings,
) -> AsyncIterator[tuple["ArchiveBus", BusFleet]]:
    """Connect as an administrator, who may take out whole streams and put them in."""
    from services.bus.nats.archive_bus import ArchiveBus  # noqa: PLC0415

    async with _connected(ArchiveBus, settings) as found:
        yield found


@asynccontextmanager
async def _connected(kind: type[B], settings: NatsSettings) -> AsyncIterator[tuple[B, BusFleet]]:
    options = user_options(settings)
    try:
        bus = await kind.connect(options, seconds_max=CONNECT_SECONDS_MAX)
    except Unavailable as error:
        # Not before the server refuses them: this clock may be wrong.
        if ended := expiring(expiries(options, None), datetime.now(UTC), 0.0):
            first = ended[0]
            raise NavarchError(f"{error}; {first.about} {first.reason}: {first.remedy}") from error
        raise
    try:
        yield (
            bus,
            BusFleet(
                bus,
                tuple(bus.expiries()),
                settings.expiry_warning,
                user=person(options),
            ),
        )
    finally:
        await bus.close()
