"""The interface of notifiers: plugins that cordon and drain in a workload system.

A notifier carries out the steps of sagas; it never decides which node, when or why. A plugin is a
class with an inner msgspec struct `Options`, constructed with `options=` and `clock=`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

import msgspec

from schemas.enums import DrainMode
from schemas.value_limits import UtcTime
from schemas.workload_checks import WorkloadCheck
from services.saga.participant import StepFailure


class NodeReference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as Navarch knows it; `node_name.py` maps it to the workload system's name."""

    pool: str
    node: str
    """Also the name of its instance."""
    hostname: str = ""
    """As its agent registered it; empty before that."""
    address: str = ""
    provider: str = ""
    provider_id: str = ""
    labels: dict[str, str] = {}
    """The pool's labels when the node was launched."""
    lost: bool = False
    """Its heartbeats stopped: it may be dead, and its work with it."""
    gone: bool = False
    """Its provider reports that the instance no longer exists."""
    faulty_gpus: tuple[int, ...] = ()
    """Indices of the GPUs that are not healthy; empty: the whole node, or unknown."""
    taken_at: UtcTime | None = None
    """When its cloud takes it, as announced and not withdrawn."""
    called_back: bool = False
    """A workload system has called back: the work that the drain waits for has left."""


class GpuReference(msgspec.Struct, frozen=True, kw_only=True):
    """Names a GPU of a node."""

    index: int
    uuid: str = ""
    """Empty: its agent has not reported it."""


class WorkloadOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One cordon, uncordon, drain or eviction, or one `cordon_gpus`."""

    node: NodeReference
    reason: str = ""
    key: str
    """`<saga>/<step>`: the same whenever the order is repeated."""
    deadline: datetime | None = None
    """drain: when work that is left is evicted, or its cloud takes the node, if that is earlier;
    None: never, it may take as long as it needs."""
    urgency: DrainMode | None = None
    """drain: whether it has until the deadline, waits for as long as the work needs (`wait`), or
    the node leaves as soon as the order is given (`immediate`)."""
    gpus: tuple[GpuReference, ...] = ()
    """cordon_gpus: all GPUs of the node that are to get no new work; none: all may."""

    @property
    def saga(self) -> str:
        """The saga whose step it is."""
        return self.key.partition("/")[0]


class RunningWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job, pod or actor that runs on a node."""

    id: str
    name: str = ""
    owner: str = ""
    started_at: UtcTime | None = None
    """Since when it has run, this time."""
    ends_at: UtcTime | None = None
    """When the workload system will end it, by its time limit."""
    checkpoint_at: UtcTime | None = None
    """When its next checkpoint is written, as it announces: it may be ended then. It is read in the
    answer of `checkpoint`. None: it announces none."""
    gang: str = ""
    """The job that has several nodes, whose parts stop together; empty: this node alone."""


class NodeWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what a workload system says about one node."""

    drained: bool
    """No work is left and none will be placed: the node may be terminated."""
    running: tuple[RunningWork, ...] = ()
    """At most RUNNING_MAX."""
    total: int = 0
    """Number of jobs that run, those beyond `running` included."""
    unsure: bool = False
    """What runs is not known yet, or something is left that is no job: the node is not idle."""
    detail: str = ""
    """What the system adds, in its own words."""


class PartlyAnsweredError(Exception):
    """One of several workload systems did not answer, so no drain is over."""

    def __init__(self, reason: str, answers: "Mapping[str, WorkloadAnswer]") -> None:
        """`answers`: what the others say."""
        super().__init__(reason)
        self.answers = answers


WorkloadAnswer = NodeWorkload | StepFailure
"""StepFailure: the system refuses to say, so the node's drain fails."""
RUNNING_MAX: Final = 20
"""Jobs reported of one node."""


