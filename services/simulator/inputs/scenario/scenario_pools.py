"""The pools of a scenario: those of its file, those of its nodes, and what they may launch."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from schemas.launch_offers import Offering
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import Settings
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.sizing.on_demand_floor import with_markets
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue, candidates
from services.provisioner.provider_client.provider_calls import ProviderTraits
from services.settings.instance_type_file import load_instance_types
from services.settings.provider_choices import choices_of
from services.simulator.engine import fault_kinds
from services.simulator.engine.fleet_settings import METRICS
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.simulated_fleet import FleetSetup
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
    """Return a pool as written in the file, with the simulation's defaults."""
    scales = "autoscaling" in spec or "autoscaler" in spec or "scaling" in spec
    defaults = dict(POOL_DEFAULTS)
    if "providers" in spec:
        del defaults["provider"]
    return {**defaults, **({"metrics": METRICS} if scales else {}), **spec}


def named_providers(spec: Any) -> set[str]:
    """The providers that a pool names, as far as they can be read."""
    if not isinstance(spec, dict):
        return set()
    listed = spec.get("providers")
    entries = listed if isinstance(listed, list) else []
    named = [each.get("name") for each in entries if isinstance(each, dict)]
    return {each for each in (spec.get("provider"), *named) if isinstance(each, str) and each}


def own_pools(fleet: tuple[f.FleetNode, ...], *, replace: bool) -> dict[str, dict[str, Any]]:
    """The pools of nodes that name no pool: one per provider."""
    counts: dict[str, int] = {}
    for node in fleet:
        if not node.pool:
            counts[node.provider] = counts.get(node.provider, 0) + 1
    return {
        own_pool_name(provider): {
            **POOL_DEFAULTS,
            "provider": provider,
            "gpu_count": 0,
            "budget": {"max_unavailable": "100%", "max_replacements": "unlimited"},
            "health": {"auto_replace": replace, "incident": {"hold": "0s"}},
        }
        for provider in counts
    }


def own_pool_name(provider: str) -> str:
    """The name of the pool for the nodes of a provider that name no pool."""
    return OWN_POOL if provider == "fake" else f"{OWN_POOL}-{provider}"


def pool_of(node: f.FleetNode) -> str:
    """The pool that a node of the fleet belongs to."""
    return node.pool or own_pool_name(node.provider)


def offerings_of(configuration: Settings, fleet: Iterable[f.FleetNode]) -> tuple[Offering, ...]:
    """Return every offering of a pool, and those of the fleet's own nodes.

    ConfigurationError where an added type does not fit the catalogue.
    """
    types = load_instance_types(configuration.instance_types, None)
    sites = {
        name: ProviderTraits(kind=name, spot=True, reserved=True)
        for name in configuration.providers
    }
    catalogue = OfferingCatalogue(types, sites)
    found = [
        each.offering
        for spec in configuration.pools.values()
        for choice in choices_of(spec)
        for each in candidates(choice, catalogue)
    ]
    found += [
        Offering(
            provider=node.provider,
            region=node.region,
            zone=node.zone,
            instance_type=node.instance_type,
        )
        for node in fleet
    ]
    return tuple(dict.fromkeys(found))


def initial_fleet(scenario: f.Scenario, now: datetime) -> FleetSetup:
    """Return how a scenario's fleet begins: its nodes have the names that the file gives them.

    The launches of these nodes are decided already in the pools' first records. Everything after
    that is the services' own work, as is every node beyond them.
    """
    named: dict[str, list[f.FleetNode]] = {name: [] for name in scenario.configuration.pools}
    for node in scenario.fleet:
        named[pool_of(node)].append(node)
    specs = {node.id: spec_of(node) for node in scenario.fleet}
    others = {
        name: _beyond(scenario, name, nodes[0])
        if nodes
        else MachineSpec(gpu_count=scenario.configuration.pools[name].gpu_count or 8)
        for name, nodes in named.items()
    }
    records = []
    for pool, nodes in named.items():
        spec, reason = scenario.configuration.pools[pool], "the scenario's fleet"
        open_ = {
            f"scale-up-{node.id}": OpenSaga(
                kind="scale-up", new_node=node.id, reason=reason, since=now
            )
            for node in nodes
        }
        desired = max(len(nodes), spec.min_nodes)
        record = PoolRecord(name=pool, spec=spec, desired=desired, serial=len(nodes), open=open_)
        records.append(with_markets(record, Nodes(), open_))
    return FleetSetup(
        settings=scenario.configuration,
        spec_of=lambda made: specs.get(made.name) or others.get(made.pool) or MachineSpec(),
        records=tuple(records),
        nodes=frozenset(specs),
        restarts_cold=scenario.power_control,
    )


def _beyond(scenario: f.Scenario, pool: str, first: f.FleetNode) -> MachineSpec:
    """The hardware of a pool's further machines: where racks are units, not in the same rack."""
    spec = spec_of(first)
    return replace(spec, rack="") if scenario.configuration.pools[pool].rack.nodes > 1 else spec


def spec_of(node: f.FleetNode) -> MachineSpec:
    """Return the hardware of a node's machine."""
    return MachineSpec(
        region=node.region,
        zone=node.zone,
        rack=node.rack or node.labels.get("rack", ""),
        instance_type=node.instance_type,
        gpu_count=node.gpu_count,
        gpu_type=node.gpu_type,
    )
