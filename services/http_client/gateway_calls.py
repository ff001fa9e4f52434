"""Builds every call of the HTTP API, as a value. Pure.

A test compares each with the API's own description, so that the two never differ.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.dry_run import DryRun
from schemas.duration import parse_duration
from schemas.evidence_bundles import EvidenceBundle, KeptEvidence
from schemas.fleet_queries import FleetBudgetView, NodeView, PolicyView, PoolView
from schemas.hardware_denylist import HardwareRecord
from schemas.names import saga_token, token
from schemas.offering_records import OfferingView
from schemas.operation_bodies import (
    BreakerBody,
    DrainBody,
    HoldBody,
    ReasonBody,
    ScaleBody,
    UpBody,
)
from schemas.operations import CHANGE
from schemas.stops import StopsAnswer
from services.fleet_client.cost_report import PoolHistory
from services.fleet_client.fleet_use import GpuReadings, UseRow, UtilizationHistory
from services.fleet_client.node_timeline import TimelineRow
from services.fleet_client.repair_report import RepairReport
from services.fleet_client.saga_progress import Progress
from services.fleet_client.saga_summaries import SagaSummary
from services.fleet_client.why_answer import WhyAnswer
from services.gateway.access_tokens import Principal
from services.gateway.views import (
    ChangeAnswer,
    EventPage,
    EventView,
    FleetStatus,
    IncidentView,
    InstancePage,
    NodePage,
    PoolChangeView,
    PoolStatus,
    SagaEntryView,
    SagaLog,
)
from services.http_client.api_call import ApiCall, ApiStream
from services.http_client.operation_calls import dry_run, operation_call

API: Final = "/api/v1"
DryRunVerb = Literal[
    "cordon", "uncordon", "release", "drain", "replace", "reset-gpu", "reboot", "terminate"
]


# --- reading -------------------------------------------------------------------------------------


def list_nodes(
    *,
    pool: str = "",
    provider: str = "",
    region: str = "",
    zone: str = "",
    status: str = "",
    health: str = "",
    labels: Sequence[str] = (),
    terminated: bool = False,
    gpus: bool = False,
    compact: bool = False,
    limit: int = 100,
    cursor: str = "",
) -> ApiCall[NodePage]:
    """List nodes, without their faults; `labels`: `KEY=VALUE` of the pool, all of them.

    `gpus`: with their GPUs and heartbeats. `compact`: quicker for thousands of nodes; the result is
    the same.
    """
    chosen = {"pool": pool, "provider": provider, "region": region, "zone": zone}
    more = {"status": status, "health": health, "label": labels, "terminated": terminated}
    page = {"gpus": gpus, "compact": compact, "limit": limit, "cursor": cursor}
    return ApiCall(path=f"{API}/nodes", answer=NodePage, query=chosen | more | page)


def get_node(name: str) -> ApiCall[NodeView]:
    """Get a node with its GPUs and its latest faults."""
    return ApiCall(path=_node(name), answer=NodeView)


def get_node_why(name: str) -> ApiCall[WhyAnswer]:
    """Explain a node: what was observed, decided, tried and refused, and what it waits for."""
    return ApiCall(path=f"{_node(name)}/why", answer=WhyAnswer)


def get_node_timeline(name: str, *, limit: int = 1_000) -> ApiCall[list[TimelineRow]]:
    """Get what happened to a node, oldest first; `limit` keeps the newest."""
    path = f"{_node(name)}/timeline"
    return ApiCall(path=path, answer=list[TimelineRow], query={"limit": limit})


def get_node_samples(name: str) -> ApiCall[list[GpuReadings]]:
    """Get a node's stored samples of the last fifteen minutes, oldest first."""
    return ApiCall(path=f"{_node(name)}/samples", answer=list[GpuReadings])


def get_node_evidence(name: str, *, saga: str = "") -> ApiCall[EvidenceBundle]:
    """Get the evidence of a node's latest outage, or of the one that a saga ended."""
    return ApiCall(path=f"{_node(name)}/evidence", answer=EvidenceBundle, query={"saga": saga})


def list_evidence() -> ApiCall[list[KeptEvidence]]:
    """List the outages of which evidence is kept, oldest first."""
    return ApiCall(path=f"{API}/evidence", answer=list[KeptEvidence])


