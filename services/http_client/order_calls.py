"""Calls of the HTTP API that a service answers at once, as values. Pure.

Those in `gateway_calls` read the fleet or change it by a request to a pool.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schemas.alert_records import Alert, OpenAlertRecord
from schemas.enums import DrillKind, HardwareKind
from schemas.hardware_denylist import HardwareRecord
from schemas.join_tokens import ForgetAnswer
from schemas.log_excerpts import LogExcerpt
from schemas.names import token
from schemas.node_events import BusAccess, DrillStarted, IdentityChanged
from schemas.node_work import JobNodes
from schemas.operation_bodies import (
    AcknowledgeBody,
    AlertUpdateBody,
    DrillBody,
    HardwareBody,
    IdentityBody,
    ListedHardwareBody,
    ResumeBody,
    StopBody,
    SweepBody,
    WorkDoneBody,
    WorkloadCheckBody,
)
from schemas.operations import (
    ACCEPT_IDENTITY,
    ACKNOWLEDGE_ALERT,
    ADD_HARDWARE,
    CHECK_WORKLOAD,
    DRILL,
    FORGET,
    FORGET_HARDWARE,
    PLAN_FORGET,
    PLAN_SWEEP,
    READMIT,
    REPORT_WORK_DONE,
    RESUME,
    STOP,
    SWEEP,
    UPDATE_ALERT,
)
from schemas.stops import StopsAnswer
from schemas.sweeps import SweepAnswer
from schemas.work_done import WorkDoneAccepted
from schemas.workload_checks import WorkloadCheckAnswer
from services.fleet_client.cost_report import CostReport
from services.fleet_client.service_orders import JOB_SECONDS_MAX
from services.gateway.views import EventPage
from services.http_client.api_call import ApiCall
from services.http_client.operation_calls import operation_call

API: Final = "/api/v1"
EVER: Final = "30d"
LINES: Final = 100


def get_cost(*, pool: str = "", since: str = "7d", by_label: str = "") -> ApiCall[CostReport]:
    """Get what instances cost, by day and pool, and by a label; seven days at most."""
    query = {"pool": pool, "since": since, "by_label": by_label}
    return ApiCall(path=f"{API}/cost", answer=CostReport, query=query)


def list_alerts() -> ApiCall[list[OpenAlertRecord]]:
    """List the open alerts, the most severe first."""
    return ApiCall(path=f"{API}/alerts", answer=list[OpenAlertRecord])


def get_job_nodes(job: str, *, pool: str = "") -> ApiCall[JobNodes]:
    """Get the nodes on which a job runs, as the workload systems say now, and what they do not."""
    query = {"job": job, "pool": pool}
    path = f"{API}/jobs/nodes"
    return ApiCall(path=path, answer=JobNodes, query=query, more_seconds=JOB_SECONDS_MAX)


def get_node_logs(
    name: str, *, lines: int = LINES, since: str = EVER, kernel: bool = False
) -> ApiCall[LogExcerpt]:
    """Get the newest log lines of a node's agent, and the kernel's about the driver."""
    query = {"lines": lines, "since": since, "kernel": kernel}
    path = f"{API}/nodes/{token(name, 'node')}/logs"
    return ApiCall(path=path, answer=LogExcerpt, query=query)


def get_service_logs(
    service: str, *, lines: int = LINES, since: str = EVER, replica: str = ""
) -> ApiCall[list[LogExcerpt]]:
    """Get the newest log lines of each replica of a service, or of those whose name begins so."""
    query = {"lines": lines, "since": since, "replica": replica}
    path = f"{API}/services/{token(service, 'service')}/logs"
    return ApiCall(path=path, answer=list[LogExcerpt], query=query)


def acknowledge_alert(alert: str, *, reason: str = "") -> ApiCall[Alert]:
    """Take on an open alert, by its key."""
    body = AcknowledgeBody(alert=alert, reason=reason)
    return operation_call(ACKNOWLEDGE_ALERT, "", Alert, body)


def update_alert(
    alert: str, *, silence_seconds: int = 0, assign_to: str = "", note: str = ""
) -> ApiCall[Alert]:
    """Silence an open alert for some time, assign it, or add a note to it."""
    body = AlertUpdateBody(
        alert=alert, silence_seconds=silence_seconds, assign_to=assign_to, note=note
    )
    return operation_call(UPDATE_ALERT, "", Alert, body)


def add_hardware(
    kind: HardwareKind, value: str, *, reason: str, node: str = ""
) -> ApiCall[list[HardwareRecord]]:
    """Add a GPU or a host to the denylist; nodes in service are not affected."""
    body = ListedHardwareBody(kind=kind, value=value, reason=reason, node=node)
    return operation_call(ADD_HARDWARE, "", list[HardwareRecord], body)


def forget_hardware(kind: HardwareKind, value: str) -> ApiCall[list[HardwareRecord]]:
    """Take a GPU or a host off the denylist."""
    body = HardwareBody(kind=kind, value=value)
    return operation_call(FORGET_HARDWARE, "", list[HardwareRecord], body)


def readmit_node(name: str) -> ApiCall[BusAccess]:
    """Have a disconnected node's credentials accepted again."""
    return operation_call(READMIT, name, BusAccess, None)


