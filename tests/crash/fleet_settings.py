"""Builds the configuration of a struck fleet, and reads its provider's own state."""

from pathlib import Path
from typing import Any, Final

from tests.crash.fleet_shape import Shape
from tests.crash.provider_truth import FakeProviderTruth, LocalProviderTruth, Provider
from tests.crash.workload_system import Workload

POOL: Final = "training"
LATENCY_SECONDS: Final = 0.03
"""Of a call at the `fake` provider: time to be killed in."""


def settings_of(
    shape: Shape, directory: Path, workload: Workload
) -> tuple[Provider, dict[str, Any]]:
    """The provider, seen from its own side, and the configuration of every service."""
    data = directory / "data"
    options: dict[str, Any] = {}
    provider: Provider = LocalProviderTruth(data / "local")
    if shape.provider == "fake":
        file = directory / "provider.db"
        # Not idempotent: a launch that is repeated blindly would make a second instance.
        options = {"file": str(file), "idempotent": False, "latency_seconds": LATENCY_SECONDS}
        provider = FakeProviderTruth(file)
    budget = {"max_unavailable": 1, "max_replacements": "unlimited"}
    cordons_gpus = "cordon_scope" in shape.pool.get("health", {})
    return provider, {
        "fleet": "crash",
        "nats": {"replicas": shape.servers},
        "data_dir": str(data),
        "providers": {shape.provider: options},
        "pools": {
            POOL: {
                "provider": shape.provider,
                "instance_type": "simulated",
                "gpu_count": 8,
                "min_nodes": shape.nodes,
                "max_nodes": shape.nodes + 2,
                "spares": shape.spares,
                "replace_order": shape.order,
                "budget": budget,
                "drain_timeout": shape.drain_timeout,
                "launch_timeout": "180s",
                **shape.pool,
                # What breaks for good calls for a replacement, whatever the ladder. Of what breaks
                # in round after round the fifth would be an incident.
                "health": {
                    "remediation": "ladder",
                    "incident": {"hold": "0s"},
                    **shape.pool.get("health", {}),
                },
            }
        },
        "budget": {**budget, "max_unavailable": "100%"},
        "notifier": shape.notifier or workload.settings(gpus=cordons_gpus),
        "agent": {"heartbeat_interval": "2s", "heartbeat_ttl": "6s"},
    }
