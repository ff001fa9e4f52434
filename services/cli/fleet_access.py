"""What everyday commands ask of a fleet: over the bus (`BusFleet`) or over HTTP (`HttpFleet`)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.alert_records import Alert, AlertAcknowledge, OpenAlertRecord
from schemas.evidence_bundles import EvidenceBundle, KeptEvidence
from schemas.fleet_queries import FleetBudgetView, NodeView, Query
from schemas.hardware_denylist import HardwareAdd, HardwareForget, HardwareRecord
from schemas.log_excerpts import LogExcerpt, LogRequest
from schemas.node_events import BusAccess
from schemas.node_work import JobNodes
from schemas.offering_records import OfferingsQuery
from schemas.operator_requests import NodeRequest
from schemas.settings import HealthSpec
from schemas.sweeps import SweepAnswer, SweepRequest
from schemas.work_done import WorkDone, WorkDoneAccepted
from schemas.workload_checks import WorkloadCheckAnswer, WorkloadCheckRequest
from services.bus.port import Stored
from services.cli.fleet_discovery import NEEDS_BUS
from services.fleet_client.cost_report import CostReport
from services.fleet_client.fleet_client import FleetClient, Request, RequestAnswer
from services.fleet_client.fleet_use import UseRow
from services.fleet_client.node_timeline import TimelineRow
from services.fleet_client.pool_watch import PoolChange
from services.fleet_client.repair_report import RepairReport
from services.fleet_client.saga_progress import Progress
from services.fleet_client.saga_summaries import SagaSummary
from services.fleet_client.why_answer import WhyAnswer
from services.gateway.views import FleetStatus, InstanceView, PoolStatus
from services.primitives.errors import NavarchError


class NodeAccess(Protocol):
    """Finds nodes."""

    async def pages(
        self, name: str, query: Query | OfferingsQuery, *, who: str = "pool-manager"
    ) -> list[msgspec.Raw]:
        """All items of a paged query, as JSON."""
        ...

    async def nodes(self, query: Query) -> list[NodeView]:
        """All nodes of a query."""
        ...

    async def node(self, node: str) -> tuple[NodeView, bytes]:
        """One node with its recent faults, and as JSON; AnswerError if there is none."""
        ...


class SagaAccess(Protocol):
    """Follows sagas."""

    def follow_saga(
        self, saga: str, *, after: int | None = None
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """A saga's entries, all or those after a sequence, also future ones, until it has ended."""
        ...


