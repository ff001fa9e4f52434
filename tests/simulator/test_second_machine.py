"""Two machines use one node ID, against the real services in virtual time."""

from dataclasses import replace

from schemas.node_events import MachineRefused, Verdict, node_codec
from services.simulator.engine.fault_kinds import BROKER, InjectedFault
from services.simulator.engine.rogue_agents import SECOND
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from tests.simulator.test_refused_writes import SHAPE
from tests.support.campaigns import run_campaign, saga_entries


def test_the_second_machine_is_refused_named_in_an_alert_and_condemns_nothing() -> None:
    """The node's own machine stays, whatever fatal fault the other one reports."""
    shape = replace(SHAPE, replicas=1)
    fault = InjectedFault(kind="second_machine", count=10)
    found, simulation = run_campaign("second", Campaign(shape, (CampaignStep(5.0, fault),), 300.0))
    assert (found.violation, found.tail) == ("", ())
    stored = simulation.fleet.simulation.server.state.streams["EVENTS"].messages.values()
    events = [node_codec.decode(each.data) for each in stored if ".node." in each.subject]
    refused = [each for each in events if isinstance(each, MachineRefused)]
    assert {each.refused.boot_id for each in refused} == {f"{refused[0].machine.boot_id}{SECOND}"}
    node = refused[0].node
    alert = simulation.fleet.operators.open[f"machine/training/{node}"]
    assert refused[0].machine.boot_id in alert.text
    assert refused[0].refused.boot_id in alert.text
    assert found.made == shape.nodes
    ended = [entry for entry in saga_entries(simulation) if entry[0].startswith("replace-")]
    assert ended == []
    verdicts = [each for each in events if isinstance(each, Verdict) and each.node == node]
    assert {each.status for each in verdicts} == {"healthy"}
    assert len(verdicts) <= 4, "it was judged again at each registration"


def test_the_second_machine_condemns_nothing_while_health_cannot_be_written() -> None:
    """Verdicts go out all the same then, so which machine is refused is read in NODES too."""
    shape = replace(SHAPE, replicas=1)
    steps = (
        CampaignStep(
            5.0,
            InjectedFault(kind="refused_writes", target=BROKER, stream="KV_HEALTH", seconds=200.0),
        ),
        CampaignStep(10.0, InjectedFault(kind="second_machine", count=6)),
    )
    found, simulation = run_campaign("second-unwritable", Campaign(shape, steps, 300.0))
    assert (found.violation, found.tail) == ("", ())
    assert found.made == shape.nodes
    ended = [entry for entry in saga_entries(simulation) if entry[0].startswith("replace-")]
    assert ended == []
