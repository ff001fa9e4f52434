"""What people publish to `navarch.v1.pool.<pool>.request.<verb>`, and what queries answer.

A request is typed by hand (`nats pub … '{"nodes": 5}'`), so it needs no `type`, `id` or `time`; its
id is the stream sequence it was stored under. Unknown keys are refused: a typing error in a request
must not pass as a default.
"""

from typing import Annotated, Any, Literal

import msgspec

from schemas.autoscaling_advice import Advice
from schemas.duration import Duration
from schemas.messages import Record, UtcTime
from schemas.node_events import CheckResult
from schemas.reasons import DrainMode, HardwareKind

Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every request may carry."""

    by: str = ""
    """Who asks, for the record."""
    request: str = ""
    """The asker's own id, echoed in the answer's event as `request`."""


class ScaleRequest(Request, frozen=True, kw_only=True):
    """Bring the pool to this many nodes."""

    nodes: Count


class NodeRequest(Request, frozen=True, kw_only=True):
    """Cordon, uncordon, drain, replace or reboot one node, or reset its GPUs."""

    node: str
    reason: str = ""


class DrainRequest(NodeRequest, frozen=True, kw_only=True):
    """Drain, replace, reset or reboot one node, and how long its work is waited for."""

    mode: DrainMode | Literal[""] = ""
    """Empty: as the pool says; with a `timeout`, deadline."""
    timeout: Duration | None = None
    """`10m`; None: the pool's drain_timeout."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.mode == "immediate" and self.timeout is not None:
            raise ValueError("mode immediate does not wait, so it takes no timeout")


class HoldRequest(Request, frozen=True, kw_only=True):
    """Let nothing automatic take a node out of service for a while."""

    node: str
    for_: Duration = msgspec.field(name="for")
    """At most seven days; it ends by itself."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class SagaRequest(Request, frozen=True, kw_only=True):
    """Cancel a saga, retry one that is stuck, or have one that drains wait no longer."""

    saga: str
    reason: str = ""


class BreakerRequest(Request, frozen=True, kw_only=True):
    """Open the pool's breaker, and keep it open; or close it."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class ApplyRequest(Request, frozen=True, kw_only=True):
    """Make the pool, or change it; refused where the configuration has one of its name."""

    spec: dict[str, Any]
    """As under `pools:` in the configuration, and checked by the same code."""
    nodes: Count | None = None
    """How many; None: min_nodes, or as many as it had."""
    reason: str = ""


class RemoveRequest(Request, frozen=True, kw_only=True):
    """Let every node of the pool leave, then forget the pool."""

    mode: DrainMode | Literal[""] = ""
    """How work is waited for; empty: as the pool says, or with a `timeout`, deadline."""
    timeout: Duration | None = None
    reason: str = ""


REQUESTS: dict[str, type[Request]] = {
    "scale": ScaleRequest,
    "apply": ApplyRequest,
    "remove": RemoveRequest,
    "cordon": NodeRequest,
    "uncordon": NodeRequest,
    "drain": DrainRequest,
    "replace": DrainRequest,
    "reset-gpu": DrainRequest,
    "reboot": DrainRequest,
    "hold": HoldRequest,
    "release": NodeRequest,
    "cancel": SagaRequest,
    "retry": SagaRequest,
    "proceed": SagaRequest,
    "breaker-open": BreakerRequest,
    "breaker-close": BreakerRequest,
}
"""Verb -> payload."""


