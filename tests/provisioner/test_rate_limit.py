"""Calls kept apart over all replicas, on the bus and at a provider."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.duration import Duration
from schemas.topology import LEASES
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError, Unavailable
from services.provisioner.provider_client import rate_limit
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.rate_limit import LocalRateLimiter, SharedRateLimiter
from services.provisioner.providers.lambda_cloud import LambdaProvider
from tests.provisioner.lambda_server import KEY, serving
from tests.provisioner.provisioner_parts import FLEET, request
from tests.support.busyness import watched


async def test_replicas_on_one_bus_share_the_rate(bus: NatsBus) -> None:
    """Callers of four replicas are served one every interval, and all of them come."""
    interval, used = 0.05, []
    pacers = [
        SharedRateLimiter(
            bus, SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=interval)
        )
        for _ in range(4)
    ]

    async def call(rate_limiter: SharedRateLimiter) -> None:
        await rate_limiter.wait_for_slot()
        used.append(asyncio.get_running_loop().time())

    async with asyncio.timeout(60):
        await asyncio.gather(*(call(each) for each in pacers for _ in range(4)))
    assert 16 == len(used)
    # From the return of a turn to the clock being read nothing is promised, but it is short.
    assert min(b - a for a, b in itertools.pairwise(sorted(used))) > interval * 0.9


async def test_a_caller_that_is_cancelled_costs_one_turn(bus: NatsBus) -> None:
    """One turn is lost: none was taken for those who waited behind it in the same process."""
    rate_limiter = SharedRateLimiter(
        bus, SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=20.0)
    )
    await rate_limiter.wait_for_slot()
    waiting = [asyncio.create_task(rate_limiter.wait_for_slot()) for _ in range(10)]
    async with asyncio.timeout(60):
        while (await bus.get(LEASES, "provisioner.pace-lab")).revision < 2:
            await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    taken = await bus.get(LEASES, "provisioner.pace-lab")
    assert taken is not None
    assert 2 == taken.revision, "of ten that waited one had a turn taken for it"


class Late(SystemClock):
    """Wakes too late, for a number of times."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def sleep(self, seconds: float) -> None:
        """Wait longer than was asked for."""
        late = 0.1 if self.times > 0 else 0.0
        self.times -= 1
        await asyncio.sleep(seconds + late)


@pytest.mark.parametrize(("times", "fails"), [(2, False), (1_000, True)])
async def test_a_turn_that_was_slept_through_is_not_used(
    bus: NatsBus, times: int, fails: bool
) -> None:
    """Another is taken; a process that always is late says so, and is tried again later."""
    clock = Late(times)
    rate_limiter = SharedRateLimiter(
        bus, clock, "lab", rate_limit.RequestRate(interval_seconds=0.1)
    )
    said = ""
    try:
        await rate_limiter.wait_for_slot()
    except ProviderError as error:
        said = error.message
    assert fails == ("over before use" in said)


class Away:
    """A bus that is away."""

    async def get(self, *_: object) -> None:
        """No server answers."""
        raise Unavailable("no responders")


async def test_without_a_bus_no_call_goes_out() -> None:
    """A missing bus is a passing error, and never a call beyond the rate."""
    with pytest.raises(ProviderError, match="no request slot could be taken") as caught:
        await SharedRateLimiter(
            Away(), SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=1.0)
        ).wait_for_slot()
    assert "TRANSIENT" == caught.value.kind
    await SharedRateLimiter(
        Away(), SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=0.0)
    ).wait_for_slot()


