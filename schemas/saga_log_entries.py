"""A saga's log, on `navarch.v1.saga.<saga>.<step>.<status>`: the conversation *is* the state.

The coordinator appends `<step>.started`, which is the command the step's participant consumes; the
participant appends `<step>.succeeded` or `<step>.failed`. Every append is guarded by the last
sequence of the whole tree, so that of two writers one is refused and reads again.
"""

from typing import Any, Final, Literal

import msgspec

from schemas.launch_offers import Choice, Market
from schemas.messages import Codec, Message, UtcTime
from schemas.reasons import Action, DrainMode, SagaKind

WHOLE: Final = "saga"
"""The step token of entries about the saga as a whole."""


class SetupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run on a new node over SSH, and how to get there."""

    commands: tuple[str, ...]
    user: str
    private_key_path: str
    """On the provisioner's host; the key itself never travels."""
    port: int = 22
    sudo: bool = True
    address_seconds: float = 900.0
    login_seconds: float = 600.0
    connect_seconds: float = 30.0
    command_seconds: float = 600.0


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to launch, fixed when the saga starts: a changed pool spec does not reach into it."""

    fleet: str
    provider: str
    instance_type: str
    gpu_count: int = 0
    """0: not promised, so not checked at admission."""
    region: str = ""
    zones: tuple[str, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    setup: SetupSpec | None = None
    """None: the image brings the agent up by itself."""
    choice: Choice | None = None
    """Where it may be launched, and by what that is chosen; None: as `provider`, `instance_type`,
    `region` and `zones` say, in their order."""
    user_data: str = ""
    """`auto`, or a template's file on the provisioner's host; filled in as it is launched."""


class SagaParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a saga is about; every step's inputs are made of this and of earlier outputs."""

    pool: str
    node: str = ""
    """The node that leaves, or that is acted on."""
    new_node: str = ""
    """The node that comes."""
    spare: bool = False
    """The node that comes, or leaves, is one of the reserve."""
    promotes: str = ""
    """The spare that is put into service."""
    order: str = "terminate_first"
    reason: str = ""
    action: Action = "none"
    fault: str = ""
    """Id of the fault that led here; empty where a person asked."""
    by: str = ""
    fault_signature: str = ""
    """What the node has (`xid-95`, `silence`): attempts at curing it are counted by it."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs to reset; empty: all of the node's."""
    boot_id: str = ""
    """The boot that a reboot is to end."""
    restores_service: bool = False
    """The node was well and in service when somebody asked: unwinding gives it back."""
    sole_notice: str = ""
    """The cloud's notice, where the node is taken out of service for nothing else."""
    cleared_at: UtcTime | None = None
    """When somebody vouched for the node that it gives back; None: when the saga began."""
    attempt: int = 0
    """Which attempt at curing the node this is, of `attempts_max`."""
    attempts_max: int = 0
    launch: LaunchSpec | None = None
    drain: DrainMode = "deadline"
    drain_timeout_seconds: float = 3600.0
    launch_timeout_seconds: float = 1200.0
    diagnostic: str = ""
    """What a new node must pass before it is admitted; empty: nothing beyond its boot checks."""
    diagnostic_timeout_seconds: float = 900.0


class SagaEntry(Message, frozen=True, kw_only=True):
    """What every entry of a saga's log carries."""

    saga: str