def get_report(*, pool: str = "", since: str = "7d") -> ApiCall[RepairReport]:
    """Get what unhealthy nodes cost each pool, by fault, and which are out of service now."""
    query = {"pool": pool, "since": since}
    return ApiCall(path=f"{API}/report", answer=RepairReport, query=query)


def list_use(*, pool: str = "", gpus: bool = False) -> ApiCall[list[UseRow]]:
    """List how much each node is used, or with `gpus` each GPU, from its newest sample."""
    query = {"pool": pool, "gpus": gpus}
    return ApiCall(path=f"{API}/use", answer=list[UseRow], query=query)


def list_hardware() -> ApiCall[list[HardwareRecord]]:
    """List the hardware that is not admitted again."""
    return ApiCall(path=f"{API}/hardware", answer=list[HardwareRecord])


def list_instances(
    *,
    pool: str = "",
    status: str = "",
    terminated: bool = False,
    limit: int = 100,
    cursor: str = "",
) -> ApiCall[InstancePage]:
    """List instances, with what they cost."""
    chosen = {"pool": pool, "status": status, "terminated": terminated}
    page = {"limit": limit, "cursor": cursor}
    return ApiCall(path=f"{API}/instances", answer=InstancePage, query=chosen | page)


def list_pools() -> ApiCall[list[PoolView]]:
    """List the pools, by name."""
    return ApiCall(path=f"{API}/pools", answer=list[PoolView])


def get_pool(name: str) -> ApiCall[PoolView]:
    """Get a pool: sizes, breaker, budget."""
    return ApiCall(path=_pool(name), answer=PoolView)


def get_pool_status(name: str) -> ApiCall[PoolStatus]:
    """Get a pool in numbers."""
    return ApiCall(path=f"{_pool(name)}/status", answer=PoolStatus)


def get_pool_why(name: str) -> ApiCall[WhyAnswer]:
    """Explain a pool: what it waits for, and why."""
    return ApiCall(path=f"{_pool(name)}/why", answer=WhyAnswer)


def get_pool_history(name: str, *, since: str = "24h") -> ApiCall[PoolHistory]:
    """Get a pool's instances and their cost over time; seven days at most."""
    return ApiCall(path=f"{_pool(name)}/history", answer=PoolHistory, query={"since": since})


def get_pool_utilization(name: str) -> ApiCall[UtilizationHistory]:
    """Get how much a pool's GPUs were used in the last fifteen minutes; of 32 nodes at most."""
    return ApiCall(path=f"{_pool(name)}/utilization", answer=UtilizationHistory)


def list_sagas(*, pool: str = "") -> ApiCall[list[Progress]]:
    """List the open sagas, oldest first, and what each waits for."""
    return ApiCall(path=f"{API}/sagas", answer=list[Progress], query={"pool": pool})


def list_saga_history(
    *, pool: str = "", since: str = "7d", limit: int = 1_000
) -> ApiCall[list[SagaSummary]]:
    """List every saga that began since a time, open or ended; `limit` keeps the newest."""
    query = {"pool": pool, "since": since, "limit": limit}
    return ApiCall(path=f"{API}/sagas/history", answer=list[SagaSummary], query=query)


def get_saga(saga: str) -> ApiCall[SagaLog]:
    """Get a saga, open or ended, with its log."""
    return ApiCall(path=_saga(saga), answer=SagaLog)


def get_saga_why(saga: str) -> ApiCall[WhyAnswer]:
    """Explain a saga: what caused it, what it did, and what it waits for."""
    return ApiCall(path=f"{_saga(saga)}/why", answer=WhyAnswer)


def list_offerings(
    *, pool: str = "", provider: str = "", instance_type: str = "", everything: bool = False
) -> ApiCall[list[OfferingView]]:
    """List what can be launched, at what price, and what is exhausted."""
    chosen = {"pool": pool, "provider": provider, "instance_type": instance_type}
    query = chosen | {"everything": everything}
    return ApiCall(path=f"{API}/offerings", answer=list[OfferingView], query=query)


def list_incidents() -> ApiCall[list[IncidentView]]:
    """List the open incidents of all pools."""
    return ApiCall(path=f"{API}/incidents", answer=list[IncidentView])


def get_status() -> ApiCall[FleetStatus]:
    """Get the pools, the open sagas in short, and what fails, as `navarch status` shows it."""
    return ApiCall(path=f"{API}/status", answer=FleetStatus)


