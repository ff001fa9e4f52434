"""The result of a scenario: its events, its assertions, the status of the nodes."""

from dataclasses import dataclass

from schemas.messages import Message
from services.simulator.engine.simulated_fleet import Violation
from services.simulator.inputs.scenario.observed_status import ObservedNode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEvent:
    """An event of the scenario, as it was played."""

    at: float
    """Virtual seconds since the beginning."""
    text: str
    seconds: float = 0.0
    """How long it took, as where something was waited for."""
    ok: bool = True
    detail: str = ""
    """What came of it; why it did not hold."""
    request: str = ""
    """The id of what was asked for; empty: nothing was."""
    refused: bool = False
    """Whether that is to be refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertionResult:
    """An assertion, and whether it holds."""

    text: str
    ok: bool
    found: str = ""
    at: float | None = None
    """When it was looked at; None: at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """All of it."""

    name: str
    seed: str
    seconds: float
    """Virtual."""
    digest: str
    """Of everything that was stored: the same seed and file have the same."""
    steps: tuple[PlayedEvent, ...] = ()
    checks: tuple[AssertionResult, ...] = ()
    nodes: tuple[ObservedNode, ...] = ()
    story: tuple[tuple[float, Message], ...] = ()
    defects: tuple[str, ...] = ()
    """Services that ended by themselves."""
    violation: Violation | None = None
    """The invariant that did not hold."""

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        held = all(each.ok for each in self.steps) and all(each.ok for each in self.checks)
        return held and not self.defects and self.violation is None
