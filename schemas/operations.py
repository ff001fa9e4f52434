"""Declares every operation that changes a fleet, once.

The queue of requests, the bus permissions, the HTTP API, its clients, the assistants' tools, the
commands' help and docs/events.md read this table. CONTRIBUTING.md shows how to add a row.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from schemas.alert_records import Alert, AlertAcknowledge, AlertUpdate
from schemas.drill_orders import DrillOrder
from schemas.enums import Refusal
from schemas.hardware_denylist import HardwareAdd, HardwareForget, HardwareRecord
from schemas.identity_orders import IdentityAccept
from schemas.join_tokens import ForgetAnswer, NodeOfPool
from schemas.node_disconnections import ReadmitRequest
from schemas.node_events import BusAccess, DrillStarted, IdentityChanged
from schemas.operation_bodies import (
    AcknowledgeBody,
    AlertUpdateBody,
    BreakerBody,
    DrainBody,
    DrillBody,
    HardwareBody,
    HoldBody,
    IdentityBody,
    ListedHardwareBody,
    ReasonBody,
    ResumeBody,
    ScaleBody,
    StopBody,
    SweepBody,
    UpBody,
    WorkDoneBody,
    WorkloadCheckBody,
)
from schemas.operator_requests import (
    ApplyRequest,
    BreakerRequest,
    DrainRequest,
    HoldRequest,
    NamesRequest,
    NodeRequest,
    RemoveRequest,
    Request,
    SagaRequest,
    ScaleRequest,
)
from schemas.pool_events import PoolEvent, RequestAccepted, Scaled
from schemas.stops import ResumeRequest, StopRequest, StopsAnswer
from schemas.sweeps import SweepAnswer, SweepRequest
from schemas.work_done import WorkDone, WorkDoneAccepted
from schemas.workload_checks import WORKLOAD_CHECK, WorkloadCheckAnswer, WorkloadCheckRequest

A = TypeVar("A")
Role = Literal["operator", "admin"]
_ANY: Final[tuple[Refusal, ...]] = ("invalid-request", "unknown-pool")
_NODE: Final[tuple[Refusal, ...]] = (*_ANY, "unknown-node", "superseded")
_SAGA: Final[tuple[Refusal, ...]] = (*_ANY, "unknown-saga", "wrong-state")
_ACTS: Final[tuple[Refusal, ...]] = (
    *(*_NODE, "saga-open", "wrong-state", "not-active", "held", "observing", "budget-exhausted"),
)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one operation; this much every kind of them has."""

    name: str
    """The last word but the user of its subject on the bus: a request's verb, an order's name."""
    request: type[msgspec.Struct]
    help: str
    """One line."""
    path: str = ""
    """Of the HTTP API, with fields of the request; empty: it is an operation of the bus alone."""
    method: str = ""
    """Its ID in the API's description, and its method in the clients."""
    body: type[msgspec.Struct] | None = None
    """What a caller of the HTTP API sends beside the path."""
    role: Role = "operator"
    """Who may request it, over HTTP and on the bus (`schemas.permissions.MAY_REQUEST`)."""

    @property
    def subject(self) -> str:
        """Return what the path names: `node`, `pool`, `saga`, or nothing."""
        return self.path.partition("{")[2].partition("}")[0]


class Change(Operation, frozen=True, kw_only=True):
    """A request to a pool: it is queued, decided by the pool-manager, and answered by an event.

    Each has a dry run, and is carried out once however often it is sent with one ID.
    """

    request: type[Request]
    example: dict[str, Any]
    """A request's content, as it may be published."""
    answer: type[PoolEvent] = RequestAccepted
    refusals: tuple[Refusal, ...]
    """Codes with which it may be refused, each also by the dry run."""
    planned: bool = False
    """Assistants may plan it."""
    creates: bool = False
    """What it is about need not exist."""


class ServiceOrder(Operation, Generic[A], frozen=True, kw_only=True):
    """A request that a service performs at once, and answers."""

    service: str
    answer: type[A]
    is_query: bool = False
    """It is asked as a query, which has no user's name in its subject."""
    seconds_max: float = 5.0
    """How long the service may take."""
    renamed: Mapping[str, str] = {}
    """Field of the request -> its name in the body."""


def _node(name: str, text: str, **more: Any) -> Change:
    more = {"request": NodeRequest, "body": ReasonBody, "refusals": _ACTS, **more}
    example = {"node": "training-3", **more.pop("more", {})}
    method = f"{name.replace('-', '_')}_node"
    path = f"/nodes/{{node}}/{name}"
    return Change(
        **{"name": name, "help": text, "method": method, "path": path, **more},
        example=example,
    )


def _drains(name: str, text: str, **more: Any) -> Change:
    wait = {"mode": "deadline", "timeout": "10m"}
    return _node(name, text, request=DrainRequest, body=DrainBody, more=wait, **more)


def _pool(name: str, word: str, text: str, **more: Any) -> Change:
    verb, _, noun = reversed(word.partition("/")) if "/" in word else (word, "", "pool")
    method = f"{verb}_{noun}"
    path = f"/pools/{{pool}}/{word}" if word else ""
    return Change(name=name, help=text, path=path, method=method, **more)