def get_budget() -> ApiCall[FleetBudgetView]:
    """Get the fleet's budget, and what is used of it."""
    return ApiCall(path=f"{API}/budget", answer=FleetBudgetView)


def get_stops(*, pool: str = "", provider: str = "") -> ApiCall[StopsAnswer]:
    """Get every stop, and what would begin if that of a pool, a provider or the fleet ended."""
    query = {"pool": pool, "provider": provider}
    return ApiCall(path=f"{API}/stops", answer=StopsAnswer, query=query)


def get_caller() -> ApiCall[Principal]:
    """Get the caller's own name, role and pools."""
    return ApiCall(path=f"{API}/caller", answer=Principal)


def get_policy() -> ApiCall[PolicyView]:
    """Get the health policy in force: its rules in order, of which the first match decides."""
    return ApiCall(path=f"{API}/policy", answer=PolicyView)


def list_events(
    *,
    since: str = "1h",
    after: int = 0,
    pool: str = "",
    node: str = "",
    kinds: Sequence[str] = (),
    labels: Sequence[str] = (),
    limit: int = 100,
) -> ApiCall[EventPage]:
    """List stored events, oldest first; `after`: `next` of the page before.

    `labels`: `KEY=VALUE` of the pool, all of them.
    """
    where = {"since": since, "after": after, "pool": pool, "node": node}
    query = where | {"type": kinds, "label": labels, "limit": limit}
    return ApiCall(path=f"{API}/events", answer=EventPage, query=query)


# --- following -----------------------------------------------------------------------------------


