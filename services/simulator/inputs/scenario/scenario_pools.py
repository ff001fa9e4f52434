"""The pools of a scenario: those of its file, and those of the nodes that name none. Pure."""

from typing import Any, Final

from services.simulator.engine import fault_kinds
from services.simulator.engine.fleet_settings import METRICS
from services.simulator.inputs.scenario import scenario_format as f

OWN_POOL: Final = "fleet"
POOL_DEFAULTS: Final[dict[str, Any]] = {
    "provider": fault_kinds.CLOUD,
    "instance_type": "gpu_8x",
    "gpu_count": 8,
    "min_nodes": 0,
    "max_nodes": f.FLEET_MAX,
}


def pool_text(spec: dict[str, Any]) -> dict[str, Any]:
    """A pool as written in the file, with what a simulation adds. Pure."""
    asks = "autoscaling" in spec or "autoscaler" in spec or "scaling" in spec
    defaults = dict(POOL_DEFAULTS)
    if "providers" in spec:
        del defaults["provider"]
    return {**defaults, **({"metrics": METRICS} if asks else {}), **spec}


def named_providers(spec: Any) -> set[str]:
    """The providers that a pool names, as far as it can be read. Pure."""
    if not isinstance(spec, dict):
        return set()
    listed = spec.get("providers")
    entries = listed if isinstance(listed, list) else []
    named = [each.get("name") for each in entries if isinstance(each, dict)]
    return {each for each in (spec.get("provider"), *named) if isinstance(each, str) and each}


def own_pools(fleet: tuple[f.FleetNode, ...], *, replace: bool) -> dict[str, dict[str, Any]]:
    """The pools of the nodes that name none: one for each provider. Pure."""
    counts: dict[str, int] = {}
    for node in fleet:
        if not node.pool:
            counts[node.provider] = counts.get(node.provider, 0) + 1
    return {
        own_pool(provider): {
            **POOL_DEFAULTS,
            "provider": provider,
            "gpu_count": 0,
            "budget": {"max_unavailable": "100%", "max_replacements": "unlimited"},
            "health": {"auto_replace": replace, "incident": {"hold": "0s"}},
        }
        for provider in counts
    }


def own_pool(provider: str) -> str:
    """What the pool of a provider's nodes that name none is called."""
    return OWN_POOL if provider == "fake" else f"{OWN_POOL}-{provider}"


def pool_of(node: f.FleetNode) -> str:
    """The pool that a node of the fleet belongs to."""
    return node.pool or own_pool(node.provider)
