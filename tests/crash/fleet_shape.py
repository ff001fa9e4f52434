"""The fleet that is struck, and the moments at which that may happen."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

TOOK_EFFECT: Final = "took-effect"
"""The status of a step that took effect, recorded or not."""


class Moment(NamedTuple):
    """Names a saga's entry, an event (`fault.stored`, `cordoned.published`) or a step's effect.

    A moment may also be the state of an instance's record (`terminating.stored`). Effects are
    observed at the provider and at the workload system.
    """

    step: str
    status: str

    def __str__(self) -> str:
        """Write `provision.started`."""
        return f"{self.step}.{self.status}"


WRITTEN: Final = {"terminate": ("terminating",), "provision": ("intended", "running")}
"""Step -> states of the instance's record that its service stores, each a moment."""


REPLACED: Final = Moment("node-replaced", "published")


def moments_of_step(step: str, with_effect: Collection[str]) -> list[Moment]:
    """Return every moment of a step, in order; `with_effect`: steps whose effect can be seen."""
    written = [Moment(state, "stored") for state in WRITTEN.get(step, ())]
    effect = [Moment(step, TOOK_EFFECT)] if step in with_effect else []
    return [Moment(step, "started"), *written, *effect, Moment(step, "succeeded")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Holds the size and the settings of the fleet."""

    nodes: int = 2
    order: str = "terminate_first"
    replicas: int = 1
    provider: str = "fake"
    boot_seconds: float = 0.02
    drain_seconds: float = 0.0
    servers: int = 1
    """Of nats-server: one alone, or a cluster of so many with as many replicas of everything."""
    sync: bool = False
    """Whether the server writes each message through to the disk; one server alone."""
    apart_seconds: float = 0.0
    """How much faster the clock of each second replica's machine is."""
    spares: int = 0
    """Spare nodes."""
    notifier: Mapping[str, Any] | None = None
    """Configuration of a real workload system's notifier; None: the scripted one."""
    drain_timeout: str = "180s"
    pool: Mapping[str, Any] = field(default_factory=dict)
    """More settings of the pool."""
