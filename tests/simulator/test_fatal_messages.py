"""A message that ends every process that handles it is set aside, and replayed after the repair."""

from dataclasses import replace

from services.runtime.logs import silenced
from services.simulator.engine.fault_kinds import BROKER, SERVICES, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_runner import simulate_seed
from services.simulator.inputs.fuzz.fuzz_simulation import simulate
from tests.simulator.test_refused_writes import SHAPE

FLEET = replace(SHAPE, nodes=len(SERVICES) + 1)
"""A sound node is left for each fault, also where a message about an earlier one is set aside."""
BROKEN = InjectedFault(kind="xid_error", xid_code=79, fixed_by="replace")
BETWEEN_SECONDS = 60.0
PROCESSES = 5
"""Die over each message."""


def test_the_fleet_goes_on_and_each_replay_is_handled() -> None:
    """A message is fatal in each service as a node breaks: in the end each node is replaced."""
    steps: list[CampaignStep] = []
    for number, service in enumerate(SERVICES):
        at = 20.0 + number * BETWEEN_SECONDS
        fatal = InjectedFault(kind="fatal_message", target=service)
        steps += [CampaignStep(at, fatal), CampaignStep(at + 0.1, BROKEN)]
    with silenced():
        found = simulate("fatal", Campaign(FLEET, tuple(steps), steps[-1].at + BETWEEN_SECONDS))
    assert (found.violation, found.tail) == ("", ())
    assert found.restarts == PROCESSES * len(SERVICES)
    assert found.made >= FLEET.nodes + len(SERVICES)


def test_it_ends_no_more_processes_while_its_letter_cannot_be_stored() -> None:
    """A fatal message is reported once its letter is stored; nothing but its replay follows."""
    outage = InjectedFault(kind="refused_writes", target=BROKER, stream="DEAD", seconds=300.0)
    fatal = InjectedFault(kind="fatal_message", target="notifier")
    steps = (CampaignStep(10.0, outage), CampaignStep(20.0, fatal), CampaignStep(20.1, BROKEN))
    with silenced():
        found = simulate("fatal-unwritable", Campaign(SHAPE, steps, 200.0))
    assert (found.violation, found.tail) == ("", ())
    assert found.restarts == PROCESSES


END_IS_FATAL = "5705077"
"""In this seed the entry that a removed node's instance is gone ends each pool-manager."""


def test_the_end_of_a_node_is_published_though_its_entry_was_set_aside() -> None:
    """The end of a node must be published, or the alert about its health stays open for good."""
    found = simulate_seed(END_IS_FATAL, 3.0)
    assert (found.violation, found.tail) == ("", ())
    assert found.restarts >= PROCESSES
