"""What a fuzz campaign consists of: a fleet, and the steps that happen to it. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

from services.simulator.engine.fault_kinds import InjectedFault

ZONES: Final = ("zone-a", "zone-b")
OperatorVerb = Literal[
    "scale", "replace", "drain", "cordon", "hold", "cancel", "breaker", "resize-group", "relabel"
]
Withdrawal = Literal["", "withdrawn", "withdrawn-broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """A request of an operator."""

    verb: OperatorVerb
    nodes: int = 0
    seconds: float = 0.0
    """Until a cordon is lifted, a breaker closed, or a hold ends."""

    def __str__(self) -> str:
        """Write `the operator requests hold for 20.0 s`."""
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
    """The size and settings of a fleet."""

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


@dataclass(frozen=True, slots=True)
class Campaign:
    """A fleet, and the steps that happen to it."""

    shape: FleetShape
    steps: tuple[CampaignStep, ...]
    seconds: float
