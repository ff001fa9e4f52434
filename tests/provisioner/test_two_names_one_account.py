"""Two providers of the configuration that lead into one account show each other's instances."""

from datetime import UTC, datetime, timedelta

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.saga_params import LaunchSpec
from services.provisioner.provider_client.provider import Instance
from services.provisioner.removal.sweep_actions import SweepInput
from services.provisioner.removal.sweep_decisions import decide_sweep, due_actions

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
RECORD = InstanceRecord(
    pool="training",
    instance="training-1-abcd",
    state="running",
    provider="aws",
    token="token",
    launch=LaunchSpec(fleet="acme", provider="aws", instance_type="p5"),
    offering=Offering(provider="aws", instance_type="p5"),
    provider_id="i-1",
    intended_at=LONG_AGO,
    running_at=LONG_AGO,
)


def listed(provider_id: str) -> Instance:
    """An instance of that node's name."""
    return Instance(
        name=RECORD.instance,
        provider_id=provider_id,
        status="running",
        fleet="acme",
        pool="training",
        token="token",
    )


def swept(under: str, instance: Instance) -> tuple[object, ...]:
    """Return the actions of a sweep that finds the instance under another name too."""
    seen = SweepInput(
        fleet="acme",
        now=NOW,
        grace=timedelta(minutes=2),
        listed={"aws": [listed("i-1")], under: [instance]},
        records={"training.training-1-abcd": RECORD},
        first_seen={("aws", "i-1"): LONG_AGO, (under, instance.provider_id): LONG_AGO},
        living=frozenset(),
    )
    return due_actions(decide_sweep(seen), 10)


def test_a_running_node_is_not_removed_because_another_name_shows_it_too():
    """The instance is the record's own, whichever provider lists it."""
    assert swept("aws-too", listed("i-1")) == ()


def test_another_instance_of_its_name_elsewhere_may_be_the_node():
    """A launch was tried at two providers and made two: which of them serves is not known."""
    [action] = swept("lambda", listed("x-7"))
    assert action.kind == "note-unclear"
    assert (action.provider, action.instance.provider_id) == ("lambda", "x-7")
