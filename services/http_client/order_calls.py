"""Calls of the HTTP API that a service answers at once, as values. Pure.

Those in `gateway_calls` read the fleet or change it by a request to a pool.
"""

from collections.abc import Sequence
from typing import Final

from schemas.alert_records import Alert, OpenAlertRecord
from schemas.enums import HardwareKind
from schemas.hardware_denylist import HardwareRecord
from schemas.log_excerpts import LogExcerpt
from schemas.names import token
from schemas.node_events import BusAccess
from schemas.node_work import JobNodes
from schemas.sweeps import SweepAnswer
from schemas.work_done import WorkDoneAccepted
from schemas.workload_checks import WorkloadCheckAnswer
from services.fleet_client.cost_report import CostReport
from services.fleet_client.service_orders import (
    CHECK_SECONDS_MAX,
    JOB_SECONDS_MAX,
    SWEEP_SECONDS_MAX,
)
from services.gateway.change_bodies import (
    AcknowledgeBody,
    HardwareBody,
    ListedHardwareBody,
    SweepBody,
    WorkDoneBody,
    WorkloadCheckBody,
)
from services.http_client.api_call import ApiCall

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
    return ApiCall(path=f"{API}/alerts/acknowledge", answer=Alert, method="POST", body=body)


def add_hardware(
    kind: HardwareKind, value: str, *, reason: str, node: str = ""
) -> ApiCall[list[HardwareRecord]]:
    """Add a GPU or a host to the denylist; nodes in service are not affected."""
    body = ListedHardwareBody(kind=kind, value=value, reason=reason, node=node)
    path = f"{API}/hardware/add"
    return ApiCall(path=path, answer=list[HardwareRecord], method="POST", body=body)


def forget_hardware(kind: HardwareKind, value: str) -> ApiCall[list[HardwareRecord]]:
    """Take a GPU or a host off the denylist."""
    body = HardwareBody(kind=kind, value=value)
    path = f"{API}/hardware/forget"
    return ApiCall(path=path, answer=list[HardwareRecord], method="POST", body=body)


def readmit_node(name: str) -> ApiCall[BusAccess]:
    """Have a disconnected node's credentials accepted again."""
    path = f"{API}/nodes/{token(name, 'node')}/readmit"
    return ApiCall(path=path, answer=BusAccess, method="POST")


def check_workload(name: str, *, node: str = "") -> ApiCall[WorkloadCheckAnswer]:
    """Try a pool's workload system, and the rights there."""
    return ApiCall(
        path=f"{API}/pools/{token(name, 'pool')}/workload-check",
        answer=WorkloadCheckAnswer,
        method="POST",
        body=WorkloadCheckBody(node=node),
        more_seconds=CHECK_SECONDS_MAX,
    )


def report_work_done(name: str, *, saga: str = "") -> ApiCall[WorkDoneAccepted]:
    """Say that the work has left a node; nothing changes unless a drain waits for it."""
    path = f"{API}/nodes/{token(name, 'node')}/work-done"
    body = WorkDoneBody(saga=saga)
    return ApiCall(path=path, answer=WorkDoneAccepted, method="POST", body=body)


def plan_sweep(*, adopt: Sequence[str] = (), terminate: Sequence[str] = ()) -> ApiCall[SweepAnswer]:
    """Compare providers with records, and get what a sweep would do; nothing is changed."""
    return ApiCall(
        path=f"{API}/sweep",
        answer=SweepAnswer,
        query={"adopt": adopt, "terminate": terminate},
        more_seconds=SWEEP_SECONDS_MAX,
    )


def sweep_instances(
    *, adopt: Sequence[str] = (), terminate: Sequence[str] = ()
) -> ApiCall[SweepAnswer]:
    """Resolve differences between providers and records now."""
    return ApiCall(
        path=f"{API}/sweep",
        answer=SweepAnswer,
        method="POST",
        body=SweepBody(adopt=tuple(adopt), terminate=tuple(terminate)),
        more_seconds=SWEEP_SECONDS_MAX,
    )
