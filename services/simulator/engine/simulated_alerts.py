"""What the operators of a simulated fleet were alerted about, and the channel that alerts them."""

from dataclasses import dataclass, field

from schemas.settings import Setting
from services.notifier.alerts.alert_rules import Alert
from services.primitives.clock import Clock
from services.simulator.engine.simulation_context import CURRENT_SIMULATION


@dataclass(slots=True)
class SimulatedOperators:
    """The alerts that operators have open."""

    open: dict[str, Alert] = field(default_factory=dict)

    def about(self, pool: str, node: str) -> list[str]:
        """The keys of the open alerts about the health or the silence of a node."""
        keys = (f"health/{pool}/{node}", f"lost/{pool}/{node}")
        return [key for key in keys if key in self.open]


class SimulatedAlertChannel:
    """The alert channel plugin."""

    class Options(Setting, frozen=True, kw_only=True):
        """None."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Find the operators of this simulation."""
        del options, clock
        self._operators: SimulatedOperators = CURRENT_SIMULATION.get().parts["operators"]

    @property
    def name(self) -> str:
        """The name in logs."""
        return "simulated"

    async def send(self, alert: Alert) -> None:
        """Open or end an alert."""
        if alert.resolved:
            self._operators.open.pop(alert.key, None)
        else:
            self._operators.open[alert.key] = alert

    async def close(self) -> None:
        """Nothing is held."""
