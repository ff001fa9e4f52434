"""Draws the fleet of a fuzz campaign. Pure.

What was added later is drawn apart from the rest, so that older seeds keep their fleets.
"""

from dataclasses import replace
from random import Random
from typing import Final

from services.simulator.inputs.fuzz.campaign_steps import FleetShape

CONTROLLER_SHARE: Final = 0.2
GANG_SHARE: Final = 0.25
ADOPTED_SHARE: Final = 0.2
GPU_CORDON_SHARE: Final = 0.2
TOGETHER_SHARE: Final = 0.25
EXPIRY_SHARE: Final = 0.15
DRIFT_SHARE: Final = 0.1
MIXED_SHARE: Final = 0.2
IDLE_SHARE: Final = 0.3
INTERRUPTION_SHARE: Final = 0.15
CONSOLIDATION_SHARE: Final = 0.1
RACK_SHARE: Final = 0.1


def draw_shape(seed: str, chance: Random) -> FleetShape:
    """Draw a fleet; `chance` goes on to draw the steps."""
    shape = FleetShape(
        nodes=chance.randint(2, 6),
        order=chance.choice(("terminate_first", "provision_first")),
        max_unavailable=chance.randint(1, 2),
        max_replacements=chance.choice((0, 3, 5)),
        replicas=chance.choice((1, 1, 2)),
        idempotent=chance.random() < 1 / 2,
        list_lag_seconds=chance.choice((0.0, 0.0, 5.0)),
        remediation=chance.choice(("replace", "replace", "ladder")),
        spares=chance.choice((0, 0, 1, 2)),
        reboots=chance.random() < 1 / 2,
        skew_seconds=chance.choice((0.0, 2.0, 60.0)),
        restarts_cold=Random(f"{seed}/controllers").random() < CONTROLLER_SHARE,  # noqa: S311
    )
    shape = _with_gangs(Random(f"{seed}/gangs"), shape)  # noqa: S311
    shape = _adopting(Random(f"{seed}/adopted"), shape)  # noqa: S311
    shape = _cordoning_gpus(Random(f"{seed}/gpu-cordons"), shape)  # noqa: S311
    shape = _together(Random(f"{seed}/together"), shape)  # noqa: S311
    shape = _expiring(Random(f"{seed}/expiry"), shape)  # noqa: S311
    shape = _mixed(Random(f"{seed}/mixed"), shape)  # noqa: S311
    shape = _interrupted(Random(f"{seed}/interruptions"), shape)  # noqa: S311
    shape = _consolidating(Random(f"{seed}/consolidation"), shape)  # noqa: S311
    shape = _idle(Random(f"{seed}/idle"), shape)  # noqa: S311
    shape = replace(shape, drift=Random(f"{seed}/drift").random() < DRIFT_SHARE)  # noqa: S311
    return _in_racks(Random(f"{seed}/rack shape"), shape)  # noqa: S311


def _with_gangs(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, jobs of several nodes; drawn apart from the others."""
    if chance.random() >= GANG_SHARE:
        return shape
    return replace(shape, gangs=True, nodes=chance.randint(3, 8))


def _adopting(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, machines that others make; drawn apart from the others."""
    if chance.random() >= ADOPTED_SHARE:
        return shape
    return replace(
        shape,
        adopted=chance.choice(("act", "act", "observe")),
        reuses_names=chance.random() < 1 / 2,
        spares=0,
        reboots=False,
        list_lag_seconds=0.0,
    )


def _cordoning_gpus(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, cordons of single GPUs; drawn apart from the others."""
    if chance.random() >= GPU_CORDON_SHARE:
        return shape
    return replace(shape, cordons_gpus=True)


def _together(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, nodes that must be in one zone; drawn apart from the others."""
    if chance.random() >= TOGETHER_SHARE or shape.adopted:
        return shape
    return replace(shape, together=True)


def _mixed(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, spot nodes beside those that must not be; drawn apart from the others."""
    if chance.random() >= MIXED_SHARE or shape.adopted or shape.together or shape.spares:
        return shape
    return replace(shape, on_demand_min=chance.randint(1, shape.nodes))


def _interrupted(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, spot nodes in two zones; drawn apart from the others."""
    if chance.random() >= INTERRUPTION_SHARE or shape.adopted or shape.together:
        return shape
    return replace(shape, interruption_seconds=chance.uniform(60, 300))


def _consolidating(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, dear nodes are replaced; drawn apart from the others."""
    barred = shape.adopted or shape.together or shape.spares or shape.gangs
    if chance.random() >= CONSOLIDATION_SHARE or barred:
        return shape
    return replace(shape, consolidates=True)


def _idle(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns with jobs, nodes leave that have none; drawn apart from the others."""
    if chance.random() >= IDLE_SHARE or not shape.gangs or shape.adopted:
        return shape
    return replace(shape, idle_after_seconds=chance.uniform(100, 200))


def _in_racks(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, racks as units; drawn apart from the others."""
    if chance.random() >= RACK_SHARE or shape.adopted:
        return shape
    size = chance.randint(2, 3)
    return replace(
        shape,
        rack_nodes=size,
        nodes=size * chance.randint(2, 4),
        order="terminate_first",
        together=True,
        spares=0,
        gangs=False,
        on_demand_min=0,
        idle_after_seconds=0.0,
        interruption_seconds=0.0,
        consolidates=False,
        expire_after_seconds=0.0,
    )


def _expiring(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, nodes that are replaced for their age; drawn apart from the others."""
    if chance.random() >= EXPIRY_SHARE:
        return shape
    # All of them, one after the other, in less than that: else a fleet never is at rest.
    each = chance.uniform(120, 180) if shape.gangs else chance.uniform(50, 80)
    nodes = shape.nodes + shape.spares
    if shape.adopted:  # its group may grow by two, and a successor of other names be waited for
        each, nodes = each + 90, nodes + 2
    return replace(shape, expire_after_seconds=max(200.0, each * nodes))
