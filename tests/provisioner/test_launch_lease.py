"""A provider without idempotency tokens is asked by one at a time, whatever the replicas know."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.step_data import ProvisionOutputs
from schemas.stream_specs import BucketSpec
from schemas.topology import INSTANCES, LEASES
from services.bus.leases import LEASE_TTL_SECONDS
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Entry
from services.primitives.clock import SystemClock
from services.primitives.errors import Unavailable
from services.provisioner.instances import instance_decisions
from services.provisioner.launch.launch_lease import count_request, is_only_requester
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.fake import FakeProvider
from tests.provisioner.provisioner_parts import (
    Held,
    fake,
    forget_instances,
    launch,
    providers,
    provision,
    request,
    step_handlers,
    steps,
)
from tests.provisioner.test_instance_decisions import NOW

SECONDS_MAX = 30.0
HERE = Offering(provider="fake", region="r", zone="a", instance_type="h100", market="spot")
INTENDED = replace(
    instance_decisions.intended_record("web", "web-1", launch(), "s", NOW), offering=HERE
)


async def made(provider: FakeProvider, node: str) -> list[str]:
    """Return the IDs of the instances of a node."""
    return [each.provider_id for each in await provider.list() if each.name == node]


@pytest.mark.parametrize(
    ("record", "before", "count", "first"),
    [
        (INTENDED, 0, 1, True),
        (replace(INTENDED, launch_calls=1), 1, None, True),
        (replace(INTENDED, launch_calls=1), 0, 2, False),
        (replace(INTENDED, launch_calls=2), 1, 3, False),
        (replace(INTENDED, state="running"), 0, None, None),
        (replace(INTENDED, offering=replace(HERE, zone="b")), 0, None, None),
        (replace(INTENDED, offering=None), 0, None, None),
    ],
)
def test_the_record_shows_whether_another_replica_has_requested(
    record: InstanceRecord, before: int, count: int | None, first: bool | None
) -> None:
    """A replica that counts its request again is in doubt, unless it was counted last."""
    found = count_request(record, HERE, before)
    assert count == (found.launch_calls if found else None)
    if first is not None:
        assert first == is_only_requester((found or record).launch_calls, before)


class Watched:
    """A bus that reports that a lease was found in another replica's hands."""

    def __init__(self, real: NatsBus) -> None:
        self._real = real
        self.refused = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def get(self, bucket: BucketSpec, key: str) -> Entry | None:
        """Report a lease that another replica holds."""
        found = await self._real.get(bucket, key)
        if bucket is LEASES and found is not None:
            self.refused.set()
        return found


async def test_two_replicas_that_launch_at_once_make_one_instance(bus: NatsBus) -> None:
    """The second replica asks for nothing while the first may, at a provider without tokens."""
    provider = fake(idempotent=False)
    first, second, watched = Held(provider), Held(provider), Watched(bus)
    one = asyncio.create_task(steps(bus, first).provision(provision("web-1")))
    await first.entered.wait()
    two = asyncio.create_task(steps(watched, second).provision(provision("web-1")))
    async with asyncio.timeout(SECONDS_MAX):
        await watched.refused.wait()
    first.go_on.set()
    outputs: list[ProvisionOutputs] = await asyncio.gather(one, two)
    assert outputs[0] == outputs[1]
    assert (["web-1"], False) == (provider.calls("provision"), second.entered.is_set())
    assert await made(provider, "web-1") == [outputs[0].provider_id]


async def test_with_tokens_no_replica_waits_for_another(bus: NatsBus) -> None:
    """The provider itself drops the second request."""
    provider = fake()
    first, second = Held(provider), Held(provider)
    one = asyncio.create_task(steps(bus, first).provision(provision("web-1")))
    await first.entered.wait()
    two = asyncio.create_task(steps(bus, second).provision(provision("web-1")))
    await second.entered.wait()
    first.go_on.set()
    second.go_on.set()
    outputs: list[ProvisionOutputs] = await asyncio.gather(one, two)
    assert outputs[0] == outputs[1]
    assert await made(provider, "web-1") == [outputs[0].provider_id]


class Cut:
    """A bus that can be cut off."""

    def __init__(self, real: NatsBus) -> None:
        self._real = real
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        if self.cut:
            raise Unavailable("cut off")
        return getattr(self._real, name)


async def test_who_is_cut_off_has_stopped_asking_before_another_asks(bus: NatsBus) -> None:
    """The clock of a replica that is cut off cancels its call; the other waits, looks, and asks."""
    provider = fake(idempotent=False)
    first, cut = Held(provider), Cut(bus)
    asked = provision("web-1", timeout_seconds=SECONDS_MAX)
    one = asyncio.create_task(steps(cut, first).provision(asked))
    await first.entered.wait()
    cut.cut = True
    outputs = await steps(bus, provider).provision(asked)
    first.go_on.set()
    with pytest.raises(Unavailable):
        await one
    assert ["web-1"] == provider.calls("provision")
    assert await made(provider, "web-1") == [outputs.provider_id]
    cut.cut = False
    assert outputs == await steps(cut, first).provision(asked)


class StoppedOnce(SystemClock):
    """Bus and clock of a process that is stopped once: as it reads, with its request counted."""

    def __init__(self, real: NatsBus) -> None:
        self._real = real
        self._counted = self.was_stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def monotonic(self) -> float:
        """Later by more than a lease lasts, once it has was stopped."""
        return super().monotonic() + (2 * LEASE_TTL_SECONDS if self.was_stopped else 0.0)

    async def update(
        self, bucket: BucketSpec, key: str, value: bytes, *more: Any, **ttl: Any
    ) -> int:
        """Write as usual, and notice the record in which the request is counted."""
        revision: int = await self._real.update(bucket, key, value, *more, **ttl)
        self._counted = self._counted or (bucket is INSTANCES and b'"launch_calls":1' in value)
        return revision

    async def get(self, bucket: BucketSpec, key: str) -> Entry | None:
        """Read as usual; the answer is read later."""
        found = await self._real.get(bucket, key)
        self.was_stopped = self.was_stopped or (self._counted and bucket is INSTANCES)
        return found


async def test_who_was_stopped_before_the_request_looks_again(bus: NatsBus) -> None:
    """Another replica may have had the lease meanwhile, and no timer has fired yet."""
    usual, provider, stopped = fake(idempotent=False), fake(idempotent=False), StoppedOnce(bus)
    await steps(bus, usual).provision(provision("web-2", timeout_seconds=SECONDS_MAX))
    await forget_instances(bus)
    made_by = step_handlers(stopped, providers(provider), clock=stopped)
    await made_by.provision(provision("web-1", timeout_seconds=SECONDS_MAX))
    assert stopped.was_stopped
    assert len(provider.calls("list")) == 1 + len(usual.calls("list"))
    assert ["web-1"] == provider.calls("provision")


async def test_a_request_of_the_fake_provider_does_not_wait_for_its_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is stopped while it sends one makes nothing when it goes on."""
    monkeypatch.setattr("services.provisioner.providers.fake.STOPPED_SECONDS", -1.0)
    provider = fake(latency_seconds=0.001)
    with pytest.raises(ProviderError, match="was stopped"):
        await provider.provision(request("web-1"))
    assert await made(provider, "web-1") == []
