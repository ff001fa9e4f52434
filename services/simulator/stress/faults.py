"""What a machine's agent says when something fails, and whether the policy takes the node for it.

A failure of the plan becomes the fact that a real agent would tell: the policy judges it as it
judges any other. Pure.
"""

from datetime import UTC, datetime
from typing import Any, Final

from schemas.node_events import Fault, Metric
from schemas.reasons import FaultKind
from services.health_monitor.policy import Policy
from services.simulator.stress.format import FailureType

HOT_CELSIUS: Final = 92
COOL_CELSIUS: Final = 65

_KINDS: Final[dict[str, FaultKind]] = {
    "xid_error": "xid",
    "temperature": "thermal",
    "memory_error": "ecc_dbe",
    "nvlink_error": "nvlink",
    "backend_error": "probe_failed",
    "boot_failure": "gpu_count",
}
_SOURCES: Final[dict[str, str]] = {"xid_error": "kmsg", "memory_error": "nvml"}
_WHOLE_NODE: Final = frozenset({"backend_error", "boot_failure"})


def told(
    type_: FailureType, xid: int, gpu: int, gpus: int, *, about: dict[str, Any]
) -> Fault | None:
    """The fact that tells of a failure; None where the failure is that nothing is told."""
    if type_ not in _KINDS:
        return None
    metrics: dict[str, Metric] = {}
    message, subcode = "", ""
    match type_:
        case "xid_error":
            metrics, message = {"xid_code": xid}, f"NVRM: Xid {xid}"
        case "temperature":
            metrics, message = {"temperature": HOT_CELSIUS}, f"{HOT_CELSIUS} degrees"
        case "memory_error":
            metrics, message = {"ecc_dbe_count": 1}, "1 uncorrectable memory error"
        case "nvlink_error":
            metrics, message, subcode = {"nvlinks_down": 1}, "1 NVLink went down", "down"
        case "boot_failure":
            metrics, message = {"gpus": gpus - 1}, f"{gpus - 1} of {gpus} GPUs"
        case _:
            message = "NVML does not answer"
    return Fault(
        kind=_KINDS[type_],
        gpu_index=-1 if type_ in _WHOLE_NODE else gpu,
        code=xid,
        subcode=subcode,
        message=message,
        metrics=metrics,
        source=_SOURCES.get(type_, "nvml"),
        **about,
    )


def told_of_end(type_: FailureType, gpu: int, *, about: dict[str, Any]) -> Fault | None:
    """The fact that tells that it is over; None where agents have no word for that."""
    if type_ != "temperature":
        return None
    return Fault(
        kind="thermal",
        gpu_index=gpu,
        message=f"{COOL_CELSIUS} degrees",
        metrics={"temperature": COOL_CELSIUS},
        source="nvml",
        **about,
    )


def judged_fatal(policy: Policy, type_: FailureType, xid: int) -> bool:
    """Whether one such failure takes a node out of service, by this policy."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    about = {"id": "probe", "time": now, "pool": "probe", "node": "probe"}
    fault = told(type_, xid, 0, 8, about=about)
    return fault is not None and policy.judge(fault, {}, now).result == "unhealthy"
