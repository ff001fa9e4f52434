"""Declares what a scenario file may contain: sections, actions and their parameters. Pure data.

The keys are those of the original Navarch's scenarios, and a few more; `scenario_file` reads a file
into these structs and reports its problems.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.autoscaling_advice import LimitedBy
from schemas.duration import Duration
from schemas.enums import BreakerState, HealthStatus, SagaKind
from schemas.launch_offers import Market
from schemas.settings import Percent, Setting, Settings
from services.simulator.engine.fault_kinds import (
    ALL,
    ANNOUNCED,
    NODE_FAULTS,
    STORE_LOSSES,
    FaultKind,
    InjectedFault,
)
from services.simulator.engine.offering_selector import OfferingSelector

FLEET_MAX: Final = 10_000
EVENTS_MAX: Final = 10_000
TEXT_CHARS_MAX: Final = 1_000
TIME_SECONDS_MAX: Final = 30 * 86_400.0
"""Of virtual time, for one scenario."""

FAILURE_ALIASES: Final = {"nvml_failure": "backend_error", "device_error": "backend_error"}
COUNTED: Final = frozenset(
    {"memory_error", "nvlink_error", "boot_failure", "never_boots", "preemption"}
    | {
        "launch_error",
        "lost_answer",
        "terminate_error",
        "fixed_capacity",
        "reported_quota",
        "list_error",
        "old_hardware",
        "other_rack",
        "repeated_facts",
        "flood",
        "wrong_answer",
        "second_machine",
    }
)
PLACED: Final = frozenset(
    {"no_capacity", "no_quota", "launch_error", "lost_answer", "preemption", "fixed_capacity"}
    | {"reported_quota"}
)
"""Faults that can be limited to a provider, region, zone, type or market."""
PLACE_KEYS: Final = ("provider", "region", "zone", "instance_type", "market")
PARAM_OF: Final[dict[str, frozenset[str]]] = {
    "xid_code": frozenset({"xid_error", "false_report"}),
    "job": frozenset({"xid_error"}),
    "temperature": frozenset({"temperature"}),
    "count": COUNTED,
    "stream": STORE_LOSSES | {"refused_writes"},
    "durable": frozenset({"durable_deleted", "durable_rolled_back"}),
    "share": frozenset({"lost_requests", "lost_answers", "lost_acks", "slow"}),
    "fixed_by": NODE_FAULTS
    - ANNOUNCED
    - {
        "network",
        "power_off",
        "stopped",
        "preemption",
        "retirement",
        "deleted",
        "hang",
        "flapping",
        "credentials_expired",
        "repeated_facts",
        "flood",
        "second_machine",
        "false_report",
    },
    **dict.fromkeys(PLACE_KEYS, PLACED),
}
"""Parameter -> the failures it applies to; the other parameters apply to all."""
OF_A_GPU: Final = frozenset({"xid_error", "temperature", "memory_error", "nvlink_error"})

SECTIONS: Final = frozenset(
    {"agent", "alerts", "budget", "defaults", "health_policy", "instance_types", "mode", "server"}
    | {"spend_cap"}
)
"""Sections of the configuration that `settings` may set; the simulation sets the rest."""

CommandType = Literal[
    "cordon",
    "uncordon",
    "drain",
    "terminate",
    "replace",
    "reset_gpu",
    "reboot",
    "hold",
    "release",
    "run_diagnostic",
]
NodeStatus = Literal[
    "provisioning",
    "active",
    "spare",
    "cordoned",
    "draining",
    "unhealthy",
    "lost",
    "terminated",
]
"""If several apply, the status is the last of them."""


class FleetNode(Setting, frozen=True, kw_only=True):
    """A node that the scenario names."""

    id: str
    pool: str = ""
    """One of `pools`; empty: the scenario's own pool, in which unhealthy nodes are not replaced."""
    provider: str = "fake"
    region: str = ""
    zone: str = ""
    rack: str = ""
    instance_type: str = "gpu_8x"
    gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8
    gpu_type: str = "NVIDIA H100 80GB HBM3"
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class NoParams(Setting, frozen=True, kw_only=True):
    """Declares that an action has no parameters."""


