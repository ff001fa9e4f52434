"""Declares what a fuzz campaign consists of: a drawn fleet, and the steps that happen to it.

Pure.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Literal

from services.simulator.engine.fault_kinds import CLOUD, FaultKind, InjectedFault
from services.simulator.engine.listed_ids import ANSWERS, SPELLINGS

ZONES: Final = ("zone-a", "zone-b")
OperatorVerb = Literal[
    "scale",
    "replace",
    "drain",
    "cordon",
    "hold",
    "cancel",
    "breaker",
    "resize-group",
    "relabel",
    "stop",
    "stop-running",
    "queue",
]
Withdrawal = Literal["", "withdrawn", "withdrawn-broken"]
CONTROLLER_SHARE: Final = 0.2
GANG_SHARE: Final = 0.25
ADOPTED_SHARE: Final = 0.2
GPU_CORDON_SHARE: Final = 0.2
TOGETHER_SHARE: Final = 0.25
EXPIRY_SHARE: Final = 0.15
DRIFT_SHARE: Final = 0.1
MIXED_SHARE: Final = 0.2
IDLE_SHARE: Final = 0.3
INTERRUPTION_SHARE: Final = 0.15
CONSOLIDATION_SHARE: Final = 0.1
RACK_SHARE: Final = 0.1
QUEUE_SHARE: Final = 0.2
"""Of the fleets without anything else that is special, as the next."""
SILENCE_SHARE: Final = 0.2
INCIDENT_NODES: Final = 5
"""Of which half of a larger fleet is an incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """Describes a request of an operator."""

    verb: OperatorVerb
    nodes: int = 0
    seconds: float = 0.0
    """Until a cordon is lifted, a breaker closed, or a hold or a stop ends."""

    def __str__(self) -> str:
        """Write `the operator requests hold for 20.0 s`."""
        if self.verb == "queue":
            return f"{self.nodes} jobs wait that never start"
        nodes = f" to {self.nodes} nodes" if self.nodes else ""
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"the operator requests {self.verb}{nodes}{lasts}"


@dataclass(frozen=True, slots=True)
class CampaignStep:
    """One fault or request; its node is drawn when it happens."""

    at: float
    """Seconds after the start of the campaign."""
    action: InjectedFault | OperatorAction
    withdrawal: Withdrawal = ""
    """Of what the cloud announces: withdrawn halfway; `-broken`: after the machine failed."""

    def __str__(self) -> str:
        """Write `12.3 s: network pool-manager for 4.0 s`."""
        return f"{self.at:.1f} s: {self.action} {self.withdrawal}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """Describes the size and settings of a fleet."""

    nodes: int
    order: Literal["terminate_first", "provision_first"]
    max_unavailable: int
    max_replacements: int
    """Within the window; 0: unlimited."""
    replicas: int
    idempotent: bool
    list_lag_seconds: float
    remediation: Literal["replace", "ladder"]
    spares: int = 0
    """Spare nodes."""
    reboots: bool = False
    """Whether the cloud can reboot a machine whose agent is gone."""
    restarts_cold: bool = False
    """Whether the cloud can switch machines off and on."""
    skew_seconds: float = 0.0
    """How wrong the clocks of services and machines can be, either way."""
    gangs: bool = False
    """Whether jobs have several nodes."""
    adopted: Literal["", "act", "observe"] = ""
    """The mode of a pool whose machines others make; empty: Navarch launches them."""
    reuses_names: bool = False
    """Whether those others give a machine the name of one that is gone."""
    together: bool = False
    """Whether its nodes must be in one of two zones."""
    rack_nodes: int = 0
    """Nodes of a rack, where racks are units; 0: they are not."""
    cordons_gpus: bool = False
    """Whether the workload system can keep work off single GPUs, and does."""
    expire_after_seconds: float = 0.0
    """How old a node may become; 0: of any age."""
    on_demand_min: int = 0
    """Nodes that must not be spot; 0: none is spot."""
    idle_after_seconds: float = 0.0
    """How long a node may be without work; 0: without an end."""
    interruption_seconds: float = 0.0
    """After how long a spot instance that was taken away counts half; 0: it never counts."""
    consolidates: bool = False
    """Whether nodes that fell back to on-demand are replaced by spot nodes."""
    drift: bool = False
    """Whether nodes that were launched with other labels are replaced."""
    queue: bool = False
    """Whether the pool grows for jobs that wait; they wait for something else than nodes."""
    silence: bool = False
    """Whether half of the nodes lose power, and run by the cloud's word."""

    @property
    def is_plain(self) -> bool:
        """Return whether the fleet has nothing that only some fleets have."""
        special = (self.adopted, self.gangs, self.together, self.rack_nodes, self.cordons_gpus)
        changes = (self.idle_after_seconds, self.interruption_seconds, self.expire_after_seconds)
        others = (self.on_demand_min, self.consolidates, self.drift, self.queue, self.silence)
        return not any((*special, *changes, *others))


