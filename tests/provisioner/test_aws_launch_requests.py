"""Launches at EC2 share requests, and each launch has one instance whatever happens in between."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.lease_records import BatchedLaunch
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_tags import NODE_TAG
from services.provisioner.provider_client.launch_batches import (
    Batch,
    shared_launch_batches,
)
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.rate_limit import (
    MakeRateLimiter,
    RequestRate,
    SharedRateLimiter,
)
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.aws_errors import error_of
from services.provisioner.providers.aws_launch_requests import (
    BATCH_TAG,
    LAUNCHES_PER_REQUEST_MAX,
    LaunchParameters,
    may_be_too_many,
    says_nothing_made,
)
from tests.provisioner.moto_server import CAPACITY, QUOTA
from tests.provisioner.provisioner_parts import (
    FLEET,
    Life,
    Mortal,
    provision,
    request,
    steps,
    token_of,
)
from tests.provisioner.test_aws_rate import IMAGE, counted, limit, moto_api

__all__ = ["moto_api"]

Make = Callable[..., AwsProvider]
REGION = "us-east-1"
P5 = {"region": REGION, "instance_type": "p5.48xlarge"}
NODES_EACH = 34
REQUESTS_MAX = 12
"""Four would do; on a busy machine some launches come too late for the first."""
POINTS_MAX = 60


class Together:
    """A rate limiter whose launches wait for each other, up to a second."""

    provider: AwsProvider

    def make(self, name: str, _: RequestRate) -> "Together":
        """Be the limiter of launches alone."""
        return self if "run-instances" in name else Together()

    async def wait_for_slot(self, _kind: str = "") -> None:
        """Wait until two launches wait."""
        queues = self.provider._launches._queues if hasattr(self, "provider") else {}
        for _ in range(100):
            if not queues or any(len(each.waiting) > 1 for each in queues.values()):
                return
            await asyncio.sleep(0.01)

    async def report_throttled(self) -> None:
        """Nothing is throttled."""


def replica(
    bus: NatsBus, moto: str, tmp_path: Path, limiter: MakeRateLimiter | None = None
) -> AwsProvider:
    """The provider as the provisioner's service makes it."""
    return AwsProvider(
        options=AwsProvider.Options(region=REGION, image=IMAGE, endpoint_url=moto),
        environment=Environment(
            name="fake",
            fleet=FLEET,
            nats_url="",
            data_dir=tmp_path,
            rate_limiter=limiter or partial(SharedRateLimiter, bus, SystemClock()),
            launch_batches=partial(shared_launch_batches, bus),
        ),
    )


async def named(provider: AwsProvider) -> None:
    """Wait until every instance has tags of its own."""
    await asyncio.gather(*provider._launches._tasks)


# --- at moto -------------------------------------------------------------------------------------