class Placed(Setting, frozen=True, kw_only=True):
    """Selects offerings; an empty key selects every value."""

    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    """The provider's name for it."""
    market: Market | Literal[""] = ""

    @property
    def place(self) -> OfferingSelector:
        """Return the parameters as a selector."""
        return OfferingSelector(**{key: getattr(self, key) for key in PLACE_KEYS})


class FailureParams(Placed, frozen=True, kw_only=True):
    """Holds the parameters of `inject_failure`: what fails, and for how long."""

    failure_type: FaultKind
    xid_code: Annotated[int, msgspec.Meta(ge=1, le=999)] = 79
    gpu_index: Annotated[int, msgspec.Meta(ge=0, le=63)] = 0
    message: Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)] = ""
    job: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The job whose process the kernel log line names: faults of one job form an incident."""
    temperature: Annotated[int, msgspec.Meta(ge=0, le=200)] = 96
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    """Of errors, failing cloud calls, or machines that the cloud takes."""
    duration: Duration | None = None
    """Then the failure ends by itself; absent: it lasts until `recover_failure`. Of `preemption`:
    until the cloud takes the node."""
    fixed_by: Literal["reset_gpu", "reboot", "replace"] = "reset_gpu"
    """The mildest remedy that fixes it; after a milder one the failure shows again."""
    share: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.5
    """Share of a service's calls that are lost; of `slow`: their longest delay in seconds."""
    stream: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The stream that refuses writes or is destroyed: `EVENTS`, `KV_HEALTH` …"""
    durable: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The durable of that stream that is destroyed."""

    def fault(self, target: str) -> InjectedFault:
        """The same as a fault to inject."""
        return InjectedFault(
            kind=self.failure_type,
            target=target,
            seconds=None if self.duration is None else float(self.duration),
            xid_code=self.xid_code,
            gpu_index=self.gpu_index,
            message=self.message,
            job=self.job,
            temperature=self.temperature,
            count=self.count,
            fixed_by=self.fixed_by,
            share=self.share if self.failure_type in PARAM_OF["share"] else 0.0,
            selector=self.place,
        )


class RecoverParams(Setting, frozen=True, kw_only=True):
    """Holds the parameters of `recover_failure`."""

    failure_type: FaultKind | Literal[""] = ""
    """Empty: every failure of the target."""


class CommandParams(Setting, frozen=True, kw_only=True):
    """Holds the parameters of `issue_command`: an operator's request about a node."""

    command_type: CommandType
    command_args: dict[str, Any] = msgspec.field(default_factory=dict)
    """As in the request of that name: `{timeout: 10m}` for drain."""
    reason: str = ""
    refused: bool = False
    """Whether a refusal is expected; otherwise a refusal fails the scenario."""


class RequestParams(Setting, frozen=True, kw_only=True):
    """Holds the parameters of `request`: an operator's request to a pool."""

    verb: str
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    refused: bool = False
    """As of a command."""


class LoadParams(Setting, frozen=True, kw_only=True):
    """Holds the parameters of `set_load`: GPU utilization of a pool or node, and a pool's queue."""

    utilization: Percent | None = None
    pending_jobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    queue_depth: Annotated[int, msgspec.Meta(ge=0)] | None = None
    jobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    """Of a node: what the workload system says that it runs."""


class WaitParams(Setting, frozen=True, kw_only=True):
    """Holds the parameters of `wait`."""

    duration: Duration = Duration(0)
    """After the event's `at`; absent: none."""


class LogParams(Setting, frozen=True, kw_only=True):
    """Holds the parameters of `log`."""

    message: Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]


class ExpectParams(Setting, frozen=True, kw_only=True):
    """Holds the parameters of `assert`, which checks once, and `wait_for_status`, which waits."""

    expected_status: NodeStatus | Literal[""] = ""
    expected_health: HealthStatus | Literal[""] = ""
    timeout: Duration = Duration(300)
    """Of `wait_for_status` only."""


Action = Literal[
    "start_fleet",
    "stop_fleet",
    "inject_failure",
    "recover_failure",
    "issue_command",
    "wait_for_status",
    "wait",
    "log",
    "assert",
    "request",
    "set_load",
]
PARAMS: Final[dict[str, type[Any]]] = {
    "start_fleet": NoParams,
    "stop_fleet": NoParams,
    "inject_failure": FailureParams,
    "recover_failure": RecoverParams,
    "issue_command": CommandParams,
    "wait_for_status": ExpectParams,
    "wait": WaitParams,
    "log": LogParams,
    "assert": ExpectParams,
    "request": RequestParams,
    "set_load": LoadParams,
}
"""Action -> the struct of its `params`."""
PARAM_ALIASES: Final[dict[str, str]] = {"log_message": "message"}


