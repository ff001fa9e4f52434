"""A given-up launch may be recorded as gone though its machine exists, if no list could show it."""

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest

from schemas.headers import TTL
from schemas.messages import encode
from schemas.saga_params import LaunchSpec
from schemas.termination_orders import Authority
from schemas.topology import INSTANCES
from services.bus.port import Stored
from services.provisioner.instances.instance_decisions import (
    intended_record,
    mark_terminated,
    mark_terminating,
)
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine import virtual_time
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulation_context import SimulationContext

LAG_SECONDS: Final = 5.0
NODE: Final = "training-6"


@pytest.mark.parametrize(
    ("made_seconds", "cut_off", "allowed"),
    [
        pytest.param(LAG_SECONDS + 0.5, True, True, id="later than lists lag"),
        pytest.param(LAG_SECONDS - 2.0, True, False, id="a list would show it"),
        pytest.param(-1.0, True, False, id="before the launch was given up"),
        pytest.param(LAG_SECONDS + 0.5, False, False, id="its sender was not cut off"),
    ],
)
def test_only_what_a_list_could_not_show_is_recorded_as_gone_and_exists(
    made_seconds: float, cut_off: bool, allowed: bool
) -> None:
    """The machine is made so long after its launch was given up; then its record is written."""

    async def run() -> str:
        simulation = SimulationContext("late")
        cloud = SimulatedCloud(simulation, idempotent=True, list_lag_seconds=LAG_SECONDS)
        nothing: Any = None  # no node is looked at
        invariants = Invariants(simulation, cloud, nothing, nothing)
        spec = LaunchSpec(fleet="simulated", provider="cloud", instance_type="h100")
        await asyncio.sleep(10.0)
        given_up_at = simulation.clock.now()
        intended = intended_record("training", NODE, spec, "scale-up", given_up_at)
        going = mark_terminating(intended, given_up_at, Authority(kind="launch"))
        made_at = given_up_at + timedelta(seconds=made_seconds)
        cloud.add(Instance(name=NODE, provider_id="i-1", pool="training", created_at=made_at))
        if cut_off:
            cloud.cut_off.add(NODE)
        await asyncio.sleep(LAG_SECONDS + 1.0)
        record = mark_terminated(going, simulation.clock.now())
        subject = f"$KV.{INSTANCES.name}.training.{NODE}"
        stored = Stored(subject, encode(record), 1, simulation.clock.now(), {TTL: "1"})
        for each in simulation.watchers:
            each(f"KV_{INSTANCES.name}", stored)
        return str(invariants.violation or "")

    found = virtual_time.run(run)
    assert found == ("" if allowed else f"{NODE} is recorded as gone, and exists")
