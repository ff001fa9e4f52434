"""What goes wrong in one simulation: drawn from the seed, and nothing but values. Pure.

A campaign is a list, so that a smaller one can be tried: leave some blows out, and see whether the
violation is still there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

SERVICES: Final = ("health-monitor", "pool-manager", "provisioner", "notifier")
EVERYBODY: Final = "*"
REMEDIES: Final = ("reset_gpu", "reboot", "replace")
"""What helps against a fault, the gentlest first."""
FATAL: Final = (79, 79, 79, 48, 95)
MILD: Final = (13, 43, 63)

REPEATS_MAX: Final = 16

NEAR_SHARE: Final = 0.5
NEAR_SECONDS: Final = 30.0

MachineSpec = Literal[
    "fault",
    "mild-fault",
    "kill",
    "kill-after-effects",
    "cut",
    "lost-requests",
    "lost-answers",
    "lost-acks",
    "slow",
    "launch-fails",
    "launch-cut-off",
    "no-capacity",
    "terminate-fails",
    "list-fails",
    "stillborn",
    "faulty",
    "power-off",
    "vanish",
    "hang",
    "false-fault",
    "repeats",
    "workload-away",
    "endless-drain",
    "notice",
    "scale",
    "replace",
    "drain",
    "cordon",
    "hold",
    "cancel",
    "breaker",
]


ALWAYS: Final[tuple[MachineSpec, ...]] = ("fault", "kill", "kill-after-effects")
"""Drawn in every run, whatever else is."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One thing that goes wrong, or that a person does."""

    at: float
    """Seconds after the campaign's beginning."""
    kind: MachineSpec
    target: str = ""
    """A service, or everybody."""
    number: int = 0
    """Which node, which effect, which code: as the kind needs it."""
    seconds: float = 0.0
    share: float = 0.0
    how: str = ""

    def __str__(self) -> str:
        """Write `12.3 s: cut pool-manager for 4.0 s`."""
        parts = [f"{self.at:.1f} s: {self.kind}", self.how, self.target]
        parts.append(f"#{self.number}" if self.number else "")
        parts.append(f"{self.share:.0%}" if self.share else "")
        parts.append(f"for {self.seconds:.1f} s" if self.seconds else "")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """What kind of fleet."""

    nodes: int
    order: Literal["terminate_first", "provision_first"]
    max_unavailable: int
    max_replacements: int
    """Within the window; 0: no bound."""
    replicas: int
    idempotent: bool
    list_lag_seconds: float
    remediation: Literal["replace", "ladder"]
    spares: int = 0
    """Nodes kept in reserve."""
    reboots: bool = False
    """Whether the cloud can reboot a machine whose agent is gone."""
    skew_seconds: float = 0.0
    """Each service's and each machine's clock is wrong by up to so much, either way."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A fleet and what befalls it."""

    shape: FleetShape
    blows: tuple[InjectedFault, ...]
    seconds: float


def draw(seed: str, minutes: float) -> Campaign:
    """Draw a fleet, and blows over so many minutes."""
    chance = Random(f"{seed}/campaign")  # noqa: S311 - repeatable is the point
    nodes = chance.randint(2, 6)
    shape = FleetShape(
        nodes=nodes,
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
    )
    seconds = minutes * 60
    # Not everything at once in every run: what is left out makes what is left clearer.
    kinds: list[MachineSpec] = chance.sample(sorted(_DRAWS), k=chance.randint(3, len(_DRAWS)))
    kinds += ALWAYS
    blows: list[InjectedFault] = []
    for _ in range(chance.randint(3, 4 + int(minutes * 5))):
        at = chance.uniform(0, seconds)
        if blows and chance.random() < NEAR_SHARE:
            # What comes alone is borne more easily than what meets something half done.
            at = min(chance.choice(blows).at + chance.uniform(0, NEAR_SECONDS), seconds)
        blows.append(_DRAWS[chance.choice(kinds)](chance, at))
    return Campaign(shape, tuple(sorted(blows, key=lambda each: each.at)), seconds)


def keep(campaign: Campaign, numbers: Sequence[int]) -> Campaign:
    """The same with these of its blows alone, counted from 1."""
    kept = tuple(each for place, each in enumerate(campaign.blows, 1) if place in numbers)
    return Campaign(campaign.shape, kept, campaign.seconds)


def _anybody(chance: Random) -> str:
    return chance.choice((*SERVICES, EVERYBODY))


