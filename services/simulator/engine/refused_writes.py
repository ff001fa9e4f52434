"""What must hold of a stream that takes no writes, and since when no fault is in force."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.topology import EVENTS
from services.bus.port import Stored
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_alerts import SimulatedOperators
from services.simulator.engine.simulation_context import SimulatedProcess, SimulationContext
from services.simulator.engine.supervised_service import SupervisedService
from services.simulator.engine.virtual_time import TASK_OWNER

ALERTED_WITHIN_SECONDS: Final = 60.0
"""Of quiet: the process looks each 5 s, the notifier asks each 10 s one of two replicas, and alerts
within 5 s; the rest is for a heartbeat in between."""
EVIDENT_REFUSALS: Final = 3
EVIDENT_SECONDS: Final = 15.0
"""So many refusals over so long, none of them by chance, are evidence."""
FORGOTTEN_SECONDS: Final = 600.0
"""Between two writes of one process, after which the first is no evidence any more."""


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
            alert = f"store-unwritable/stream {stream}"
            if waited > ALERTED_WITHIN_SECONDS and alert not in self._operators.open:
                self._invariants.fail(
                    f"{stream} takes no writes, and operators are not alerted after {waited:.0f} s"
                )
