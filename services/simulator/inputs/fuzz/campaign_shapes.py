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
        expire_after_seconds=0.0,
    )


def _expiring(chance: Random, shape: FleetShape) -> FleetShape:
    """In some campaigns, nodes that are replaced for their age; drawn apart from the others."""
    if chance.random() >= EXPIRY_SHARE:
        return shape
    # All of them, one after the other, in less than that: else a fleet never is at rest.
    each = chance.uniform(120, 180) if shape.gangs else chance.uniform(50, 80)
    return replace(shape, expire_after_seconds=max(200.0, each * (shape.nodes + shape.spares)))