def _launch_fails(chance: Random, at: float) -> InjectedFault:
    # Only what leaves in doubt whether it took effect may have taken effect: a cloud that says
    # "over quota" and launches all the same keeps no contract.
    how = chance.choice(("before", "after", "after", "hang", "hang-after"))
    kinds = ("TRANSIENT", "NETWORK") if "after" in how else ("TRANSIENT", "THROTTLE", "QUOTA")
    return InjectedFault(at, "launch-fails", chance.choice(kinds), how=how)


_DRAWS: Final[dict[MachineSpec, Callable[[Random, float], InjectedFault]]] = {
    "fault": lambda c, at: InjectedFault(
        at, "fault", number=c.choice(FATAL), how=c.choice(REMEDIES)
    ),
    "mild-fault": lambda c, at: InjectedFault(at, "mild-fault", number=c.choice(MILD)),
    "kill": lambda c, at: InjectedFault(at, "kill", c.choice(SERVICES), seconds=c.uniform(0.1, 8)),
    "kill-after-effects": lambda c, at: InjectedFault(
        at, "kill-after-effects", c.choice(SERVICES), c.randint(1, 12), c.uniform(0.1, 8)
    ),
    "cut": lambda c, at: InjectedFault(at, "cut", _anybody(c), seconds=c.uniform(0.2, 15)),
    "lost-requests": lambda c, at: InjectedFault(
        at,
        "lost-requests",
        c.choice(SERVICES),
        seconds=c.uniform(1, 30),
        share=c.uniform(0.05, 0.4),
    ),
    "lost-answers": lambda c, at: InjectedFault(
        at, "lost-answers", c.choice(SERVICES), seconds=c.uniform(1, 30), share=c.uniform(0.05, 0.4)
    ),
    "lost-acks": lambda c, at: InjectedFault(
        at, "lost-acks", c.choice(SERVICES), seconds=c.uniform(1, 60), share=c.uniform(0.1, 1)
    ),
    "slow": lambda c, at: InjectedFault(
        at, "slow", c.choice(SERVICES), seconds=c.uniform(1, 30), share=c.uniform(0.1, 3)
    ),
    "launch-fails": _launch_fails,
    "no-capacity": lambda c, at: InjectedFault(at, "no-capacity", seconds=c.uniform(5, 90)),
    "terminate-fails": lambda c, at: InjectedFault(
        at, "terminate-fails", how=c.choice(("before", "after", "hang", "hang-after"))
    ),
    "list-fails": lambda c, at: InjectedFault(
        at, "list-fails", seconds=c.uniform(1, 20), how=c.choice(("before", "hang"))
    ),
    # Long enough for its command to come to another replica meanwhile.
    "launch-cut-off": lambda c, at: InjectedFault(at, "launch-cut-off", seconds=c.uniform(2, 12)),
    "stillborn": lambda _, at: InjectedFault(at, "stillborn"),
    "faulty": lambda _, at: InjectedFault(at, "faulty"),
    "power-off": lambda _, at: InjectedFault(at, "power-off"),
    "vanish": lambda _, at: InjectedFault(at, "vanish"),
    "hang": lambda c, at: InjectedFault(at, "hang", seconds=c.uniform(5, 25)),
    # An agent that lies, and one that tells what it has told before, in any order.
    "false-fault": lambda c, at: InjectedFault(at, "false-fault", number=c.choice(FATAL)),
    "repeats": lambda c, at: InjectedFault(at, "repeats", number=c.randint(1, REPEATS_MAX)),
    "workload-away": lambda c, at: InjectedFault(at, "workload-away", seconds=c.uniform(1, 40)),
    "endless-drain": lambda c, at: InjectedFault(at, "endless-drain", seconds=c.uniform(1, 60)),
    # Withdrawn after a while, by when the machine may be broken; or it is taken at the end of it.
    "notice": lambda c, at: InjectedFault(
        at,
        "notice",
        seconds=c.uniform(5, 150),
        number=c.choice(FATAL),
        how=c.choice(("", "", "withdrawn", "withdrawn-broken")),
    ),
    "drain": lambda _, at: InjectedFault(at, "drain"),
    "cordon": lambda c, at: InjectedFault(at, "cordon", seconds=c.uniform(5, 60)),
    "hold": lambda c, at: InjectedFault(at, "hold", seconds=c.uniform(10, 120)),
    "cancel": lambda _, at: InjectedFault(at, "cancel"),
    "breaker": lambda c, at: InjectedFault(at, "breaker", seconds=c.uniform(5, 60)),
    "scale": lambda c, at: InjectedFault(at, "scale", number=c.randint(1, 7)),
    "replace": lambda _, at: InjectedFault(at, "replace"),
}