async def test_68_launches_of_two_replicas_are_a_few_requests(
    bus: NatsBus, make_aws: Make, moto: str, moto_api: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Each has its instance at once, and tags of its own soon after."""
    del make_aws  # it empties the account
    replicas = [replica(bus, moto, tmp_path) for _ in range(2)]
    await limit(moto_api, RunInstances=(5, 2))
    names = [f"web-{n}" for n in range(2 * NODES_EACH)]
    async with asyncio.timeout(60):
        made = await asyncio.gather(
            *(replicas[n % 2].provision(request(name, **P5)) for n, name in enumerate(names))
        )
    counts = await counted(moto_api, "RunInstances")
    assert (0, True) == (counts["refused"], counts["answered"] <= REQUESTS_MAX)
    assert names == [each.name for each in made]
    assert [token_of(name) for name in names] == [each.token for each in made]
    for _ in range(2):  # before and after they have names of their own
        listed = {each.provider_id: each for each in await replicas[0].list()}
        assert len(names) == len(listed)
        for each in made:
            found = listed[each.provider_id]
            assert (each.name, each.token, "web") == (found.name, found.token, found.pool)
            assert not any(tag.startswith(BATCH_TAG) for tag in found.tags)
        await asyncio.gather(*map(named, replicas))
    own = await replicas[0]._call("describe_tags", Filters=[{"Name": "key", "Values": ["Name"]}])
    instances = [each for each in own["Tags"] if each["ResourceType"] == "instance"]
    assert sorted(names) == sorted(each["Value"] for each in instances)
    for each in replicas:
        await each.close()


async def test_user_data_of_a_node_is_in_no_request_with_others(
    make_aws: Make, moto_api: httpx.AsyncClient
) -> None:
    """User data of one node goes alone: it holds credentials that other machines could read.

    User data that is the same for all is shared.
    """
    provider = make_aws()
    await limit(moto_api)
    await asyncio.gather(
        *(provider.provision(request(f"own-{n}", user_data=f"{n}", **P5)) for n in range(2)),
        *(provider.provision(request(f"same-{n}", user_data="echo", **P5)) for n in range(2)),
    )
    assert 3 == (await counted(moto_api, "RunInstances"))["answered"]


async def test_ec2_launches_fewer_than_requested(
    make_aws: Make, moto_api: httpx.AsyncClient
) -> None:
    """The rest have no capacity, and are free for a request of their own."""
    provider = make_aws(tags={CAPACITY: "2"})
    await limit(moto_api)
    wanted = [request(f"web-{n}", **P5) for n in range(3)]
    made = await asyncio.gather(*map(provider.provision, wanted), return_exceptions=True)
    failed = [each for each in made if isinstance(each, ProviderError)]
    assert ["CAPACITY"] == [each.kind for each in failed]
    again = await provider.provision(wanted[made.index(failed[0])])
    assert 3 == len(await provider.list())
    assert again.name == wanted[made.index(failed[0])].name
    assert 2 == (await counted(moto_api, "RunInstances"))["answered"]


async def test_what_a_quota_leaves_is_found_in_a_few_requests(make_aws: Make) -> None:
    """Half of a refused request is requested again, so that a quota for three gives two."""
    provider = make_aws(tags={QUOTA: "3"})
    wanted = [request(f"web-{n}", **P5) for n in range(LAUNCHES_PER_REQUEST_MAX)]
    made = await asyncio.gather(*map(provider.provision, wanted), return_exceptions=True)
    kinds = [each.kind for each in made if isinstance(each, ProviderError)]
    assert ["QUOTA"] * 18 == kinds
    assert 2 == len(await provider.list())


@pytest.mark.parametrize("dies", ["provider", "claims", "batches"])
async def test_launches_killed_between_any_two_calls_make_one_instance_each(
    bus: NatsBus, make_aws: Make, moto: str, tmp_path: Path, dies: str
) -> None:
    """Two launches of one request; another process repeats them."""
    del make_aws
    for point in range(1, POINTS_MAX):
        nodes = [f"{dies}-{point}-{n}" for n in range(2)]
        commands = [provision(each, gpu_count=8, **P5) for each in nodes]
        together, life = Together(), Life(point)
        first = together.provider = replica(bus, moto, tmp_path, together.make)
        if dies == "provider":
            first._launches._clients = Mortal(first._clients, life, {"call", "call_with"})
        else:
            records = getattr(first._launches._batches, f"_{dies}")
            mortal = Mortal(records, life, {"read", "write"})
            setattr(first._launches._batches, f"_{dies}", mortal)
        handlers = steps(bus, first)
        running = [asyncio.create_task(handlers.provision(each)) for each in commands]
        await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        died = life.points >= point
        for each in running:
            each.cancel()
        await first.close()
        second = replica(bus, moto, tmp_path)
        again = steps(bus, second)
        outputs = await asyncio.gather(*map(again.provision, commands))
        listed = {each.name: each.provider_id for each in await second.list()}
        assert [each.provider_id for each in outputs] == [listed[node] for node in nodes]
        ours = [each for each in await second.list() if each.name in nodes]
        assert len(nodes) == len(ours)
        await second.close()
        if not died:
            assert point > 2
            break
    else:
        pytest.fail("the launches have more points than this test tries")


async def test_an_instance_that_got_no_name_has_one_after_the_next_list(
    make_aws: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that launched it may have ended; earlier releases know it by its name alone."""
    first, second = make_aws(), make_aws()
    monkeypatch.setattr(first._launches, "_name", lambda _: None)
    nodes = ("web-1", "web-2")
    await asyncio.gather(*(first.provision(request(each, **P5)) for each in nodes))
    assert sorted(nodes) == sorted(each.name for each in await second.list())
    await named(second)
    tags = (await second._call("describe_tags"))["Tags"]
    own = [each["Value"] for each in tags if each["Key"] == NODE_TAG]
    assert sorted(nodes) == sorted(own)


async def test_of_a_request_with_an_ended_instance_the_others_are_found(
    make_aws: Make, moto_api: httpx.AsyncClient
) -> None:
    """EC2 does not repeat it; what it never made, and what has ended, may be launched again."""
    provider = make_aws()
    await limit(moto_api)
    wanted = [request(f"web-{n}", **P5) for n in range(2)]
    made = await asyncio.gather(*map(provider.provision, wanted))
    refused = error_of({"Error": {"Code": "IdempotentInstanceTerminated", "Message": "m"}})
    await provider.terminate(made[0].provider_id)
    call = provider._clients.call

    async def no_repetition(service: str, what: str, **given: Any) -> Any:
        if what == "run_instances":
            raise refused
        return await call(service, what, **given)

    provider._clients.call = no_repetition  # type: ignore[method-assign]
    assert made[1].provider_id == (await provider.provision(wanted[1])).provider_id
    again = await provider.provision(wanted[0])
    assert again.provider_id not in {each.provider_id for each in made}


# --- refusals ------------------------------------------------------------------------------------

BOTH = Batch(
    "r",
    tuple(BatchedLaunch(launch=each, node=each, token=each) for each in ("web-1", "web-2")),
)


@pytest.mark.parametrize(
    ("code", "first", "repeated", "fewer"),
    [
        ("InsufficientInstanceCapacity", True, True, True),
        ("VcpuLimitExceeded", True, True, True),
        ("InsufficientFreeAddressesInSubnet", True, True, True),
        ("InvalidParameterValue", True, True, False),
        ("AuthFailure", True, False, False),
        ("RequestLimitExceeded", False, False, False),
        ("InternalError", False, False, False),
    ],
)
def test_what_a_refusal_says_of_a_request(
    code: str, first: bool, repeated: bool, fewer: bool
) -> None:
    """A refusal before EC2 looks at the token says nothing: another replica may have made it.

    Where rights lack, what was never sent before is free for another provider.
    """
    error = error_of({"Error": {"Code": code, "Message": "m"}})
    found = [says_nothing_made(BOTH, error, repeated=each) for each in (False, True)]
    assert [first, repeated, fewer] == [*found, may_be_too_many(error)]
    alone = Batch("r", BOTH.launches[:1])
    assert not says_nothing_made(alone, error, repeated=False)


@pytest.mark.parametrize(("tags", "launches"), [(0, 20), (27, 20), (28, 19), (46, 1), (50, 1)])
def test_a_request_leaves_room_for_the_names(tags: int, launches: int) -> None:
    """EC2 takes 50 tags; three come afterwards."""
    shared = {f"team-{n}": "vision" for n in range(tags)}
    assert launches == LaunchParameters({}, shared).launches_max
