"""What the operators of a simulated fleet were alerted about, and the channel that alerts them."""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.alert_records import Alert
from schemas.settings import Setting
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.alerts.alert_dedup import EACH_MAX, HELD_KINDS, REFILL_SECONDS
from services.primitives.clock import Clock
from services.simulator.engine.simulation_context import CURRENT_SIMULATION


@dataclass(slots=True)
class SimulatedOperators:
    """The alerts that operators have open."""

    open: dict[str, Alert] = field(default_factory=dict)
    alerted: set[str] = field(default_factory=set)
    """The keys of all alerts that ever began."""
    channels: int = 0
    """Notifier processes that have started; each counts its own alerts."""
    _begun: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind and severity -> alerts about nodes that began."""
    _replayed: set[str] = field(default_factory=set)
    """Events of alerts of which the command was run."""

    def receive(self, alert: Alert) -> None:
        """Open or end an alert."""
        kind = alert.key.partition("/")[0]
        if alert.resolved:
            self.open.pop(alert.key, None)
        else:
            if kind in HELD_KINDS and alert.key not in self.open:
                self._begun[kind, alert.severity] += 1
            self.open[alert.key] = alert
            self.alerted.add(alert.key)

    def flooded(self, elapsed_seconds: float) -> Iterator[str]:
        """Kinds of alerts of which one pool's operators got more than is promised."""
        most = (EACH_MAX + elapsed_seconds / REFILL_SECONDS) * self.channels
        for (kind, severity), count in sorted(self._begun.items()):
            if count > most:
                yield f"operators got {count} {severity} {kind} alerts where {most:.0f} may be"

    def about(self, pool: str, node: str) -> list[str]:
        """The keys of the open alerts about the health or the silence of a node."""
        keys = (f"health/{pool}/{node}", f"lost/{pool}/{node}")
        return [key for key in keys if key in self.open]

    def stuck(self) -> list[str]:
        """The sagas that operators were alerted about because they are stuck."""
        return [
            key.removeprefix("saga/")
            for key, alert in self.open.items()
            if alert.kind == "saga-stuck"
        ]

    def unwritable(self) -> list[str]:
        """The keys of the open alerts about streams that take no writes."""
        return [key for key in self.open if key.startswith("store-unwritable/")]

    def set_aside(self) -> list[str]:
        """The keys of the open alerts about messages that were set aside."""
        return [key for key in self.open if key.startswith("message-set-aside/")]

    def commands(self) -> list[list[str]]:
        """The commands of the alerts about messages that were set aside, each once."""
        found = []
        for alert in map(self.open.__getitem__, self.set_aside()):
            if alert.event not in self._replayed:
                self._replayed.add(alert.event)
                replay = alert.text.partition("run `")[2].rpartition("`, and end this")[0]
                dismissal = alert.text.partition("report with `")[2].partition("`")[0]
                found.append(shlex.split(replay or dismissal))
        return found


class SimulatedAlertChannel:
    """The alert channel plugin."""

    name = "simulated"
    repeat_seconds = 0.0
    """Operators do not forget."""

    class Options(Setting, frozen=True, kw_only=True):
        """None."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        del options, clock
        self._operators: SimulatedOperators = CURRENT_SIMULATION.get().parts["operators"]
        self._operators.channels += 1

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Open or end an alert."""
        del receipt
        self._operators.receive(alert)
        return AlertDelivery()

    async def close(self) -> None:
        """Nothing is held."""
