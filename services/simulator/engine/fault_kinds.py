"""Every fault that can be injected into a simulated fleet, and what each applies to. Pure.

Fuzz campaigns, scenarios and stress runs use these kinds and no others.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from schemas.enums import ProviderErrorKind
from services.simulator.engine.offering_selector import ANYWHERE, OfferingSelector
from services.simulator.engine.simulated_cloud import Effect

ALL: Final = "all"
HALF: Final = "half"
JOB: Final = "job"
"""Of fuzz campaigns alone, as is the next."""
RACK: Final = "rack"
BROKER: Final = "broker"
CLOUD: Final = "cloud"
WORKLOAD: Final = "workload"
SERVICES: Final = ("health-monitor", "pool-manager", "provisioner", "notifier")

HardwareFault = Literal[
    "xid_error",
    "temperature",
    "memory_error",
    "nvlink_error",
    "backend_error",
    "boot_failure",
    "network",
]
AnnouncedFault = Literal["announced_reboot", "announced_redeploy", "announced_pause"]
NodeFault = Literal[
    HardwareFault,
    AnnouncedFault,
    "power_off",
    "stopped",
    "preemption",
    "retirement",
    "deleted",
    "hang",
    "credentials_expired",
    "flapping",
    "repeated_facts",
    "false_report",
    "flood",
    "second_machine",
]
"""power_off: the machine is dead and its instance still exists; stopped: the same, and the cloud
lists it as stopped; preemption: the cloud announces that it takes the node; retirement: the same,
days ahead; announced_reboot, announced_redeploy, announced_pause: it announces that it reboots the
node `seconds` later, moves it to another host, which takes longer, or stops it for a while, and
does; deleted: an operator deletes its instance at the cloud; hang: its agent stops for a
while; credentials_expired: its credentials expire soon, and are renewed `seconds`
later; flapping: it stops `count` times, and beats in between; repeated_facts: its agent
publishes its last facts again, in any order; false_report: its kernel log shows an XID, and nothing
is broken; flood: its agent publishes `count` facts within `seconds`, all different, and garbage
among them; second_machine: another machine registers `count` times under its ID."""
CloudFault = Literal[
    "no_capacity",
    "no_quota",
    "launch_error",
    "lost_answer",
    "launch_cut_off",
    "terminate_error",
    "slow_removal",
    "lying_removal",
    "fixed_capacity",
    "reported_quota",
    "list_error",
    "never_boots",
    "boot_failure",
    "old_hardware",
    "other_rack",
    "preemption",
    "respelled_ids",
    "listed_twice",
    "empty_list",
    "wrong_answer",
]
"""respelled_ids: lists show machines under other IDs (`message`: case, form, unknown, swapped);
listed_twice: they show each twice; empty_list: they succeed and show nothing; wrong_answer: the
next `count` launches are answered with an ID that no machine has, or another one's (`message`:
unknown, borrowed); lost_answer: a launch takes effect and its answer is lost; launch_cut_off:
the replica that launches loses its connection until the launch takes effect; slow_removal:
machines that are being removed stay so until it ends; lying_removal: removals are answered, and
their machines go on until it ends, in lists as well unless `message` is unlisted; fixed_capacity:
the cloud has `count` machines, and those that are being removed count; reported_quota: the account
may have `count` machines, which the cloud reports, and it refuses more; never_boots: the next
machines never boot; boot_failure: their boot checks fail; old_hardware: they have the hardware that
was terminated last; other_rack: they are in racks of their own; preemption: the cloud announces
that it takes some of its machines."""
WorkloadFault = Literal[
    "network",
    "endless_drain",
    "no_drain_status",
    "slow_orders",
    "refused_orders",
    "late_work",
    "returning_work",
]
"""no_drain_status: orders are accepted, and whether a node is drained is not answered; slow_orders:
each call takes up to half a minute; refused_orders: cordons and drains are refused for good;
late_work: work leaves only when it is evicted; returning_work: work that has left comes back once.
"""
ServiceFault = Literal[
    "crash",
    "stall",
    "freeze",
    "network",
    "lost_requests",
    "lost_answers",
    "lost_acks",
    "slow",
    "fatal_message",
]
"""fatal_message: the next message that the service handles ends every process that handles it;
stall: the process makes no call and gets no answer for a while, and loses its leases; freeze:
the same to all that it does, timers included, from between any two awaits on, after it has written
a lease; slow:
`share` is the longest delay of each call, in seconds."""
StoreLoss = Literal[
    "stream_deleted",
    "stream_purged",
    "stream_rolled_back",
    "stream_shortened",
    "durable_deleted",
    "durable_rolled_back",
]
"""stream_rolled_back: `stream` is backed up now, and restored after `seconds`;
stream_shortened: after `seconds` the server restarts without what was stored since now, as after a
power cut; durable_rolled_back: a `durable` of `stream` forgets what it delivered in `seconds`."""
WholeStoreLoss = Literal["store_rolled_back", "store_restored"]
BrokerFault = Literal["network", "restart", "refused_writes", WholeStoreLoss, StoreLoss]
"""restart: what the server keeps in memory is lost, and no connection works meanwhile;
refused_writes: `stream` takes no message, as on a full disk; what it holds can be read;
store_rolled_back: everything is backed up now, and restored after `seconds` while the services run;
store_restored: the services are stopped meanwhile."""
FaultKind = Literal[NodeFault, CloudFault, WorkloadFault, ServiceFault, BrokerFault]

NODE_FAULTS: Final[frozenset[str]] = frozenset(get_args(NodeFault))
ANNOUNCED: Final[frozenset[str]] = frozenset(get_args(AnnouncedFault))
STORE_LOSSES: Final[frozenset[str]] = frozenset(get_args(StoreLoss))
WHOLE_STORE: Final[frozenset[str]] = frozenset(get_args(WholeStoreLoss))
CLOUD_FAULTS: Final[frozenset[str]] = frozenset(get_args(CloudFault))
FAULTS_OF: Final[dict[str, frozenset[str]]] = {
    BROKER: STORE_LOSSES | WHOLE_STORE | {"network", "restart", "refused_writes"},
    CLOUD: CLOUD_FAULTS,
    WORKLOAD: frozenset(get_args(WorkloadFault)),
    **dict.fromkeys(SERVICES, frozenset(get_args(ServiceFault))),
}
"""Target that is not a node -> the faults that apply to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """Describes one fault, and its target."""

    kind: FaultKind
    target: str = ""
    """A node, `all` nodes, every second one (`half`), `count` nodes of one `job`, or a key of
    FAULTS_OF."""
    seconds: float | None = None
    """How long it lasts; None: until it is recovered. Of what the cloud announces: until it does
    that; of `crash`: until the service is restarted."""
    xid_code: int = 79
    gpu_index: int = 0
    message: str = ""
    job: str = ""
    temperature: int = 96
    count: int = 1
    """Of errors, failing calls, machines, facts or silences."""
    fixed_by: str = "reset_gpu"
    """The mildest remedy that fixes it."""
    momentary: bool = False
    """It is reported once, and the hardware stays intact."""
    error: ProviderErrorKind = "TRANSIENT"
    effect: Effect = "before"
    """Whether a failing call takes effect. Of `freeze`: after, where the first replica with the
    lease freezes, once that call is answered and before its caller knows."""
    share: float = 0.0
    """Of the calls of a connection that are lost."""
    stream: str = ""
    """Of `refused_writes`, and of what is lost of a store."""
    durable: str = ""
    after_effects: int = 0
    """Of `crash` and `stall`: it occurs after so many effects; 0: at once. Of `freeze`: in which
    of the process's next calls."""
    lease: str = ""
    """Of `freeze`: how the name of the lease begins."""
    selector: OfferingSelector = ANYWHERE

    def __str__(self) -> str:
        """Write `cut pool-manager for 4.0 s`."""
        code = str(self.xid_code) if self.kind == "xid_error" else ""
        parts = [
            self.kind,
            code,
            self.target,
            self.stream,
            self.durable,
            "once" if self.momentary else "",
        ]
        parts.append(f"{self.effect} its effect" if self.effect != "before" else "")
        parts.append(f"x{self.count}" if self.count > 1 else "")
        parts.append(f"{self.share:.2f}" if self.share else "")
        unit = "calls" if self.kind == "freeze" else "effects"
        parts.append(f"after {self.after_effects} {unit}" if self.after_effects else "")
        parts.append(f"with lease {self.lease}" if self.lease else "")
        parts.append(f"for {self.seconds:.1f} s" if self.seconds else "")
        return " ".join(part for part in parts if part)
