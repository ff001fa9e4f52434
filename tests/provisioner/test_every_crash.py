"""Every provider, killed between any two calls, and each answer lost: none twice, none left.

Launches and removals go through the provisioner's own steps on the real bus. A provider that speaks
HTTP is killed before each request and after each answer; any other at every await.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from services.bus.nats.nats_bus import NatsBus
from services.provisioner.conformance.suite_fixtures import drive_call
from services.provisioner.provider_client.provider import Provider
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.saga.participant import Command
from tests.provisioner.lossy_proxy import Lossy, lossy
from tests.provisioner.provider_table import ROWS, Row
from tests.provisioner.provisioner_parts import (
    QUICK,
    Killed,
    Life,
    provision,
    recorded,
    steps,
    terminate,
)

pytestmark = pytest.mark.slow

MOMENTS_MAX = 100
SECONDS_MAX = 60.0
PATIENT = replace(QUICK, call_timeout_seconds=SECONDS_MAX, leak_after_seconds=SECONDS_MAX)
"""What a busy machine takes long for is neither lost nor leaked."""
CALLS = ("provision", "terminate", "list")


class Dying:
    """A provider whose process dies at one of its awaits."""

    def __init__(self, real: Provider, life: Life) -> None:
        self._real = real
        self._life = life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in CALLS:
            return found

        async def call(*args: Any) -> Any:
            self._life.point()
            # The killed process notices nothing: nothing more of the call runs.
            given = await drive_call(found(*args), lambda _: self._life.point())
            self._life.point()
            return given

        return call


class Prompt:
    """A provider that declares no lag: the servers of these tests have none to wait out."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return structs.replace(found, list_lag_seconds=0.0) if name == "capabilities" else found


class Losing:
    """A provider of which one answer is lost, after its call took effect."""

    def __init__(self, real: Provider, number: int) -> None:
        self._real = real
        self._left = number

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in CALLS:
            return found

        async def call(*args: Any) -> Any:
            given = await found(*args)
            self._left -= 1
            if self._left == 0:
                raise ProviderError("TRANSIENT", f"no answer to {name}")
            return given

        return call


class Cloud:
    """One provider on its cloud, and how its process is killed or its answers are lost."""

    def __init__(
        self, bus: NatsBus, row: Row, make: Callable[..., Provider], way: Lossy | None
    ) -> None:
        self._bus = bus
        self._make = make
        self._calm = make()
        self._way = way
        self._impatient = row.impatient
        self._options = {row.url: way.url} if way else {}
        self._asks = {"instance_type": "h100", "gpu_count": 0} | {
            ("zones" if key == "zone" else key): ((value,) if key == "zone" else value)
            for key, value in row.asks.items()
        }

    @property
    def market(self) -> str:
        """Return the market of launches that name none; the options name reserved ones."""
        return self._calm.capabilities.market

    def _steps(self, provider: Any) -> SagaStepHandlers:
        return steps(self._bus, Prompt(provider), PATIENT)

    def launch(self, node: str) -> Command:
        """The command to launch it."""
        return provision(node, timeout_seconds=SECONDS_MAX, **self._asks)

    def process(self) -> SagaStepHandlers:
        """A process that nothing happens to."""
        return self._steps(self._calm)

    async def existing(self, node: str) -> list[str]:
        """Return the IDs of the instances of a node."""
        listed = await self._calm.list()
        return [each.provider_id for each in listed if each.name == node]

    async def killed_at(
        self, moment: int, work: Callable[[SagaStepHandlers], Awaitable[Any]]
    ) -> bool:
        """Do it in a process that dies at this moment; False where it was done before."""
        if self._way is None:
            real = self._make()
            try:
                await work(self._steps(Dying(real, Life(moment))))
            except Killed:
                # The threads of a killed process end with it; here they end with their call.
                if threads := getattr(real, "_threads", None):
                    threads.shutdown(wait=True)
                return True
            return False
        self._way.order(die_at=moment)
        process = self._steps(self._make(**self._options))
        task = asyncio.ensure_future(work(process))
        due = asyncio.ensure_future(self._way.due.wait())
        await asyncio.wait({task, due}, return_when=asyncio.FIRST_COMPLETED)
        due.cancel()
        if task.done():
            task.result()
            return False
        task.cancel()
        await asyncio.wait({task})
        # Nothing of a killed process goes on.
        await process._providers.close()
        return True

    async def losing(self, number: int, work: Callable[[SagaStepHandlers], Awaitable[Any]]) -> bool:
        """Do it, and lose this answer; False where there are fewer."""
        if self._way is None:
            provider = Losing(self._make(), number)
            await work(self._steps(provider))
            return provider._left <= 0
        self._way.order(lose=number)
        await work(self._steps(self._make(**(self._options | self._impatient))))
        return self._way.moments >= 2 * number


