"""A stream that takes nothing for minutes, or a quarter of an hour: all is late, nothing lost."""

from dataclasses import replace

import pytest

from services.runtime.logs import silenced
from services.simulator.engine.fault_kinds import BROKER, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep, OperatorAction
from services.simulator.inputs.fuzz.fuzz_simulation import simulate
from services.simulator.inputs.fuzz.rare_steps import REFUSING
from tests.support.campaigns import run_campaign
from tests.support.fleet_shapes import SMALL
from tests.support.wide import WHOLE

SHAPE = replace(SMALL, replicas=2)
OUTAGE_SECONDS = 900.0
SHORT_SECONDS = 300.0
"""By day, where the stream's duplicate window, which is ten minutes, does not matter."""
LONG = ("EVENTS", "SAGAS")
UNUSED = ("TELEMETRY", "REQUESTS", "DEAD", "SINKS", "KV_OFFERINGS", "KV_REPAIRS", "KV_ANSWERS")
"""Nothing is written there meanwhile, so nothing is known of it; answers may grow old."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stream", "before"),
    [
        *((each, 0.2) for each in REFUSING),
        ("EVENTS", -10.0),
        ("SAGAS", -10.0),
        ("KV_HEALTH", -10.0),
        ("KV_INSTANCES", 2.0),
    ],
)
def test_every_fault_is_judged_and_every_command_performed(stream: str, before: float) -> None:
    """The node breaks before or during the outage; in the end it is replaced, with no letter.

    Operators are alerted about the stream, and the end of the alert is an invariant.
    """
    seconds = OUTAGE_SECONDS if WHOLE or stream in LONG else SHORT_SECONDS
    outage = InjectedFault(kind="refused_writes", target=BROKER, stream=stream, seconds=seconds)
    broken = InjectedFault(kind="xid_error", xid_code=79, fixed_by="replace")
    steps = (CampaignStep(20.0 - before, broken), CampaignStep(20.0, outage))
    campaign = Campaign(SHAPE, tuple(sorted(steps, key=lambda each: each.at)), seconds + 25.0)
    found, simulation = run_campaign(f"refused-{stream}-{before}", campaign)
    assert (found.violation, found.tail) == ("", ())
    assert found.made > SHAPE.nodes
    alerted = f"store-unwritable/stream {stream}" in simulation.fleet.operators.alerted
    assert alerted == (stream not in UNUSED)


@pytest.mark.slow
@pytest.mark.parametrize("adopted_names", [True, False], ids=["names reused", "names new"])
def test_adopted_nodes_that_leave_meanwhile_are_forgotten(*, adopted_names: bool) -> None:
    """A node's end is published once it is recorded: nothing that is still read of it is left."""
    shape = replace(SMALL, adopted="act", reuses_names=adopted_names, nodes=4)
    outage = InjectedFault(
        kind="refused_writes", target=BROKER, stream="KV_NODES", seconds=SHORT_SECONDS
    )
    steps = (
        CampaignStep(49.0, outage),
        CampaignStep(53.0, OperatorAction(verb="resize-group", nodes=1)),
    )
    with silenced():
        found = simulate("adopted-leave", Campaign(shape, steps, SHORT_SECONDS + 60.0))
    assert (found.violation, found.tail) == ("", ())
