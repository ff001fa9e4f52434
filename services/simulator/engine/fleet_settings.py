"""The settings of a simulated fleet's services: simulated plugins, and the input's sections."""

from collections.abc import Iterable
from typing import Any, Final

from services.primitives.module_names import installed_name
from services.simulator.engine.simulation_context import FLEET

PROVIDER: Final = installed_name("services.simulator.engine.simulated_cloud:SimulatedProvider")
NOTIFIER: Final = installed_name("services.simulator.engine.simulated_workload:SimulatedNotifier")
ALERTS: Final = installed_name("services.simulator.engine.simulated_alerts:SimulatedAlertChannel")
METRICS: Final = {
    "type": installed_name("services.simulator.engine.simulated_workload:SimulatedMetrics")
}
FAST_HEARTBEATS: Final = {"heartbeat_interval": "3s", "heartbeat_ttl": "9s"}
"""In a small fleet heartbeats are frequent, so that silence is noticed soon."""


def fleet_settings(
    pools: dict[str, Any], providers: Iterable[str], *, provider: str = PROVIDER, **sections: Any
) -> dict[str, Any]:
    """The configuration of a fleet; `sections` replace or add to the simulated ones."""
    return {
        "fleet": FLEET,
        "providers": {name: {"type": provider} for name in sorted(providers)},
        "notifier": {"type": NOTIFIER},
        "alerts": [{"type": ALERTS}],
        **sections,
        "pools": pools,
    }