class SagaStarted(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.started"):
    """First entry: the saga exists."""

    kind: SagaKind
    params: SagaParams


class SagaUnwinding(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.unwinding"):
    """No way forward: what was done is undone, last step first."""

    step: str
    reason: str
    cancelled: bool = False
    """Nothing failed: somebody asked for it; `cause` is the request."""
    then: str = ""
    """Id of the `uncordon` saga that follows once this one is unwound; empty: none follows."""


class SagaDone(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.done"):
    """Last entry of a saga that reached its end."""


class SagaUnwound(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.unwound"):
    """Last entry of a saga that was undone."""

    step: str = ""
    reason: str = ""


class SagaStuck(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.stuck"):
    """An undo failed; a person is needed."""

    step: str
    reason: str
    remedy: str = ""


class SagaRetried(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.retried"):
    """A person has mended what a stuck saga was stuck at: it goes on where it was."""

    step: str
    reason: str = ""


class StepEntry(SagaEntry, frozen=True, kw_only=True):
    """What every entry about one step carries."""

    step: str


class StepStarted(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_started"
):
    """The command: whoever takes part in this step performs it now."""

    inputs: dict[str, Any] = {}
    deadline: UtcTime | None = None
    """None: it may take as long as it takes."""
    overdue: UtcTime | None = None
    """When people are told that it still lasts."""


class StepOverdue(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_overdue"
):
    """The step lasts longer than it should; it is waited for all the same."""


class StepSucceeded(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_succeeded"
):
    """The step's action is in effect."""

    outputs: dict[str, Any] = {}


class StepFailed(StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_failed"):
    """The step's action cannot be brought about."""

    reason: str
    error: str = ""
    """An error kind, or a word of schemas.reasons."""


class StepExpired(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_expired"
):
    """The step's deadline passed; the definition says whether that fails it or lets it go on."""

    reason: str = ""
    """Why it was not waited for any longer, where it was not the deadline."""
    asked: bool = False
    """Somebody asked for it; `cause` is the request."""


class UndoStarted(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.undo_started"
):
    """The command to take a step's action back, whether or not it came into effect."""

    inputs: dict[str, Any] = {}


class UndoSucceeded(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.undo_succeeded"
):
    """The step's action is no longer in effect."""


class UndoFailed(StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.undo_failed"):
    """The step's action cannot be taken back."""

    reason: str
    remedy: str = ""


class TimerDue(Message, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.timer_due"):
    """A timer fired: a step's deadline, a pool's next try, a node's health to look at again."""

    saga: str = ""
    step: str = ""
    pool: str = ""
    node: str = ""


STATUSES: Final[dict[type[SagaEntry], str]] = {
    SagaStarted: "started",
    SagaUnwinding: "unwinding",
    SagaDone: "done",
    SagaUnwound: "unwound",
    SagaStuck: "stuck",
    SagaRetried: "retried",
    StepStarted: "started",
    StepOverdue: "overdue",
    StepSucceeded: "succeeded",
    StepFailed: "failed",
    StepExpired: "expired",
    UndoStarted: "undo-started",
    UndoSucceeded: "undo-succeeded",
    UndoFailed: "undo-failed",
}
"""The last token of each entry's subject."""

saga_codec = Codec(STATUSES)
timer_codec = Codec((TimerDue,))


# --- inputs and outputs of steps that cross from one service to another --------------------------


class NodeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """cordon, uncordon, drain: which node, and why."""

    pool: str
    node: str
    reason: str = ""
    wait: bool = True
    """drain: whether to wait until the work has left."""
    workload_notified: bool = False
    """drain: the workload system has been told already (`vacate`)."""


class VacateOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vacate: the workload system has taken the order to drain."""

    workload_notified: bool = True


class TerminateInputs(msgspec.Struct, frozen=True, kw_only=True):
    """terminate, and the undo of provision."""

    pool: str
    node: str
    reason: str = ""


class ProvisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """provision: the node's name is also the instance's, and the root of its token and tags."""

    pool: str
    node: str
    launch: LaunchSpec
    timeout_seconds: float = 1200.0


class ProvisionOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """provision: what the provider made of it."""

    provider: str
    provider_id: str
    region: str = ""
    zone: str = ""
    address: str = ""
    host: str = ""
    """The physical machine, where the provider tells."""
    instance_type: str = ""
    market: Market | Literal[""] = ""
    dollars_per_hour: float | None = None
    """None: not known, or nothing."""


class BootstrapInputs(msgspec.Struct, frozen=True, kw_only=True):
    """bootstrap: bring the agent onto the instance."""

    pool: str
    node: str


class ResetInputs(msgspec.Struct, frozen=True, kw_only=True):
    """reset: by the node's agent."""

    pool: str
    node: str
    gpus: tuple[str, ...] = ()
    """UUIDs; empty: all."""


class RebootInputs(msgspec.Struct, frozen=True, kw_only=True):
    """reboot: by the node's agent, else by its provider."""

    pool: str
    node: str
    boot_id: str = ""
    """The boot to end; once the node has another one there is nothing to do."""


class ActionOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """reset, reboot: who did it, when by that one's clock, and what was said."""

    by: str
    at: UtcTime | None = None
    detail: str = ""


class CheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """check: whether the node may have work, by tests that its agent runs."""

    pool: str
    node: str
    checks: tuple[str, ...] = ("boot",)
    level: int = 1
    """Of `dcgm`."""
    since: UtcTime | None = None
    """When its GPUs were reset, by its own clock: an unhealthy fault after that fails the check."""
    boot_id: str = ""
    """The boot that a reboot has begun: an unhealthy fault of it fails the check."""
    action: Action = "none"
    """What the node was mended for: where its verdict calls for more by now, the check fails."""


class CheckOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """check: what passed."""

    detail: str = ""
