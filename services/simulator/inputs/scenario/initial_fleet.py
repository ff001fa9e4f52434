"""What a scenario begins with: which pool has which nodes, and where they are. Pure.

The nodes of a scenario have the names that its file gives them. For that a pool begins with a
record in which the launches of these nodes are decided already; everything after that decision is
the services' own work, as is every node beyond them.
"""

from datetime import datetime

from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import Settings
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.simulated_fleet import FleetSetup
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.scenario_pools import pool_of

BEGIN_REASON = "the scenario's fleet"


def initial_fleet(scenario: f.Scenario, now: datetime) -> FleetSetup:
    """How a scenario's fleet begins."""
    named: dict[str, list[f.FleetNode]] = {name: [] for name in scenario.configuration.pools}
    for node in scenario.fleet:
        named[pool_of(node)].append(node)
    specs = {node.id: spec_of(node) for node in scenario.fleet}
    others = {
        name: spec_of(nodes[0])
        if nodes
        else MachineSpec(gpu_count=scenario.configuration.pools[name].gpu_count or 8)
        for name, nodes in named.items()
    }
    return FleetSetup(
        settings=scenario.configuration,
        spec_of=lambda made: specs.get(made.name) or others.get(made.pool) or MachineSpec(),
        records=tuple(
            first_record(scenario.configuration, pool, [each.id for each in nodes], now)
            for pool, nodes in named.items()
        ),
        nodes=frozenset(specs),
    )


def spec_of(node: f.FleetNode) -> MachineSpec:
    """What the machine of a node is like."""
    return MachineSpec(
        region=node.region,
        zone=node.zone,
        rack=node.rack or node.labels.get("rack", ""),
        instance_type=node.instance_type,
        gpu_count=node.gpu_count,
        gpu_type=node.gpu_type,
    )


def first_record(settings: Settings, pool: str, nodes: list[str], now: datetime) -> PoolRecord:
    """A pool's record in which the launches of these nodes are decided."""
    spec = settings.pools[pool]
    open_ = {
        f"scale-up-{node}": OpenSaga(kind="scale-up", new_node=node, reason=BEGIN_REASON, since=now)
        for node in nodes
    }
    return PoolRecord(
        name=pool,
        spec=spec,
        desired=max(len(nodes), spec.min_nodes),
        serial=len(nodes),
        open=open_,
    )
