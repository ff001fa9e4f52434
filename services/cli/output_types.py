"""Declares what each command writes with `-o json`, and prints the JSON Schema of all.

`python -m services.cli.output_types > docs/command-output.schema.json`
"""

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas.agent_commands import Diagnosis
from schemas.alert_records import OpenAlertRecord
from schemas.dry_run import DryRun
from schemas.evidence_bundles import EvidenceBundle, KeptEvidence
from schemas.fleet_queries import CurrentFailure, Expiry, FleetBudgetView, NodeView, PoolView
from schemas.hardware_denylist import HardwareRecord
from schemas.join_tokens import ForgetAnswer
from schemas.log_excerpts import LogExcerpt
from schemas.offering_records import OfferingView
from schemas.plugin_records import PluginHealth
from schemas.pool_events import RequestAccepted, Scaled
from schemas.stops import StopsAnswer
from schemas.sweeps import SweepAnswer
from schemas.work_done import WorkDoneAccepted
from schemas.workload_checks import WorkloadCheckAnswer
from services.bus.backup.backup_files import Manifest
from services.cli.commands.overview_commands import Versions
from services.cli.doctor_checks import Finding
from services.fleet_client.cost_report import CostReport
from services.fleet_client.fleet_use import UseRow, UseTotal
from services.fleet_client.incident_review import IncidentReview
from services.fleet_client.node_timeline import AuditRow, TimelineRow
from services.fleet_client.repair_report import RepairReport
from services.fleet_client.saga_progress import Progress
from services.fleet_client.saga_summaries import SagaSummary
from services.fleet_client.why_answer import WhyAnswer
from services.gateway.views import InstanceView, PoolStatus
from services.health_monitor.rules.policy_replay import Difference


class StatusOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what `status` writes."""

    stops: StopsAnswer
    pools: tuple[PoolView, ...]
    sagas: tuple[dict[str, Any], ...]
    failures: tuple[CurrentFailure, ...]
    expiries: tuple[Expiry, ...]
    alerts: tuple[OpenAlertRecord, ...]


class BreakerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what `breaker show` writes."""

    pools: tuple[PoolView, ...]
    fleet: FleetBudgetView


class UseOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what `top` writes."""

    total: UseTotal
    rows: tuple[UseRow, ...]


class SagaOutput(Progress, frozen=True, kw_only=True):
    """Holds what `saga show` writes: the entries of its log as they are stored."""

    log: tuple[dict[str, Any], ...]


class ReplayOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what `policy test` writes."""

    file: str
    policy: str
    since: datetime
    faults: int
    nodes_more: tuple[str, ...]
    nodes_fewer: tuple[str, ...]
    differences: tuple[Difference, ...]


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what `gateway token create` writes."""

    name: str
    token: str
    entry: dict[str, Any]


ORDERS: Final = ("cordon", "uncordon", "drain", "replace", "reset-gpu", "reboot", "terminate")
OUTPUTS: Final[Mapping[str, Any]] = {
    "status": StatusOutput,
    "list": list[NodeView],
    "get": NodeView,
    "top": UseOutput,
    "instances": list[InstanceView],
    "leaked": list[InstanceView],
    "offerings": list[OfferingView],
    "doctor": list[Finding],
    "why": WhyAnswer,
    "timeline": list[TimelineRow],
    "audit": list[AuditRow],
    "evidence": list[KeptEvidence],
    "evidence NODE": EvidenceBundle,
    "logs": list[LogExcerpt],
    "report": RepairReport,
    "incident": IncidentReview,
    "cost": CostReport,
    "diagnose": Diagnosis,
    **dict.fromkeys(ORDERS, RequestAccepted),
    **{f"{each} --dry-run": DryRun for each in (*ORDERS, "scale")},
    "hold": RequestAccepted,
    "release": RequestAccepted,
    "scale": Scaled,
    "stop": StopsAnswer,
    "resume": StopsAnswer,
    "resume --dry-run": StopsAnswer,
    "sweep": SweepAnswer,
    "forget": list[ForgetAnswer],
    "version": Versions,
    "backup": Manifest,
    "restore": Manifest,
    "alerts list": list[OpenAlertRecord],
    "saga list": list[Progress],
    "saga list --all": list[SagaSummary],
    "saga show": SagaOutput,
    **{f"saga {each}": RequestAccepted for each in ("cancel", "retry", "proceed")},
    "pool list": list[PoolView],
    "pool status": PoolStatus,
    "pool history": list[TimelineRow],
    "policy test": ReplayOutput,
    "breaker show": BreakerOutput,
    "breaker open": RequestAccepted,
    "breaker close": RequestAccepted,
    **{f"hardware {each}": list[HardwareRecord] for each in ("list", "add", "forget")},
    "gateway token create": TokenOutput,
    "workload check": WorkloadCheckAnswer,
    "workload done": WorkDoneAccepted,
    "plugins list": list[PluginHealth],
}
"""A command, with the option or argument that changes its answer -> its type.

Orders about several nodes write a list of these. `events` and everything that follows write a
document on each line: what is stored (docs/events.md).
"""
UNDECLARED: Final = frozenset(
    {
        *("events", "readmit", "identity accept", "policy check", "policy explain"),
        *("config diff", "simulator run", "join", "drill"),
    }
)
"""Commands whose documents are stored messages, answers without content, or may still change."""


def schema() -> dict[str, Any]:
    """Return the JSON Schema: the output of each command under its name. Pure."""
    found, components = msgspec.json.schema_components(
        OUTPUTS.values(), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What each command of navarch writes with -o json",
        "type": "object",
        "properties": dict(zip(OUTPUTS, found, strict=True)),
        "$defs": dict(sorted(components.items())),
    }


if __name__ == "__main__":
    text = msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode()
    sys.stdout.write(f"{text}\n")