@dataclass(frozen=True, slots=True)
class Campaign:
    """A fleet, and the steps that happen to it."""

    shape: FleetShape
    steps: tuple[CampaignStep, ...]
    seconds: float


def draw_shape(seed: str, chance: Random) -> FleetShape:
    """Draw a fleet; `chance` goes on to draw the steps.

    What was added later is drawn apart from the rest, so that older seeds keep their fleets.
    """
    shape = FleetShape(
        nodes=chance.randint(2, 6),
        order=chance.choice(("terminate_first", "provision_first")),
        max_unavailable=chance.randint(1, 2),
        max_replacements=chance.choice((0, 3, 5)),
        replicas=chance.choice((1, 1, 2)),
        idempotent=chance.random() < 1 / 2,
        list_lag_seconds=chance.choice((0.0, 0.0, 5.0)),
        remediation=chance.choice(("replace", "replace", "ladder")),
        spares=chance.choice((0, 0, 1, 2)),
        reboots=chance.random() < 1 / 2,
        skew_seconds=chance.choice((0.0, 2.0, 60.0)),
        restarts_cold=Random(f"{seed}/controllers").random() < CONTROLLER_SHARE,  # noqa: S311
    )
    shape = _with_gangs(Random(f"{seed}/gangs"), shape)  # noqa: S311
    shape = _adopting(Random(f"{seed}/adopted"), shape)  # noqa: S311
    shape = _cordoning_gpus(Random(f"{seed}/gpu-cordons"), shape)  # noqa: S311
    shape = _together(Random(f"{seed}/together"), shape)  # noqa: S311
    shape = _expiring(Random(f"{seed}/expiry"), shape)  # noqa: S311
    shape = _mixed(Random(f"{seed}/mixed"), shape)  # noqa: S311
    shape = _interrupted(Random(f"{seed}/interruptions"), shape)  # noqa: S311
    shape = _consolidating(Random(f"{seed}/consolidation"), shape)  # noqa: S311
    shape = _idle(Random(f"{seed}/idle"), shape)  # noqa: S311
    shape = replace(shape, drift=Random(f"{seed}/drift").random() < DRIFT_SHARE)  # noqa: S311
    shape = _in_racks(Random(f"{seed}/rack shape"), shape)  # noqa: S311
    shape = _queueing(Random(f"{seed}/queue of jobs"), shape)  # noqa: S311
    return _falling_silent(Random(f"{seed}/silence"), shape)  # noqa: S311


