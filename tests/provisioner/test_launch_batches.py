"""Launches that share a request have one instance each, whatever happens in between."""

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.lease_records import BatchedLaunch
from services.primitives.errors import Unavailable
from services.provisioner.provider_client.launch_batches import (
    LaunchBatches,
    LocalRecords,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws_clients import Fill
from services.provisioner.providers.aws_errors import error_of
from services.provisioner.providers.aws_launch_requests import (
    LaunchParameters,
    LaunchRequests,
)
from services.simulator.engine import virtual_time


class Ec2:
    """Launches by token as EC2 does, with a capacity.

    A request may be refused by the rate, its answer be lost, and any call take half a minute.
    """

    def __init__(self, random_: random.Random, capacity: int) -> None:
        self.random = random_
        self.capacity = capacity
        self.fails = True
        self.made: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        """Client token -> request, instances."""

    async def call(self, _service: str, what: str, **given: Any) -> dict[str, Any]:
        """Launch; names are not looked at."""
        if what == "create_tags":
            return {}
        await self.pause()
        if self.happens(0.05):
            raise ProviderError("THROTTLE", "not looked at")
        answer = self.launch(given)
        await self.pause()
        if self.happens(0.1):
            raise ProviderError("TRANSIENT", "the answer was lost")
        return answer

    async def call_with(self, service: str, what: str, fill: Fill) -> dict[str, Any]:
        """The same, with what waits when its slot comes."""
        await self.pause()
        if self.happens(0.05):
            raise ProviderError("THROTTLE", "no slot")
        return await self.call(service, what, **await fill())

    def launch(self, given: dict[str, Any]) -> dict[str, Any]:
        """Answer one launch request."""
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
        """Let others go on, in any order; now and then this process hangs."""
        await asyncio.sleep(self.random.random() * (30 if self.happens(0.03) else 1))

    def happens(self, chance: float) -> bool:
        """Return whether something fails, with this chance."""
        return self.fails and self.random.random() < chance


class SlowRecords(LocalRecords[Any]):
    """Records of which any call may take a while, or fail before or after it has an effect."""

    def __init__(self, ec2: Ec2) -> None:
        super().__init__()
        self.ec2 = ec2

    async def read(self, key: str) -> Any:
        """Read a record after a pause, or fail."""
        await self.ec2.pause()
        self.fail(0.03)
        return await super().read(key)

    async def write(self, key: str, record: Any, revision: int) -> int:
        """Write a record between two pauses, or fail."""
        await self.ec2.pause()
        self.fail(0.03)
        written = await super().write(key, record, revision)
        await self.ec2.pause()
        self.fail(0.03)
        return written

    def fail(self, chance: float) -> None:
        """The bus does not answer."""
        if self.ec2.happens(chance):
            raise Unavailable("no answer")


NODES = tuple(f"web-{n}" for n in range(6))


class State:
    """Holds what the provisioner records of the launches."""

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
        while True:
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
        ec2.capacity, ec2.fails = 100, False
        await one_process(ec2, records, state, 1_000)
        assert state.refused <= {"TRANSIENT", "CAPACITY", "THROTTLE"}
        made = [each for _, all_ in ec2.made.values() for each in all_]
        assert dict.fromkeys(NODES, 1) == {node: len(ids) for node, ids in state.found.items()}
        assert len(NODES) == len(made)

    virtual_time.run(run)