class EventAccess(Protocol):
    """Follows events."""

    async def last_event(self) -> int:
        """The sequence of the newest event."""
        ...

    def follow_events(
        self, *, pool: str, node: str, since: datetime | int | None
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """Events from now, from a time on, or after a sequence; of one pool, one node, or all."""
        ...


class FleetAccess(NodeAccess, SagaAccess, EventAccess, Protocol):
    """All of it."""

    async def check_pool(self, pool: str) -> None:
        """Fail if there is no such pool; an empty name is every pool."""
        ...

    async def pools_labelled(self, labels: Sequence[str]) -> frozenset[str]:
        """The pools with all these labels; ValueError for what is not `KEY=VALUE`."""
        ...

    async def job_nodes(self, job: str, pool: str) -> JobNodes:
        """On which nodes a job runs, of one pool or of all."""
        ...

    async def budget(self) -> FleetBudgetView:
        """The fleet's budget and how much of it is used."""
        ...

    async def pool_status(self, pool: str) -> PoolStatus:
        """A pool in numbers."""
        ...

    async def pool_events(self, pool: str, start: datetime | None) -> list[Stored]:
        """What was requested of a pool and decided for it, since a time or since ever."""
        ...

    async def audited_events(self, start: datetime | None) -> list[Stored]:
        """The outcomes of changes that were requested."""
        ...

    def health_events(self, start: datetime) -> AsyncGenerator[Sequence[Stored], None]:
        """What the health-monitor decided on, and its verdicts, since a time."""
        ...

    async def health_settings(self) -> Mapping[str, HealthSpec]:
        """What verdicts depend on beside the policy, of each pool."""
        ...

    async def why(self, name: str) -> WhyAnswer:
        """Explain the node, pool or saga of this name."""
        ...

    async def timeline(self, node: str) -> tuple[TimelineRow, ...]:
        """What happened to the node of this name; nothing if there is none."""
        ...

    async def open_sagas(self, pool: str) -> list[Progress]:
        """The open sagas, oldest first."""
        ...

    async def saga(self, saga: str) -> tuple[Progress, list[Stored]]:
        """A saga and the entries of its log."""
        ...

    def follow_pool(self, pool: str) -> AsyncGenerator[PoolChange, None]:
        """A pool's nodes and sagas: the whole, perhaps again, and changes; until it is removed."""
        ...

    async def status(self) -> FleetStatus:
        """The pools, the open sagas, and what fails."""
        ...

    async def saga_history(self, pool: str, start: datetime | None) -> list[SagaSummary]:
        """Every saga that began since a time, open or ended, of one pool or of all."""
        ...

    async def instances(self, pool: str, *, terminated: bool) -> list[InstanceView]:
        """The instances of one pool, or of all."""
        ...

    async def evidence(self, node: str, saga: str) -> EvidenceBundle:
        """The evidence of a node's newest outage, or of the one that a saga ended."""
        ...

    async def evidence_list(self) -> tuple[list[KeptEvidence], int]:
        """All evidence, and how many objects beside it are none."""
        ...

    async def report(self, start: datetime, pool: str) -> RepairReport:
        """What unhealthy nodes cost since a time."""
        ...

    async def use(self, pool: str, *, of_gpus: bool) -> list[UseRow]:
        """How much each node or GPU is used."""
        ...

    async def hardware(self) -> list[HardwareRecord]:
        """The hardware that is not admitted again."""
        ...

    async def alerts(self) -> list[OpenAlertRecord]:
        """The open alerts, the most severe first."""
        ...

    async def acknowledge_alert(self, request: AlertAcknowledge) -> Alert:
        """Take on an open alert."""
        ...

    async def cost(self, pool: str, start: datetime, label: str) -> CostReport:
        """What instances have cost since a time."""
        ...

    async def change_hardware(self, request: HardwareAdd | HardwareForget) -> list[HardwareRecord]:
        """Add hardware to the denylist, or take it off."""
        ...

    async def readmit(self, node: NodeView) -> BusAccess:
        """Have a disconnected node's credentials accepted again."""
        ...

    async def sweep(self, request: SweepRequest, *, dry_run: bool) -> SweepAnswer:
        """Resolve differences between providers and records, or say what that would do."""
        ...

    async def check_workload(self, request: WorkloadCheckRequest) -> WorkloadCheckAnswer:
        """Have the notifier try a pool's workload system."""
        ...

    async def work_done(self, request: WorkDone) -> WorkDoneAccepted:
        """Say that the work has left a node."""
        ...

    async def node_logs(self, node: NodeView, request: LogRequest) -> LogExcerpt:
        """The newest log lines of a node's agent."""
        ...

    async def service_logs(
        self, service: str, request: LogRequest
    ) -> tuple[tuple[LogExcerpt, ...], int]:
        """Those of each replica of a service, and how many of them run; 0: not known."""
        ...

    async def diagnose(
        self, node: NodeView, request: DiagnoseRequest, seconds_max: float
    ) -> Diagnosis:
        """Have a node's agent test its host."""
        ...

    async def request(self, pool: str, verb: str, request: Request) -> RequestAnswer:
        """Send a request to a pool and wait for the event that answers it."""
        ...

    async def dry_run(self, verb: str, request: NodeRequest) -> bytes:
        """What a request about a node would do, as JSON."""
        ...


def bus_of(fleet: object, what: str) -> FleetClient:
    """The connection to the bus; NavarchError over HTTP, where there is none."""
    if not isinstance(fleet, FleetClient):
        raise NavarchError(f"{what} {NEEDS_BUS}")
    return fleet
