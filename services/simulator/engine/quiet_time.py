"""Since when no service and no connection has a fault: only then can a time limit be held."""

from collections.abc import Sequence

from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.supervised_service import SupervisedService


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