@runtime_checkable
class Notifier(Protocol):
    """Declares the orders that a workload system must carry out.

    Every order must be idempotent: a replica that is killed before it stores the result repeats it
    with the same `key`. Cordoning a cordoned node, uncordoning one that is not cordoned, and
    draining a draining or empty node succeed and change nothing. The node may be dead, terminated
    or unknown to the workload system by then, so an order must not need the node itself.

    A call returns when the workload system has accepted the order, not when the work has left. It
    raises StepFailure if a retry cannot succeed; any other exception is retried until the step's
    deadline, which cancels the running call.
    """

    @property
    def name(self) -> str:
        """The name in logs."""

    @property
    def confirms_drains(self) -> bool:
        """Return whether `workloads` reports what the workload system said.

        If not, it is never called: a drain ends when it is ordered, and its event says that
        nothing confirmed it.
        """

    @property
    def batches(self) -> bool:
        """Return whether one call of `workloads` asks about all nodes at the cost of one.

        If not, it is called for each node by itself, so that none waits for another's answer.
        """

    @property
    def poll_seconds(self) -> float:
        """Interval between two calls of `workloads` while drains are open."""

    async def cordon(self, order: WorkloadOrder) -> None:
        """Stop placing new work on the node; running work continues."""

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Allow new work on the node again, if it was Navarch that cordoned it."""

    async def drain(self, order: WorkloadOrder) -> None:
        """Place no new work and ask the running work to leave by `order.deadline`."""

    async def evict(self, order: WorkloadOrder) -> None:
        """End the work that is left, requeued where the system can: the deadline has come."""

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Return what runs on each of these nodes, by `node`, in as few requests as possible.

        A node that the workload system does not know is drained. One that is missing from the
        answer is asked about again.
        """

    async def wait_for_change(self) -> None:
        """Return when work may have ended; a system that does not report it never returns."""

    async def close(self) -> None:
        """Close all connections."""


class FailedWork(msgspec.Struct, frozen=True, kw_only=True):
    """A job or pod that failed on a node."""

    id: str
    owner: str = ""
    reason: str = ""
    at: datetime
    """When it failed."""


class WorkloadNodeState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a workload system says of a node itself."""

    ready: bool = True
    """False: it cannot use the node (Kubernetes NotReady, Slurm DOWN)."""
    cordoned: bool = False
    """Another than Navarch has cordoned it: `uncordon` must leave it so."""
    reason: str = ""
    """In the system's own words."""
    since: datetime | None = None
    """Since when it is so, where the system says it."""
    failed: tuple[FailedWork, ...] = ()
    """What failed on the node lately, oldest first; at most FAILED_MAX. It may be repeated."""


FAILED_MAX: Final = 20
"""Failed jobs reported of one node at once."""


@runtime_checkable
class NodeStateReporter(Notifier, Protocol):
    """Declares what a notifier has besides if its workload system reports on nodes unasked."""

    async def node_states(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadNodeState]:
        """Return what the system says of these nodes, by `node`; unknown ones are missing.

        It is called every few seconds for every node of the pools, so it answers from memory or
        with one request, and changes nothing.
        """

    async def wait_for_node_change(self) -> None:
        """Return when a node's state may have changed; a system that cannot say never returns."""


@runtime_checkable
class RunningWorkReporter(Protocol):
    """Declares what a notifier has besides if `workloads` covers nodes that are in service."""

    @property
    def reports_running(self) -> bool:
        """Return whether `workloads` covers nodes in service; else no node counts as idle."""


@runtime_checkable
class CheckpointingNotifier(Protocol):
    """Declares what a notifier has besides if it can ask running work for a checkpoint."""

    async def checkpoint(self, order: WorkloadOrder) -> Sequence[RunningWork]:
        """Ask the work on the node to save itself and leave by `order.deadline`; end nothing.

        The answer is what was asked, one entry for the whole node where the system names no work.
        Work that only announces its next checkpoint is not asked, and is part of the answer. Where
        that is empty the drain goes on at once. An order that is repeated with the same `key`, or
        about another node of the same job, should not ask the job twice.
        """


class OwnerNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says whether one owner of work heard of a drain."""

    owner: str
    work: tuple[str, ...] = ()
    """The IDs of the owner's jobs or pods that the message names."""
    failure: str = ""
    """Why the owner did not hear of it; empty: the workload system took the message."""


@runtime_checkable
class OwnerNotifier(Protocol):
    """Declares what a notifier has besides if it can send a message to the owners of work."""

    @property
    def notifies_owners(self) -> bool:
        """Return whether it is configured to; else `notify_owners` is never called."""

    async def notify_owners(self, order: WorkloadOrder) -> Sequence[OwnerNotice]:
        """Send each owner of work on the node one message: why, by when, and what happens then.

        It is called once for each drain with a deadline, at its beginning, and is not repeated.
        The drain waits neither for it nor for its success. `disruption_text` is the message.
        """


@runtime_checkable
class GpuCordoningNotifier(Protocol):
    """Declares what a notifier has besides if its system can keep work off single GPUs.

    Without it nodes are cordoned whole.
    """

    async def cordon_gpus(self, order: WorkloadOrder) -> None:
        """Place nothing new on `order.gpus`, and allow it on the node's other GPUs.

        Running work continues. It is the whole set: GPUs of earlier orders that are missing are
        free again, as far as Navarch is concerned. A cordon of the node is another matter.
        """


def refuse_unset(setting: str, order: WorkloadOrder) -> None:
    """Refuse to cordon GPUs without a notifier's setting for it; there is nothing to lift then."""
    if order.gpus:
        raise StepFailure(f"`{setting}` is not set", "INVALID", "set it in the pool's notifier")


def read_announcement(text: str) -> datetime | None:
    """Return a checkpoint's time, `2026-11-23T09:30:00Z`; None: not one with a time zone. Pure."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


@runtime_checkable
class SelfCheckingNotifier(Protocol):
    """Declares what a notifier has besides if `navarch workload check` can ask it for more."""

    async def self_check(self) -> Sequence[WorkloadCheck]:
        """Connect, and say what it sees and which rights it lacks, without changing anything.

        Raises what an order would raise where it cannot connect.
        """


@runtime_checkable
class NodeListNotifier(Protocol):
    """Declares what a notifier has besides if its workload system has an entry for each node.

    Every call may be repeated, and come late: the system is asked first.
    """

    async def node_registered(self, node: NodeReference) -> None:
        """Take over its address: its agent has registered."""

    async def node_admitted(self, node: NodeReference) -> None:
        """Let work on it, unless another than Navarch keeps it off."""

    async def node_gone(self, node: NodeReference) -> None:
        """Make its entry that of no machine: it is terminated, and its name is not wanted."""

    async def launch_failed(self, node: NodeReference, reason: str, saga: str) -> None:
        """Have the work that waits for it wait no longer."""


@runtime_checkable
class OrderCheckingNotifier(Protocol):
    """A notifier whose cordon cannot be undone: `navarch workload check --node` orders none."""

    async def check_order(self, order: WorkloadOrder) -> Sequence[WorkloadCheck]:
        """Check what can be known about a cordon without giving it."""


__all__ = [
    "FAILED_MAX",
    "RUNNING_MAX",
    "CheckpointingNotifier",
    "FailedWork",
    "GpuCordoningNotifier",
    "GpuReference",
    "NodeListNotifier",
    "NodeReference",
    "NodeStateReporter",
    "NodeWorkload",
    "Notifier",
    "OrderCheckingNotifier",
    "OwnerNotice",
    "OwnerNotifier",
    "PartlyAnsweredError",
    "RunningWork",
    "SelfCheckingNotifier",
    "StepFailure",
    "WorkloadAnswer",
    "WorkloadCheck",
    "WorkloadNodeState",
    "WorkloadOrder",
    "read_announcement",
]