def follow_events(
    *,
    after: int | None = None,
    pool: str = "",
    node: str = "",
    kinds: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> ApiStream[EventView]:
    """Events as they are stored, each once: after a sequence, or from now on.

    `labels`: `KEY=VALUE` of the pool, as it is when the stream begins.
    A connection that breaks is made again, and the stream goes on where it was.
    EventsResetError where a restored store has set the events back.
    """
    query = {"pool": pool, "node": node, "type": kinds, "label": labels}
    return ApiStream(path=f"{API}/events/stream", item=EventView, query=query, after=after)


def follow_saga(saga: str, *, after: int | None = None) -> ApiStream[SagaEntryView]:
    """A saga's entries as they are stored, each once: all, or after a sequence; to its end."""
    return ApiStream(path=f"{_saga(saga)}/stream", item=SagaEntryView, after=after)


def follow_pool(name: str) -> ApiStream[PoolChangeView]:
    """A pool's nodes and sagas: first the whole, then what changes. Again after a lost connection.

    It ends when the pool is removed.
    """
    return ApiStream(path=f"{_pool(name)}/stream", item=PoolChangeView)


# --- changing ------------------------------------------------------------------------------------


def cordon_node(name: str, *, reason: str = "", key: str = "") -> ApiCall[ChangeAnswer]:
    """Place no new work on a node."""
    return _change("cordon", name, ReasonBody(reason=reason), key)


def uncordon_node(name: str, *, reason: str = "", key: str = "") -> ApiCall[ChangeAnswer]:
    """Allow new work on a node again; its health is judged again."""
    return _change("uncordon", name, ReasonBody(reason=reason), key)


def release_node(name: str, *, reason: str = "", key: str = "") -> ApiCall[ChangeAnswer]:
    """End a hold early."""
    return _change("release", name, ReasonBody(reason=reason), key)


def drain_node(
    name: str, *, mode: str = "", timeout: str = "", reason: str = "", key: str = ""
) -> ApiCall[ChangeAnswer]:
    """Cordon a node and let its work leave."""
    return _change("drain", name, _drain(mode, timeout, reason), key)


def replace_node(
    name: str, *, mode: str = "", timeout: str = "", reason: str = "", key: str = ""
) -> ApiCall[ChangeAnswer]:
    """Drain and terminate a node, and launch another."""
    return _change("replace", name, _drain(mode, timeout, reason), key)


def reset_gpu_node(
    name: str, *, mode: str = "", timeout: str = "", reason: str = "", key: str = ""
) -> ApiCall[ChangeAnswer]:
    """Drain a node, reset its GPUs, and test it."""
    return _change("reset-gpu", name, _drain(mode, timeout, reason), key)


def reboot_node(
    name: str, *, mode: str = "", timeout: str = "", reason: str = "", key: str = ""
) -> ApiCall[ChangeAnswer]:
    """Drain a node, reboot it, and test it."""
    return _change("reboot", name, _drain(mode, timeout, reason), key)


def terminate_node(
    name: str, *, mode: str = "", timeout: str = "", reason: str = "", key: str = ""
) -> ApiCall[ChangeAnswer]:
    """Drain and terminate a node; its pool is one smaller."""
    return _change("terminate", name, _drain(mode, timeout, reason), key)


def dry_run_node(
    name: str, verb: DryRunVerb, *, mode: str = "", timeout: str = "", reason: str = ""
) -> ApiCall[DryRun]:
    """Return what a change of a node would do; nothing is changed."""
    drains = CHANGE[verb].body is DrainBody
    body = _drain(mode, timeout, reason) if drains else ReasonBody(reason=reason)
    return dry_run(_change(verb, name, body, ""))


def hold_node(name: str, *, for_: str, reason: str, key: str = "") -> ApiCall[ChangeAnswer]:
    """Keep automation off a node for a while (`2h`)."""
    return _change("hold", name, HoldBody(for_=for_, reason=reason), key)


def diagnose_node(
    name: str, request: DiagnoseRequest | None = None, *, wait: str = "1m"
) -> ApiCall[Diagnosis]:
    """Have a node's agent test its host now; `wait`: how long to wait for what it found."""
    return ApiCall(
        path=f"{_node(name)}/diagnose",
        answer=Diagnosis,
        query={"wait": wait},
        method="POST",
        body=request or DiagnoseRequest(),
        more_seconds=parse_duration(wait),
    )


def scale_pool(name: str, nodes: int, *, key: str = "") -> ApiCall[ChangeAnswer]:
    """Set the pool's desired size."""
    return _change("scale", name, ScaleBody(nodes=nodes), key)


def open_breaker(name: str, *, reason: str, key: str = "") -> ApiCall[ChangeAnswer]:
    """Start no remediation in a pool until its breaker is closed."""
    return _change("breaker-open", name, BreakerBody(reason=reason), key)


def close_breaker(name: str, *, reason: str, key: str = "") -> ApiCall[ChangeAnswer]:
    """Allow remediation in a pool again."""
    return _change("breaker-close", name, BreakerBody(reason=reason), key)


def up_pool(
    name: str, spec: dict[str, Any], *, nodes: int | None = None, reason: str = "", key: str = ""
) -> ApiCall[ChangeAnswer]:
    """Create or change a pool, except one of the configuration; `spec`: as under `pools:`."""
    return _change("apply", name, UpBody(spec=spec, nodes=nodes, reason=reason), key)


def down_pool(
    name: str, *, mode: str = "", timeout: str = "", reason: str = "", key: str = ""
) -> ApiCall[ChangeAnswer]:
    """Remove a pool's nodes, then the pool."""
    return _change("remove", name, _drain(mode, timeout, reason), key)


def cancel_saga(saga: str, *, reason: str = "", key: str = "") -> ApiCall[ChangeAnswer]:
    """Unwind a saga, if it has not passed its pivot."""
    return _change("cancel", saga, ReasonBody(reason=reason), key)


def retry_saga(saga: str, *, reason: str = "", key: str = "") -> ApiCall[ChangeAnswer]:
    """Continue a stuck saga after its cause is fixed."""
    return _change("retry", saga, ReasonBody(reason=reason), key)


def proceed_saga(saga: str, *, reason: str = "", key: str = "") -> ApiCall[ChangeAnswer]:
    """Stop waiting for a drain, even if work still runs."""
    return _change("proceed", saga, ReasonBody(reason=reason), key)


def _node(name: str) -> str:
    return f"{API}/nodes/{token(name, 'node')}"


def _pool(name: str) -> str:
    return f"{API}/pools/{token(name, 'pool')}"


def _saga(saga: str) -> str:
    return f"{API}/sagas/{saga_token(saga)}"


def _drain(mode: str, timeout: str, reason: str) -> DrainBody:
    return DrainBody(mode=mode, timeout=timeout, reason=reason)


def _change(verb: str, name: str, body: msgspec.Struct, key: str) -> ApiCall[ChangeAnswer]:
    return operation_call(CHANGE[verb], name, ChangeAnswer, body, key=key)