def forget_node(name: str) -> ApiCall[ForgetAnswer]:
    """Take an adopted node out of the fleet for good; nothing is done to its machine."""
    return operation_call(FORGET, name, ForgetAnswer, None)


def plan_forget_node(name: str) -> ApiCall[ForgetAnswer]:
    """Say whether an adopted node would be forgotten; nothing is changed."""
    return operation_call(PLAN_FORGET, name, ForgetAnswer, None)


def accept_identity(name: str, *, claim: str) -> ApiCall[IdentityChanged]:
    """Accept the identity that a node's agent reports, after a repair or a move."""
    return operation_call(ACCEPT_IDENTITY, name, IdentityChanged, IdentityBody(claim=claim))


def drill_node(
    name: str,
    *,
    kind: DrillKind,
    code: int = 0,
    subcode: str = "",
    gpu: int = 0,
    act: bool = False,
) -> ApiCall[DrillStarted]:
    """Report a fault that a node does not have; without `act` it is cordoned and drained."""
    body = DrillBody(kind=kind, code=code, subcode=subcode, gpu=gpu, act=act)
    return operation_call(DRILL, name, DrillStarted, body)


def check_workload(name: str, *, node: str = "") -> ApiCall[WorkloadCheckAnswer]:
    """Try a pool's workload system, and the rights there."""
    return operation_call(CHECK_WORKLOAD, name, WorkloadCheckAnswer, WorkloadCheckBody(node=node))


def report_work_done(name: str, *, saga: str = "") -> ApiCall[WorkDoneAccepted]:
    """Say that the work has left a node; nothing changes unless a drain waits for it."""
    return operation_call(REPORT_WORK_DONE, name, WorkDoneAccepted, WorkDoneBody(saga=saga))


def stop_automation(
    *,
    reason: str,
    pool: str = "",
    provider: str = "",
    running: bool = False,
    until: datetime | None = None,
) -> ApiCall[StopsAnswer]:
    """Begin nothing by itself in the fleet, or in a part of it, until a resume."""
    body = StopBody(pool=pool, provider=provider, running=running, until=until, reason=reason)
    return operation_call(STOP, "", StopsAnswer, body)


def resume_automation(
    *, pool: str = "", provider: str = "", reason: str = ""
) -> ApiCall[StopsAnswer]:
    """End a stop: what still holds is acted on again."""
    body = ResumeBody(pool=pool, provider=provider, reason=reason)
    return operation_call(RESUME, "", StopsAnswer, body)


def plan_sweep(*, adopt: Sequence[str] = (), terminate: Sequence[str] = ()) -> ApiCall[SweepAnswer]:
    """Compare providers with records, and get what a sweep would do; nothing is changed."""
    query = {"adopt": adopt, "terminate": terminate}
    path, more = f"{API}{PLAN_SWEEP.path}", PLAN_SWEEP.seconds_max
    return ApiCall(path=path, answer=SweepAnswer, query=query, more_seconds=more)


def sweep_instances(
    *, adopt: Sequence[str] = (), terminate: Sequence[str] = ()
) -> ApiCall[SweepAnswer]:
    """Resolve differences between providers and records now."""
    body = SweepBody(adopt=tuple(adopt), terminate=tuple(terminate))
    return operation_call(SWEEP, "", SweepAnswer, body)


def list_newest_events(
    *,
    since: str = "1h",
    until: str = "",
    before: int = 0,
    pool: str = "",
    node: str = "",
    kinds: Sequence[str] = (),
    tones: Sequence[str] = (),
    limit: int = 100,
) -> ApiCall[EventPage]:
    """List stored events, newest first; `before`: `next` of the page before.

    `tones`: only what is `bad`, as faults are, `good` or `plain`.
    """
    where = {"since": since, "until": until, "before": before, "pool": pool, "node": node}
    query = where | {"type": kinds, "tone": tones, "limit": limit}
    return ApiCall(path=f"{API}/events/newest", answer=EventPage, query=query)