@pytest.mark.parametrize(("name", "interval"), [("Lambda Key", 1.0), ("lab", 61.0)])
def test_what_cannot_be_paced_is_refused(name: str, interval: float) -> None:
    """A name that is no key, and a pace that would outlive its record."""
    with pytest.raises(NavarchError):
        SharedRateLimiter(
            Away(), SystemClock(), name, rate_limit.RequestRate(interval_seconds=interval)
        )


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "local"])
async def test_a_wait_for_a_launch_delays_no_other_request(bus: NatsBus, *, shared: bool) -> None:
    """Other calls go on at their own pace while launches wait for theirs."""
    plan = rate_limit.RequestRate(interval_seconds=0.05, slower_seconds={"launch": 0.5})
    rate_limiter = (
        SharedRateLimiter(bus, SystemClock(), "lab", plan) if shared else LocalRateLimiter(plan)
    )
    used: list[tuple[float, str]] = []

    async def call(kind: str) -> None:
        await rate_limiter.wait_for_slot(kind)
        used.append((asyncio.get_running_loop().time(), kind))

    async with watched() as still, asyncio.timeout(60):
        await asyncio.gather(*(call("launch") for _ in range(3)), *(call("") for _ in range(8)))
    launches = [at for at, kind in used if kind]
    # Between the return of a turn and its record the machine may be suspended.
    assert launches[-1] - launches[0] > 0.8
    # If the machine is suspended the next launch is due before they have gone.
    assert still() > 0.1 or ["", "", ""] == [kind for _, kind in sorted(used)[1:4]]


async def test_launches_alone_may_be_limited(bus: NatsBus) -> None:
    """Where other requests have no limit, a launch still finds a slot that is not over."""
    rate = rate_limit.RequestRate(interval_seconds=0.0, slower_seconds={"launch": 0.2})
    rate_limiter = SharedRateLimiter(bus, SystemClock(), "lab", rate)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(30):
        await rate_limiter.wait_for_slot()
        for _ in range(3):
            await rate_limiter.wait_for_slot("launch")
    assert asyncio.get_running_loop().time() - began >= 0.4


async def test_in_one_process_callers_go_in_order() -> None:
    """Callers in one process go in the order in which they came, an interval apart."""
    rate_limiter, order = LocalRateLimiter(rate_limit.RequestRate(interval_seconds=0.01)), []

    async def call(number: int) -> None:
        await rate_limiter.wait_for_slot()
        order.append(number)

    await asyncio.gather(*(call(number) for number in range(5)))
    assert [0, 1, 2, 3, 4] == order


@pytest.fixture
async def replicas(bus: NatsBus, tmp_path: Path) -> AsyncIterator[tuple]:
    """Lambda's provider at two replicas with different names for one account."""
    (tmp_path / "key").write_text(KEY)

    def rate_limiter(name: str, pace: rate_limit.RequestRate) -> SharedRateLimiter:
        return SharedRateLimiter(bus, SystemClock(), name, pace)

    async with serving() as api:
        options = LambdaProvider.Options(
            api_key_file=str(tmp_path / "key"),
            base_url=api.url,
            ssh_key="laptop",
            request_interval=Duration(0.1),
            launch_interval=Duration(0.3),
        )
        made = [
            LambdaProvider(
                options=options,
                environment=Environment(
                    name=name,
                    fleet=FLEET,
                    nats_url="",
                    data_dir=tmp_path,
                    rate_limiter=rate_limiter,
                ),
            )
            for name in ("one", "two")
        ]
        yield api, made
        for each in made:
            await each.close()


async def test_lambdas_rate_is_the_accounts(replicas: tuple) -> None:
    """Launches of two replicas at once: the server sees no more requests than allowed."""
    api, providers = replicas
    wanted = {"region": "us-west-2", "instance_type": "gpu_1x_a10"}
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(each.provision(request(f"web-{i}", **wanted)) for i, each in enumerate(providers * 2))
        )
    moments = sorted(moment for _, moment in api.calls)
    launches = sorted(moment for path, moment in api.calls if path.endswith("launch"))
    # A request may reach the server late, and the next one then seems early: their number counts.
    assert moments[-1] - moments[0] > (len(moments) - 1) * 0.1 - 0.3
    assert launches[-1] - launches[0] > (len(launches) - 1) * 0.3 - 0.3
