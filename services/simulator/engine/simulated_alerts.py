"""Records the alerts of a simulated fleet's operators, and checks what must hold of them."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.alert_records import Alert
from schemas.settings import Setting
from schemas.topology import EVENTS
from services.bus.port import Stored
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.alerts.alert_dedup import EACH_MAX, HELD_KINDS, REFILL_SECONDS
from services.primitives.clock import Clock
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    SimulatedProcess,
    SimulationContext,
)
from services.simulator.engine.supervised_service import SupervisedService
from services.simulator.engine.virtual_time import TASK_OWNER

ALERTED_WITHIN_SECONDS: Final = 60.0
"""Of quiet: the process looks each 2 s, the notifier asks each 5 s one of two replicas, and alerts
within 2 s; the rest is for a heartbeat in between."""
EVIDENT_REFUSALS: Final = 3
EVIDENT_SECONDS: Final = 15.0
"""So many refusals over so long, none of them by chance, are evidence."""
FORGOTTEN_SECONDS: Final = 600.0
"""Between two writes of one process, after which the first is no evidence any more."""


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

    def held(self) -> list[str]:
        """The provider IDs of machines that operators were alerted to be held back."""
        prefix = "removal-held/instance "
        keys = (each.removeprefix(prefix) for each in self.open if each.startswith(prefix))
        return [each.partition(" at ")[0] for each in keys]

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
    """Records alerts as a channel plugin."""

    name = "simulated"
    repeat_seconds = 0.0
    """Operators do not forget."""

    class Options(Setting, frozen=True, kw_only=True):
        """Declares that the channel has no options."""

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


class QuietTime:
    """Looks at the services and their connections; it must be asked every few seconds."""

    def __init__(
        self, simulation: SimulationContext, services: Sequence[SupervisedService]
    ) -> None:
        """It is quiet from the start."""
        self._simulation = simulation
        self._services = services
        self._starts = 0
        self._since = 0.0

    def since(self) -> float:
        """When the last fault ended; now, if one lasts."""
        if self._is_disturbed():
            self._since = self._simulation.now()
        return self._since

    def _is_disturbed(self) -> bool:
        starts, self._starts = self._starts, sum(each.starts for each in self._services)
        processes = [each.process for each in self._services]
        return (
            starts != self._starts
            or self._simulation.network.any
            or any(each is None or each.dead or each.stalled_now for each in processes)
        )


@dataclass(slots=True)
class _Evidence:
    """The writes of one process to one stream that were refused."""

    first: float
    last: float
    count: int = 1
    since: float | None = None
    """When it was enough; None: it is not."""

    def add(self, now: float) -> None:
        if now - self.last > FORGOTTEN_SECONDS:
            self.first, self.count, self.since = now, 0, None
        self.last, self.count = now, self.count + 1
        enough = self.count >= EVIDENT_REFUSALS and now - self.first >= EVIDENT_SECONDS
        if enough and self.since is None:
            self.since = now


class RefusedWrites:
    """Compares the writes that were refused with the alerts that operators have."""

    def __init__(
        self,
        simulation: SimulationContext,
        operators: SimulatedOperators,
        services: Sequence[SupervisedService],
        invariants: Invariants,
    ) -> None:
        self._simulation = simulation
        self._operators = operators
        self._services = services
        self._invariants = invariants
        self._evidence: dict[str, dict[SimulatedProcess, _Evidence]] = {}
        """Stream -> process -> what it knows."""
        self._quiet = QuietTime(simulation, services)
        simulation.watchers.append(self._on_stored)
        simulation.server.on_refused = self._on_refused

    def _on_refused(self, stream: str) -> None:
        """A write was refused; an agent reports those to EVENTS alone, in its heartbeats."""
        process, now = TASK_OWNER.get(), self._simulation.now()
        services = [each.process for each in self._services]
        if not isinstance(process, SimulatedProcess) or process.name == "operator":
            return
        if process not in services and stream != EVENTS.name:
            return
        known = self._evidence.setdefault(stream, {})
        if process in known:
            known[process].add(now)
        else:
            known[process] = _Evidence(now, now)
        self._look(now)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        del stored
        self._evidence.pop(stream, None)
        self._look(self._simulation.now())

    def _look(self, now: float) -> None:
        if not self._evidence:
            return
        quiet_since = self._quiet.since()
        refusing = self._simulation.server.refusing
        self._evidence = {name: each for name, each in self._evidence.items() if name in refusing}
        for stream, known in self._evidence.items():
            found = [each.since for process, each in known.items() if not process.dead]
            evident = [each for each in found if each is not None]
            waited = now - max(min(evident), quiet_since) if evident else 0.0
            # One alert is for all streams that stop for the same cause.
            if waited > ALERTED_WITHIN_SECONDS and not self._operators.unwritable():
                self._invariants.fail(
                    f"{stream} takes no writes, and operators are not alerted after {waited:.0f} s"
                )
