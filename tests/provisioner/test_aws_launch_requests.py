"""Launches at EC2 share requests, and each launch has one instance whatever happens in between."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.lease_records import BatchedLaunch
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.provider_client.launch_batches import (
    LaunchBatches,
    LocalRecords,
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
from services.provisioner.providers.aws_clients import Fill
from services.provisioner.providers.aws_errors import error_of
from services.provisioner.providers.aws_launch_requests import (
    BATCH_TAG,
    LAUNCHES_PER_REQUEST_MAX,
    LaunchParameters,
    LaunchRequests,
)
from services.simulator.engine import virtual_time
from tests.provisioner.moto_server import CAPACITY, QUOTA
from tests.provisioner.provisioner_parts import (
    FLEET,
    Life,
    Mortal,
    provision,
    request,
    steps,
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
    assert [f"token-of-{name}" for name in names] == [each.token for each in made]
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
    """It holds credentials that the other machines could read; the same for all is shared."""
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


# --- any order of events -------------------------------------------------------------------------


class Ec2:
    """Launches by token as EC2 does, with a capacity; a call may fail or die before or after."""

    def __init__(self, random_: random.Random, capacity: int) -> None:
        self.random = random_
        self.capacity = capacity
        self.made: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        """Client token -> request, instances."""

    async def call(self, _service: str, what: str, **given: Any) -> dict[str, Any]:
        """Launch; names are not looked at."""
        if what == "create_tags":
            return {}
        await self.pause()
        answer = self.launch(given)
        await self.pause()
        if self.random.random() < 0.1:
            raise ProviderError("TRANSIENT", "the answer was lost")
        return answer

    async def call_with(self, service: str, what: str, fill: Fill) -> dict[str, Any]:
        """The same, with what waits when its slot comes."""
        await self.pause()
        return await self.call(service, what, **await fill())

    def launch(self, given: dict[str, Any]) -> dict[str, Any]:
        """One request."""
        token, count = given["ClientToken"], given["MaxCount"]
        if token not in self.made:
            if not self.capacity:
                raise error_of({"Error": {"Code": "InsufficientInstanceCapacity", "Message": "m"}})
            size = min(count, self.capacity)
            self.capacity -= size
            tags = given["TagSpecifications"][0]["Tags"]
            instances = [
                {"InstanceId": f"{token}-{n}", "AmiLaunchIndex": n, "Tags": tags}
                for n in range(size)
            ]
            self.made[token] = given, instances
        before, instances = self.made[token]
        if before != given:
            raise error_of({"Error": {"Code": "IdempotentParameterMismatch", "Message": "m"}})
        return {"Instances": instances}

    async def pause(self) -> None:
        """Let others go on, in any order."""
        await asyncio.sleep(self.random.random())


class SlowRecords(LocalRecords[Any]):
    """Records of which any call may take a while."""

    def __init__(self, ec2: Ec2) -> None:
        super().__init__()
        self.ec2 = ec2

    async def read(self, key: str) -> Any:
        """Read it."""
        await self.ec2.pause()
        return await super().read(key)

    async def write(self, key: str, record: Any, revision: int) -> int:
        """Write it."""
        await self.ec2.pause()
        written = await super().write(key, record, revision)
        await self.ec2.pause()
        return written


NODES = tuple(f"web-{n}" for n in range(6))


class State:
    """What the provisioner records of the launches."""

    def __init__(self) -> None:
        """Know nothing."""
        self.found: dict[str, set[str]] = {}
        """Node -> its instances."""
        self.zones: dict[str, str] = {}
        self.refused: set[str] = set()


async def one_process(
    ec2: Ec2,
    records: tuple[SlowRecords, SlowRecords],
    state: State,
    seconds: float,
    *,
    moves: bool = False,
) -> None:
    """Launch what has no instance yet, and die after some time.

    `moves`: what has no capacity may be launched in another zone from then on.
    """
    tokens = iter(f"batch-{ec2.random.random()}" for _ in range(1_000))
    batches = LaunchBatches("aws", *records, lambda: next(tokens))
    requests = LaunchRequests(ec2, batches)  # type: ignore[arg-type]

    async def one(node: str) -> None:
        for _ in range(20):
            zone = state.zones.get(node, "a")
            launch = BatchedLaunch(launch=f"{node}-{zone}", node=node, token=node)
            try:
                made = await requests.launch(launch, LaunchParameters({"zone": zone}, {}))
            except ProviderError as error:
                state.refused.add(error.kind)
                if moves and error.kind == "CAPACITY" and ec2.random.random() < 0.5:
                    state.zones[node] = "b"
                await asyncio.sleep(3 * ec2.random.random())
            else:
                state.found.setdefault(node, set()).add(made["InstanceId"])
                return

    tasks = [asyncio.create_task(one(each)) for each in NODES]
    await asyncio.wait(tasks, timeout=seconds)
    for each in tasks:
        each.cancel()
    await requests.close()
    await asyncio.gather(*tasks, return_exceptions=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 8), st.booleans())
def test_in_any_order_each_launch_has_one_instance(seed: int, capacity: int, moves: bool) -> None:
    """Replicas die and are followed by others, answers get lost, capacity comes late.

    Two launch the same at once, or one moves some of its launches to another zone.
    """

    async def run() -> None:
        ec2 = Ec2(random.Random(seed), capacity)
        records, state = (SlowRecords(ec2), SlowRecords(ec2)), State()
        for _ in range(3):
            seconds = 12 * ec2.random.random()
            parts = (1.0,) if moves else (1.0, 0.5)
            processes = (
                one_process(ec2, records, state, seconds * part, moves=moves) for part in parts
            )
            await asyncio.gather(*processes)
            ec2.capacity += ec2.random.randrange(3)
        ec2.capacity += 100
        await one_process(ec2, records, state, 1_000)
        assert state.refused <= {"TRANSIENT", "CAPACITY"}
        made = [each for _, all_ in ec2.made.values() for each in all_]
        assert dict.fromkeys(NODES, 1) == {node: len(ids) for node, ids in state.found.items()}
        assert len(NODES) == len(made)

    virtual_time.run(run)