def _with_gangs(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, jobs of several nodes; drawn apart from the others."""
    if chance.random() >= GANG_SHARE:
        return shape
    return replace(shape, gangs=True, nodes=chance.randint(3, 8))


def _adopting(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, machines that others make; drawn apart from the others."""
    if chance.random() >= ADOPTED_SHARE:
        return shape
    return replace(
        shape,
        adopted=chance.choice(("act", "act", "observe")),
        reuses_names=chance.random() < 1 / 2,
        spares=0,
        reboots=False,
        list_lag_seconds=0.0,
    )


def _cordoning_gpus(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, cordons of single GPUs; drawn apart from the others."""
    if chance.random() >= GPU_CORDON_SHARE:
        return shape
    return replace(shape, cordons_gpus=True)


def _together(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, nodes that must be in one zone; drawn apart from the others."""
    if chance.random() >= TOGETHER_SHARE or shape.adopted:
        return shape
    return replace(shape, together=True)


def _mixed(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, spot nodes beside those that must not be; drawn apart from the others."""
    if chance.random() >= MIXED_SHARE or shape.adopted or shape.together or shape.spares:
        return shape
    return replace(shape, on_demand_min=chance.randint(1, shape.nodes))


def _interrupted(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, spot nodes in two zones; drawn apart from the others."""
    if chance.random() >= INTERRUPTION_SHARE or shape.adopted or shape.together:
        return shape
    return replace(shape, interruption_seconds=chance.uniform(60, 300))


def _consolidating(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, dear nodes are replaced; drawn apart from the others."""
    barred = shape.adopted or shape.together or shape.spares or shape.gangs
    if chance.random() >= CONSOLIDATION_SHARE or barred:
        return shape
    return replace(shape, consolidates=True)


def _idle(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns with jobs, nodes leave that have none; drawn apart from the others."""
    if chance.random() >= IDLE_SHARE or not shape.gangs or shape.adopted:
        return shape
    return replace(shape, idle_after_seconds=chance.uniform(100, 200))


def _in_racks(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, racks as units; drawn apart from the others."""
    if chance.random() >= RACK_SHARE or shape.adopted:
        return shape
    size = chance.randint(2, 3)
    return replace(
        shape,
        rack_nodes=size,
        nodes=size * chance.randint(2, 4),
        order="terminate_first",
        together=True,
        spares=0,
        gangs=False,
        on_demand_min=0,
        idle_after_seconds=0.0,
        interruption_seconds=0.0,
        consolidates=False,
        expire_after_seconds=0.0,
    )


def _queueing(chance: Random, shape: FleetShape) -> FleetShape:
    """In some plain campaigns, an autoscaler and jobs that never start."""
    return replace(shape, queue=shape.is_plain and chance.random() < QUEUE_SHARE)


def _falling_silent(chance: Random, shape: FleetShape) -> FleetShape:
    """In some plain campaigns, a fleet of which half is an incident, without a rate."""
    if not shape.is_plain or chance.random() >= SILENCE_SHARE:
        return shape
    nodes = 2 * INCIDENT_NODES + chance.randint(0, 2)
    return replace(shape, silence=True, nodes=nodes, spares=0, max_replacements=0)


def _expiring(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, nodes that are replaced for their age; drawn apart from the others."""
    if chance.random() >= EXPIRY_SHARE:
        return shape
    # All of them, one after the other, in less than that: else a fleet never is at rest.
    each = chance.uniform(120, 180) if shape.gangs else chance.uniform(50, 80)
    nodes = shape.nodes + shape.spares
    if shape.adopted:  # its group may grow by two, and a successor of other names be waited for
        each, nodes = each + 90, nodes + 2
    return replace(shape, expire_after_seconds=max(200.0, each * nodes))


def wrong_ids(chance: Random) -> InjectedFault:
    """Draw a cloud whose lists or answers name machines by other IDs."""
    kind: FaultKind = chance.choice(("respelled_ids", "wrong_answer", "listed_twice"))
    which = chance.choice(ANSWERS if kind == "wrong_answer" else SPELLINGS)
    seconds = chance.uniform(30, 180)
    return InjectedFault(kind=kind, target=CLOUD, seconds=seconds, message=which)


def made_fault(kind: Any, target: str = "", **about: Any) -> InjectedFault:
    """Make the fault of a step."""
    return InjectedFault(kind=kind, target=target, **about)
