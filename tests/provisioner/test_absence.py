"""A list without an instance does not always prove that the instance is gone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_decisions import why_out_of_region
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    InstanceStatus,
)
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.removal import removal_orders, sweep_decisions
from services.provisioner.removal.remover import Remover
from services.provisioner.removal.sweep_actions import SweepInput
from tests.provisioner.provisioner_parts import FLEET, QUICK, launch

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LAG = timedelta(seconds=90)
KEY = "web.web-1"
ELSEWHERE = Capabilities(region="us-east-1", sees_region_only=True)


class Paced(SystemClock):
    """A clock that advances only on request."""

    def __init__(self) -> None:
        """It is noon."""
        self.at = NOW

    def now(self) -> datetime:
        """Return the moment that the test has set."""
        return self.at


class LongList(FakeProvider):
    """A provider whose list takes a minute, and a region that may be out of sight."""

    clock: Paced
    can = Capabilities(list_lag_seconds=LAG.total_seconds())

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the test has set."""
        return self.can

    async def list(self) -> list[Instance]:
        """Show what was so when it was begun."""
        found = await super().list()
        self.clock.at += timedelta(minutes=1)
        return found


Slow = TypeVar("Slow", bound=LongList)


def going(**changes: object) -> InstanceRecord:
    """A record of an instance that is to go."""
    made = instance_decisions.intended_record("web", "web-1", launch(), "scale-up-web-1", NOW)
    return replace(made, **({"state": "terminating", "terminating_at": NOW} | changes))


def long_list(kind: type[Slow] = LongList) -> Slow:
    """Return a provider that has no instance."""
    around = Environment(name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=Path())
    provider = kind(options=FakeProvider.Options(), environment=around)
    provider.clock = Paced()
    return provider


def remover(bus: NatsBus, provider: LongList) -> Remover:
    """Return a remover that works at one provider."""
    calls = ProviderCalls(provider, call_timeout_seconds=60.0)
    providers = Providers({"fake": calls})
    return Remover(bus, provider.clock, InstanceStore(bus), providers, QUICK)


async def test_a_long_list_shows_what_was_so_when_it_was_begun(bus: NatsBus) -> None:
    """An instance made right before it may be missing from it; the next list proves it."""
    provider = long_list()
    removing = remover(bus, provider)
    await InstanceStore(bus).create(going(provider_id="i-1", running_at=NOW))

    assert [False, True] == [await removing.try_removal(KEY), await removing.try_removal(KEY)]


async def test_an_instance_of_another_region_is_leaked_until_that_region_is_listed(
    bus: NatsBus,
) -> None:
    """A provider whose region was changed in the configuration does not know it, nor its end."""
    provider = long_list()
    provider.can = ELSEWHERE
    store = InstanceStore(bus)
    await store.create(going(provider_id="i-1", running_at=NOW, region="eu-west-1"))

    assert not await remover(bus, provider).try_removal(KEY)
    left = await store.get(KEY)
    assert left is not None
    assert "leaked" == left.state
    assert left.error.startswith(
        "it was launched in eu-west-1, and provider fake is configured for us-east-1 now"
    )
    assert [] == provider.calls("terminate")


@pytest.mark.parametrize(
    ("record", "can", "seen"),
    [
        (going(region="us-east-1"), ELSEWHERE, True),
        (going(region="eu-west-1"), ELSEWHERE, False),
        (going(region="eu-west-1"), Capabilities(region="us-east-1"), True),
        (going(region="eu-west-1"), Capabilities(), True),
        (going(), ELSEWHERE, True),
        (
            going(offering=Offering(provider="fake", region="eu-west-1", instance_type="h100")),
            ELSEWHERE,
            False,
        ),
    ],
)
def test_a_provider_of_one_region_sees_nothing_of_another(
    record: InstanceRecord, can: Capabilities, *, seen: bool
) -> None:
    """Where nothing was ever asked for, there is nothing to see; some see all their regions."""
    assert seen is (why_out_of_region(record, can) == "")


@pytest.mark.parametrize(("can", "noted"), [(ELSEWHERE, False), (Capabilities(), True)])
def test_the_sweep_says_of_nothing_out_of_sight_that_it_is_not_listed(
    can: Capabilities, *, noted: bool
) -> None:
    """A region out of sight proves nothing, or a silent node would be taken for gone.

    Its work would then not be waited for.
    """
    running = replace(going(), state="running", provider_id="i-1", running_at=NOW)
    seen = SweepInput(
        fleet=FLEET,
        records={KEY: replace(running, region="eu-west-1")},
        listed={"fake": ()},
        can={"fake": can},
        first_seen={},
        living=frozenset({KEY}),
        now=NOW + timedelta(hours=1),
        grace=LAG,
    )

    found = sweep_decisions.decide_sweep(seen)
    assert [("mark-unlisted", KEY)] * noted == [(each.kind, each.key) for each in found]


def test_what_was_made_after_it_was_given_up_is_new_to_the_list() -> None:
    """An instance's age counts from when its id was learnt, not from when its removal began."""
    made = Instance(name="web-1", provider_id="i-9", fleet=FLEET, pool="web", status="running")
    late = NOW + timedelta(minutes=1)
    settled = instance_decisions.settle(going(), made, late, "fake")
    again = instance_decisions.settle(settled.record, made, late + LAG, "fake")

    assert "removed" == settled.outcome
    assert not removal_orders.is_absent(settled.record, (), late + LAG / 2, LAG)
    assert removal_orders.is_absent(settled.record, (), late + LAG, LAG)
    assert late == again.record.running_at


class SlowEnd(LongList):
    """A provider whose machines take long to end; `ends`: it obeys."""

    ends = True

    def __init__(self, **parts: Any) -> None:
        """One machine, and nothing called yet."""
        super().__init__(**parts)
        self.terminated: list[str] = []

    async def terminate(self, provider_id: str) -> None:
        """Note the call."""
        self.terminated.append(provider_id)

    async def list(self) -> list[Instance]:
        """Return the machine in every list; each list takes a minute."""
        self.clock.at += timedelta(minutes=1)
        status: InstanceStatus = "stopping" if self.ends and self.terminated else "running"
        return [
            Instance(name="web-1", provider_id="i-1", pool="web", fleet=FLEET, status=status),
        ]


@pytest.mark.parametrize(
    ("ends", "calls", "state"), [(True, 1, "terminating"), (False, 40, "leaked")]
)
async def test_a_machine_that_is_ending_is_not_terminated_again_and_no_leak(
    bus: NatsBus, ends: bool, calls: int, state: str
) -> None:
    """A GPU machine takes minutes to go; one that the provider does not even begin to end leaks."""
    provider = long_list(SlowEnd)
    provider.ends = ends
    store = InstanceStore(bus)
    await store.create(going(provider_id="i-1", running_at=NOW))
    removing = remover(bus, provider)

    assert not any([await removing.try_removal(KEY) for _ in range(40)])
    left = await store.get(KEY)
    assert left is not None
    assert (left.state, len(provider.terminated)) == (state, calls)