class CompletedRequest(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A request that was carried out, so that an earlier one is not carried out after it."""

    sequence: int
    at: UtcTime
    """When it was stored."""
    verb: str
    about: str
    """`size`, `breaker`, `pool`, `node <node>` or `hold <node>`."""
    saga: str = ""
    """What it has begun."""


class DiagnoseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks an agent to test its host (its node's `command.diagnose`); answered when it is done."""

    checks: tuple[str, ...] = ()
    """Names: `boot`, `nvidia-smi`, `memory`, `dcgm`, `nvbandwidth`, `nccl`, `burn`, or a plugin's;
    empty: the boot checks alone."""
    level: Annotated[int, msgspec.Meta(ge=1, le=4)] = 1
    """Of `dcgm`: from 2 on it needs the GPUs for itself."""
    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 60
    """How long `burn` burns."""
    gbps_min: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Least bandwidth that passes, for `nvbandwidth` and `nccl`; 0: any."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests found."""

    ok: bool
    checks: tuple[CheckResult, ...] = ()
    refused: str = ""
    """Why nothing was run; empty where it was."""


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks an agent to reset GPUs (`command.reset-gpu`); answered when that is done."""

    key: str
    """Of the saga's step: asked again under the same key, nothing is reset a second time."""
    gpus: tuple[str, ...] = ()
    """UUIDs; empty: all of the node's."""


class RebootRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks an agent to reboot its host (`command.reboot`); answered before it goes down."""

    key: str
    boot_id: str
    """The boot to end: an agent of another boot answers that this has happened."""


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a reset or a reboot."""

    ok: bool
    detail: str = ""
    """What the tool printed, or why it failed."""
    refused: str = ""
    """Why nothing was done; the same may be asked again. Empty: it was done, or it failed."""
    boot_id: str = ""
    """The agent's."""
    at: UtcTime | None = None
    """When it was done, by the node's clock."""


class HardwareAdd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks the pool-manager to refuse a GPU or a host from now on (`query.hardware-add`)."""

    kind: HardwareKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    node: str = ""
    by: str = ""


class HardwareForget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks the pool-manager to admit it again (`query.hardware-forget`)."""

    kind: HardwareKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    by: str = ""


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fault as `navarch get` shows it."""

    time: str
    kind: str
    message: str
    code: int = 0
    gpu_index: int = -1
    result: str = ""
    rule: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as people see it; field names are part of the public face (`jq '.health'`)."""

    id: str
    pool: str
    status: str
    """The node's state: launching, registered, active, leaving, terminated; `cordoned` apart."""
    health: str
    cordoned: bool = False
    spare: bool = False
    """Kept cordoned in reserve."""
    drained: bool = False
    lost: bool = False
    gpu_count: int = 0
    provider: str = ""
    region: str = ""
    zone: str = ""
    rack: str = ""
    instance_type: str = ""
    address: str = ""
    saga: str = ""
    reason: str = ""
    job: str = ""
    """Whose process the fault was of that decided on its health."""
    held_until: str = ""
    held_by: str = ""
    held_reason: str = ""
    registered_at: str = ""
    last_change: str = ""
    gpus: tuple[dict[str, Any], ...] = ()
    """Each with its `health`, and with action, rule, reason … where that is not `healthy`."""
    health_events: tuple[HealthEvent, ...] = ()


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as people see it."""

    name: str
    desired: int
    nodes: int
    active: int
    healthy: int
    unhealthy: int
    cordoned: int
    min_nodes: int
    max_nodes: int
    breaker: str
    """closed, open or half-open."""
    requested: bool = False
    """Made by a request, not by the configuration."""
    removing: bool = False
    """Its nodes leave, then the pool is forgotten."""
    open_sagas: tuple[str, ...] = ()
    spares: int = 0
    """How many are to be kept in reserve."""
    spares_ready: int = 0
    mode: str = "act"
    """act or observe."""
    observed_actions: tuple[dict[str, Any], ...] = ()
    """Under mode observe: what would be under way."""
    breaker_since: str = ""
    breaker_cause: str = ""
    breaker_reason: str = ""
    breaker_by: str = ""
    breaker_forced: bool = False
    """Opened by a person: only a person closes it."""
    breaker_probe: str = ""
    """Half-open: the saga of the one repair."""
    breaker_probe_at: str = ""
    """Open after a failed repair: no other is tried before."""
    ramp: int = 0
    """After it closed: so many repairs at once; 0: as the budget allows."""
    unavailable: int = 0
    """Nodes out of service by our own doing, and how many may be."""
    unavailable_limit: int = 0
    disruptions: int = 0
    """Replacements begun within the budget's window, and how many may be; -1: any number."""
    disruptions_limit: int = -1
    resets: int = 0
    """GPU resets and reboots begun within the window, and how many may be; -1: any number."""
    resets_limit: int = -1
    window_seconds: float = 0.0
    sick: int = 0
    """Nodes that are to be repaired and that nothing is done about yet."""
    advice: Advice | None = None
    """What its autoscaler asks for and does not get."""


class FleetBudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's budget as people see it."""

    desired: int
    """Nodes that all pools want."""
    unavailable: int
    unavailable_limit: int
    disruptions: int
    disruptions_limit: int = -1
    """-1: any number."""
    resets: int = 0
    resets_limit: int = -1
    window_seconds: float = 0.0
    lifted: bool = False
    """It cannot bind, so nothing is counted for it."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of an answer; ask again with `after=next` until `next` is empty."""

    items: tuple[msgspec.Raw, ...] = ()
    next: str = ""


class Query(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A question about the fleet."""

    pool: str = ""
    node: str = ""
    names: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)] = ()
    """Of instances: those of these nodes alone."""
    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    terminated: bool = False
    """Also those that are gone."""


class QueryError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a question was not answered."""

    error: str
    reason: str


class EnrollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new node asks with its bootstrap credentials."""

    key: Annotated[str, msgspec.Meta(pattern="^U[A-Z2-7]{55}$")]
    """Public key of a pair that the node has made; its seed never leaves the node."""


class EnrollAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What it is given."""

    token: str = ""
    """The signed token with which the key's owner may speak for this node."""
    refused: str = ""
    """Why there is none, in one sentence."""