def _saga(name: str, text: str) -> Change:
    return Change(
        name=name,
        help=text,
        request=SagaRequest,
        body=ReasonBody,
        path=f"/sagas/{{saga}}/{name}",
        method=f"{name}_saga",
        example={"saga": "replace-training-3-1"},
        refusals=_SAGA,
    )


_SPEC: Final = {"provider": "local", "instance_type": "simulated", "min_nodes": 1, "max_nodes": 2}
_SIZE: Final[tuple[Refusal, ...]] = (*_ANY, "superseded", "wrong-state", "above-maximum")
_HELD: Final[dict[str, Any]] = {"for": "2h", "reason": "bisecting a slow job"}
_WHY: Final[dict[str, Any]] = {"reason": "maintenance of the rack"}
_BREAKER: Final[dict[str, Any]] = {
    "request": BreakerRequest,
    "body": BreakerBody,
    "example": _WHY,
    "refusals": (*_ANY, "superseded", "wrong-state"),
}
_NAMES: Final[dict[str, Any]] = {
    "request": NamesRequest,
    "example": {"names": ["training-001"]},
    "refusals": (*_SIZE, "unknown-node"),
}
CHANGES: Final[tuple[Change, ...]] = (
    _pool(
        "scale",
        "scale",
        "Set the desired size of a pool.",
        request=ScaleRequest,
        body=ScaleBody,
        answer=Scaled,
        example={"nodes": 5},
        refusals=(*_SIZE, "below-minimum"),
        planned=True,
    ),
    _pool("resume", "", "Have nodes of these names of the workload system.", **_NAMES),
    _pool("suspend", "", "Have no nodes of these names of the workload system.", **_NAMES),
    _pool(
        "apply",
        "up",
        "Create or change a pool, except one of the configuration.",
        request=ApplyRequest,
        body=UpBody,
        role="admin",
        creates=True,
        example={"spec": _SPEC, "nodes": 1},
        refusals=("invalid-request", "wrong-state", "superseded"),
    ),
    _pool(
        "remove",
        "down",
        "Remove a pool's nodes, then the pool.",
        request=RemoveRequest,
        body=DrainBody,
        role="admin",
        example=_WHY,
        refusals=(*_ANY, "wrong-state", "superseded"),
    ),
    _node("cordon", "Stop placing new work on a node.", planned=True),
    _node("uncordon", "Allow new work on a node again; its health is judged again.", planned=True),
    _drains("drain", "Cordon a node and let its work leave.", planned=True),
    _drains("replace", "Drain and terminate a node, and launch another.", planned=True),
    _drains("reset-gpu", "Drain a node, reset its GPUs, and test it."),
    _drains("reboot", "Drain a node, reboot it, and test it."),
    _drains(
        "terminate",
        "Drain and terminate a node; its pool is one smaller.",
        refusals=(*_ACTS, "below-minimum"),
        planned=True,
    ),
    _node(
        "hold",
        "Keep automation off a node for a while.",
        request=HoldRequest,
        body=HoldBody,
        more=_HELD,
        refusals=_NODE,
    ),
    _node("release", "End a hold early.", refusals=_NODE),
    _saga("cancel", "Unwind a saga, if it has not passed its pivot."),
    _saga("retry", "Continue a stuck saga after its cause is fixed."),
    _saga("proceed", "Stop waiting for a drain, even if work still runs."),
    _pool(
        "breaker-open",
        "breaker/open",
        "Start no remediation in a pool until its breaker is closed.",
        **_BREAKER,
    ),
    _pool("breaker-close", "breaker/close", "Allow remediation in a pool again.", **_BREAKER),
)
ACKNOWLEDGE_ALERT: Final[ServiceOrder[Alert]] = ServiceOrder(
    name="acknowledge-alert",
    help="Take on an open alert: it is not repeated, and channels stop escalating.",
    request=AlertAcknowledge,
    answer=Alert,
    service="notifier",
    path="/alerts/acknowledge",
    method="acknowledge_alert",
    body=AcknowledgeBody,
    renamed={"key": "alert"},
)
UPDATE_ALERT: Final[ServiceOrder[Alert]] = ServiceOrder(
    name="update-alert",
    help="Silence an open alert for some time, assign it, or add a note to it.",
    request=AlertUpdate,
    answer=Alert,
    service="notifier",
    path="/alerts/update",
    method="update_alert",
    body=AlertUpdateBody,
    renamed={"key": "alert"},
)
ADD_HARDWARE: Final[ServiceOrder[list[HardwareRecord]]] = ServiceOrder(
    name="hardware-add",
    help="Add a GPU or a host to the denylist; nodes in service are not affected.",
    request=HardwareAdd,
    answer=list[HardwareRecord],
    service="pool-manager",
    path="/hardware/add",
    method="add_hardware",
    body=ListedHardwareBody,
)
FORGET_HARDWARE: Final[ServiceOrder[list[HardwareRecord]]] = ServiceOrder(
    name="hardware-forget",
    help="Take a GPU or a host off the denylist.",
    request=HardwareForget,
    answer=list[HardwareRecord],
    service="pool-manager",
    path="/hardware/forget",
    method="forget_hardware",
    body=HardwareBody,
)
READMIT: Final[ServiceOrder[BusAccess]] = ServiceOrder(
    name="readmit",
    help="Have a disconnected node's credentials accepted again.",
    request=ReadmitRequest,
    answer=BusAccess,
    service="provisioner",
    path="/nodes/{node}/readmit",
    method="readmit_node",
)
FORGET: Final[ServiceOrder[ForgetAnswer]] = ServiceOrder(
    name="forget",
    help="Take an adopted node out of the fleet for good; nothing is done to its machine.",
    request=NodeOfPool,
    answer=ForgetAnswer,
    service="provisioner",
    path="/nodes/{node}/forget",
    method="forget_node",
    seconds_max=15.0,  # the pool-manager retires the node
)
PLAN_FORGET: Final = msgspec.structs.replace(
    FORGET,
    name="forget-plan",
    help="Say whether an adopted node would be forgotten; nothing is changed.",
    path="/nodes/{node}/forget-plan",
    method="plan_forget_node",
    is_query=True,
)
ACCEPT_IDENTITY: Final[ServiceOrder[IdentityChanged]] = ServiceOrder(
    name="identity-accept",
    help="Accept the identity that a node's agent reports, after a repair or a move.",
    request=IdentityAccept,
    answer=IdentityChanged,
    service="pool-manager",
    path="/nodes/{node}/identity/accept",
    method="accept_identity",
    body=IdentityBody,
)
DRILL: Final[ServiceOrder[DrillStarted]] = ServiceOrder(
    name="drill",
    help="Have a fault reported that a node does not have: it is cordoned and drained.",
    request=DrillOrder,
    answer=DrillStarted,
    service="pool-manager",
    path="/nodes/{node}/drill",
    method="drill_node",
    body=DrillBody,
)
SWEEP: Final[ServiceOrder[SweepAnswer]] = ServiceOrder(
    name="sweep-now",
    help="Resolve differences between providers and records now.",
    request=SweepRequest,
    answer=SweepAnswer,
    service="provisioner",
    path="/sweep",
    method="sweep_instances",
    body=SweepBody,
    seconds_max=110.0,  # listing one provider may take a minute
)
PLAN_SWEEP: Final = msgspec.structs.replace(
    SWEEP,
    name="sweep-plan",
    help="Compare providers with records, and get what a sweep would do; nothing is changed.",
    method="plan_sweep",
    body=None,
    is_query=True,
)
CHECK_WORKLOAD: Final[ServiceOrder[WorkloadCheckAnswer]] = ServiceOrder(
    name=WORKLOAD_CHECK,
    help="Try a pool's workload system, and the rights there.",
    request=WorkloadCheckRequest,
    answer=WorkloadCheckAnswer,
    service="notifier",
    path="/pools/{pool}/workload-check",
    method="check_workload",
    body=WorkloadCheckBody,
    is_query=True,
    seconds_max=60.0,
)
REPORT_WORK_DONE: Final[ServiceOrder[WorkDoneAccepted]] = ServiceOrder(
    name="work-done",
    help="Say that the work has left a node; nothing changes unless a drain waits for it.",
    request=WorkDone,
    answer=WorkDoneAccepted,
    service="notifier",
    path="/nodes/{node}/work-done",
    method="report_work_done",
    body=WorkDoneBody,
)
STOP: Final[ServiceOrder[StopsAnswer]] = ServiceOrder(
    name="stop",
    help="Begin nothing by itself in the fleet, or in a part of it, until a resume.",
    request=StopRequest,
    answer=StopsAnswer,
    service="pool-manager",
    path="/stop",
    method="stop_automation",
    body=StopBody,
)
RESUME: Final[ServiceOrder[StopsAnswer]] = ServiceOrder(
    name="resume",
    help="End a stop: what still holds is acted on again.",
    request=ResumeRequest,
    answer=StopsAnswer,
    service="pool-manager",
    path="/resume",
    method="resume_automation",
    body=ResumeBody,
)
ORDERS: Final[tuple[ServiceOrder[Any], ...]] = (
    *(ACKNOWLEDGE_ALERT, UPDATE_ALERT, ADD_HARDWARE, FORGET_HARDWARE, READMIT, SWEEP, PLAN_SWEEP),
    *(CHECK_WORKLOAD, REPORT_WORK_DONE, STOP, RESUME, ACCEPT_IDENTITY, DRILL),
    *(FORGET, PLAN_FORGET),
)
CHANGE: Final[Mapping[str, Change]] = {each.name: each for each in CHANGES}
"""Verb -> its declaration."""
REQUESTS: Final[Mapping[str, type[Request]]] = {each.name: each.request for each in CHANGES}
"""Verb -> payload."""


def orders_of(service: str) -> Iterator[str]:
    """Yield the names of the orders that a service performs."""
    return (each.name for each in ORDERS if each.service == service and not each.is_query)