@pytest.fixture
def boxes() -> int:
    """Return the fewest SSH machines that are enough, as all of them are read again and again."""
    return 2


@pytest.fixture(params=ROWS, ids=lambda row: row.label)
def row(request: pytest.FixtureRequest) -> Row:
    """Return each of our providers."""
    found: Row = request.param
    return found


@pytest.fixture
def make(row: Row, request: pytest.FixtureRequest) -> Callable[..., Provider]:
    """Makes it again, on an empty account."""
    found: Callable[..., Provider] = request.getfixturevalue(row.fixture)
    return partial(found, **row.options)


@pytest.fixture
async def cloud(bus: NatsBus, row: Row, make: Callable[..., Provider]) -> AsyncIterator[Cloud]:
    """Yield the provider, ready to be killed."""
    if not row.url:
        yield Cloud(bus, row, make, None)
        return
    async with lossy(getattr(make().options, row.url)) as way:
        yield Cloud(bus, row, make, way)


async def state(bus: NatsBus, node: str) -> str:
    """Return the state in the node's record."""
    return (await recorded(bus, node)).state


async def market(bus: NatsBus, node: str) -> str:
    """Return the market in the node's record."""
    offering = (await recorded(bus, node)).offering
    assert offering is not None
    return offering.market


async def test_killed_between_any_two_calls_of_a_launch_it_makes_one(
    bus: NatsBus, cloud: Cloud
) -> None:
    """Begun again by another process, the launch adopts what the first has made."""
    left: set[int] = set()
    for moment in range(1, MOMENTS_MAX):
        node = f"web-{moment}"
        launch = cloud.launch(node)
        killed = await cloud.killed_at(moment, lambda each, it=launch: each.provision(it))
        if killed:
            left.add(len(await cloud.existing(node)))
            made = await cloud.process().provision(launch)
            assert [made.provider_id] == await cloud.existing(node)
        assert ("running", 1) == (await state(bus, node), len(await cloud.existing(node)))
        assert await market(bus, node) == cloud.market
        # A list takes calls for each instance with some providers: with more, there are moments.
        await cloud.process().terminate(terminate(node))
        if not killed:
            assert {0, 1} == left, "it was killed both before and after its effect"
            return
    pytest.fail("the launch has more moments than this test tries")


async def test_killed_between_any_two_calls_of_a_removal_it_leaves_none(
    bus: NatsBus, cloud: Cloud
) -> None:
    """Begun again by another process, the removal ends with a confirmed absence."""
    for moment in range(1, MOMENTS_MAX):
        node = f"web-{moment}"
        await cloud.process().provision(cloud.launch(node))
        removal = terminate(node)
        killed = await cloud.killed_at(moment, lambda each, it=removal: each.terminate(it))
        if killed:
            await cloud.process().terminate(removal)
        assert ("terminated", []) == (await state(bus, node), await cloud.existing(node))
        if not killed:
            assert moment > 1
            return
    pytest.fail("the removal has more moments than this test tries")


async def test_killed_in_a_launch_that_is_then_undone_it_leaves_none(
    bus: NatsBus, cloud: Cloud
) -> None:
    """The undo finds what the launch had made, whether or not its id was ever learnt."""
    for moment in range(1, MOMENTS_MAX):
        node = f"web-{moment}"
        launch = cloud.launch(node)
        killed = await cloud.killed_at(moment, lambda each, it=launch: each.provision(it))
        await cloud.process().provision_undo(provision(node))
        assert ("terminated", []) == (await state(bus, node), await cloud.existing(node))
        if not killed:
            return
    pytest.fail("the launch has more moments than this test tries")


async def test_every_answer_lost_makes_one_and_leaves_none(bus: NatsBus, cloud: Cloud) -> None:
    """A call that took effect and was never answered is neither done twice nor forgotten."""
    for number in range(1, MOMENTS_MAX):
        node = f"web-{number}"
        launch, removal = cloud.launch(node), terminate(node)
        lost = await cloud.losing(number, lambda each, it=launch: each.provision(it))
        assert 1 == len(await cloud.existing(node))
        lost |= await cloud.losing(number, lambda each, it=removal: each.terminate(it))
        assert ("terminated", []) == (await state(bus, node), await cloud.existing(node))
        if not lost:
            assert number > 1
            return
    pytest.fail("there are more answers than this test loses")