class EventText(Setting, frozen=True, kw_only=True):
    """An event as written in the file; its params are read by its action."""

    action: Action
    at: Duration | None = None
    """Absent: right after the previous event."""
    target: str = ""
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class Event(Setting, frozen=True, kw_only=True):
    """Describes a fault, a request, a wait or a check."""

    at: Duration
    action: Action
    target: str = ""
    params: Setting
    """A struct of PARAMS."""


AssertionType = Literal[
    "node_status",
    "health_status",
    "node_count",
    "instance_count",
    "launch_count",
    "desired",
    "dollars",
    "breaker",
    "advice",
    "saga_count",
    "event_count",
    "why",
    "job_wait",
]


class Assertion(Placed, frozen=True, kw_only=True):
    """Says what must hold: `expected`, or a count of `at_least` and `at_most`."""

    type: AssertionType
    at: Duration | None = None
    """When it is evaluated, after the events of that moment; absent: at the end."""
    target: str = ALL
    """A node, a pool, or `all`."""
    expected: str | int | None = None
    at_least: int | None = None
    at_most: int | None = None
    status: NodeStatus | Literal[""] = ""
    """Of `node_count`: only nodes with this status; empty: every node that is not terminated."""
    health: HealthStatus | Literal[""] = ""
    saga: SagaKind | Literal[""] = ""
    """Of `saga_count`: only this kind."""
    event: str = ""
    """Of `event_count`: the last token of the event's subject: `node-replaced`."""
    contains: str = ""
    """Of `why`: words that the answer contains."""
    message: str = ""
    """Printed instead of the assertion."""


COUNTS: Final[frozenset[str]] = frozenset(
    {"node_count", "instance_count", "launch_count", "desired", "dollars", "saga_count"}
    | {"event_count", "job_wait"}
)
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "node_status": NodeStatus.__args__,  # type: ignore[attr-defined]
    "health_status": HealthStatus.__args__,  # type: ignore[attr-defined]
    "breaker": BreakerState.__args__,  # type: ignore[attr-defined]
    "advice": ("followed", *LimitedBy.__args__),  # type: ignore[attr-defined]
}
"""Values that may be expected of an assertion that is not a count."""
ASSERTION_KEYS: Final[dict[str, frozenset[str]]] = {
    "status": frozenset({"node_count"}),
    "health": frozenset({"node_count"}),
    "saga": frozenset({"saga_count"}),
    "event": frozenset({"event_count"}),
    "contains": frozenset({"why"}),
    **dict.fromkeys(PLACE_KEYS, frozenset({"instance_count", "launch_count"})),
    "at_least": COUNTS,
    "at_most": COUNTS,
}
"""Key -> the assertions it applies to; the other keys apply to all."""


class Scenario(Setting, frozen=True, kw_only=True):
    """Holds a whole file without problems."""

    name: str
    description: str = ""
    file: str = ""
    seed: int = 1
    duration: Duration | None = None
    """Minimum time before the assertions; absent: until the last event."""
    replace_fatal: bool = False
    """Whether unhealthy nodes of the scenario's own fleet are replaced."""
    power_control: bool = False
    """Whether machines can be switched off and on, as by IPMI or Redfish."""
    fleet: tuple[FleetNode, ...] = ()
    own_pools: tuple[str, ...] = ()
    """Names of the pools of nodes that name no pool."""
    configuration: Settings = Settings()
    """The services' settings: the file's `pools` and `settings`, and the simulated plugins."""
    events: tuple[Event, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    stress: Any = None
    """The `stress` section's own struct."""
    is_original: bool = False
    """Whether it is in the words of the original's simulator, and means what it means there."""
    compat: Literal["", "original", "navarch"] = ""
    """original: in the words of the original's simulator, and a stress run without budget and
    breaker, which the original does not have. navarch: in ours, whatever its words are."""
    notes: tuple[str, ...] = ()
    """What a reader of the file may not expect, in sentences."""
