"""AWS counts requests: each attempt waits for a slot that replicas share; moto throttles as EC2."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.rate_limit import (
    INTERVAL_SECONDS_MAX,
    RequestRate,
    SharedRateLimiter,
    local_rate_limiter,
)
from services.provisioner.providers import aws_clients
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.aws_clients import AwsClients, rate_of
from services.provisioner.time_limits import TimeLimits
from services.simulator.engine import virtual_time
from tests.provisioner.provisioner_parts import FLEET, request

Make = Callable[..., AwsProvider]
IMAGE = "ami-03cf127a"
LAUNCHES_EACH = 5
LAUNCHES = 1_000


@pytest.fixture
async def moto_api(moto: str) -> AsyncIterator[httpx.AsyncClient]:
    """Sets moto's limits and reads its counts; none limits it afterwards."""
    async with httpx.AsyncClient(base_url=moto) as api:
        yield api
        (await api.put("/throttle", json={})).raise_for_status()


async def limit(api: httpx.AsyncClient, **buckets: tuple[float, float]) -> None:
    """Limit actions, and forget all counts."""
    (await api.put("/throttle", json=buckets)).raise_for_status()


async def counted(api: httpx.AsyncClient, action: str) -> dict[str, int]:
    """Return how many requests of an action were answered, and how many refused."""
    found: dict[str, dict[str, int]] = (await api.get("/throttle")).json()
    return found.get(action, {"answered": 0, "refused": 0})


async def launch(provider: AwsProvider, name: str) -> None:
    """Launch an instance that moto knows; with user data of its own it shares no request."""
    wanted = request(name, region="us-east-1", instance_type="p5.48xlarge", user_data=name)
    await provider.provision(wanted)


async def test_replicas_share_the_rate_and_no_launch_is_refused(
    bus: NatsBus, make_aws: Make, moto: str, moto_api: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Replicas make as many calls as instances at EC2's limit of five at once and two a second."""
    del make_aws  # it empties the account
    replicas = [
        AwsProvider(
            options=AwsProvider.Options(region="us-east-1", image=IMAGE, endpoint_url=moto),
            environment=Environment(
                name=name,
                fleet=FLEET,
                nats_url="",
                data_dir=tmp_path,
                rate_limiter=partial(SharedRateLimiter, bus, SystemClock()),
            ),
        )
        for name in ("one", "two")
    ]
    await limit(moto_api, RunInstances=(5, 2))
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(launch(each, f"{each.name}-{n}") for each in replicas for n in range(LAUNCHES_EACH))
        )
    expected = {"answered": len(replicas) * LAUNCHES_EACH, "refused": 0}
    assert expected == await counted(moto_api, "RunInstances")
    for each in replicas:
        await each.close()


async def test_where_others_use_the_account_as_well_all_wait(
    make_aws: Make, moto_api: httpx.AsyncClient
) -> None:
    """A refusal empties the bucket: those of the first moment are refused, and hardly another."""
    provider = make_aws()
    await limit(moto_api, RunInstances=(1, 4))
    async with asyncio.timeout(60):
        await asyncio.gather(*(launch(provider, f"web-{n}") for n in range(6)))
    counts = await counted(moto_api, "RunInstances")
    assert 6 == counts["answered"]
    assert 0 < counts["refused"] <= 5


# --- one request ---------------------------------------------------------------------------------

LOST = ReadTimeoutError(endpoint_url="ec2")
AWAY = EndpointConnectionError(endpoint_url="ec2")


def answer(code: str, status: int = 400) -> ClientError:
    """Return the error that the SDK raises for an error answer."""
    said = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(said, "RunInstances")


FULL, BUSY = answer("InsufficientInstanceCapacity"), answer("RequestLimitExceeded", 503)
BROKEN, ODD = answer("InternalError", 500), answer("Odd")


class Answers:
    """EC2's answers to one request after another, and the slots that were taken for them."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.taken: list[str] = []

    def make(self, name: str, rate: RequestRate) -> "Answers":
        """Be the rate limiter."""
        assert rate_of("run_instances") == rate
        assert "run-instances" in name
        return self

    async def wait_for_slot(self, _kind: str = "") -> None:
        """Record that a slot was taken."""
        self.taken.append("slot")

    async def report_throttled(self) -> None:
        """Record that throttling was reported."""
        self.taken.append("throttled")

    async def run_instances(self) -> str:
        """Answer a launch as the test has set."""
        self.taken.append("call")
        said = self.answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return str(said)


@pytest.mark.parametrize(
    ("answers", "outcome", "calls"),
    [
        (["made"], "made", 1),
        ([LOST, BROKEN, "made"], "made", 3),
        ([BUSY, AWAY, "made"], "made", 3),
        ([AWAY] * 3, "TRANSIENT", 3),
        ([BUSY] * 3, "THROTTLE", 3),
        ([FULL], "CAPACITY", 1),
        ([ODD], "TRANSIENT", 1),
        ([ParamValidationError(report="no")], "TRANSIENT", 1),
        ([NoCredentialsError()], "AUTH", 1),
        # A launch whose answer was lost stays in doubt, whatever keeps the next from being made.
        ([LOST, BUSY, BUSY], "TRANSIENT", 3),
        ([LOST, NoCredentialsError()], "TRANSIENT", 2),
        ([BUSY, LOST, BUSY], "TRANSIENT", 3),
        # EC2 would have answered with the launch of the same token.
        ([LOST, FULL], "CAPACITY", 2),
    ],
)
async def test_each_attempt_takes_a_slot_and_a_doubt_stays(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], outcome: str, calls: int
) -> None:
    """A call that may pass is tried three times; throttling is reported to all replicas."""
    monkeypatch.setattr(aws_clients, "AGAIN_AFTER_SECONDS", 0.0)
    ec2, throttled = Answers(list(answers)), answers.count(BUSY)

    async def connect(_: str) -> Answers:
        return ec2

    clients = AwsClients(
        "us-east-1", profile="", endpoint_url="", timeout_seconds=1.0, rate_limiter=ec2.make
    )
    monkeypatch.setattr(clients, "_connect", connect)
    try:
        came = await clients.call("ec2", "run_instances")
    except ProviderError as error:
        came = error.kind
    assert outcome == came
    assert [calls, calls, throttled] == [
        ec2.taken.count(each) for each in ("slot", "call", "throttled")
    ]


async def test_a_request_that_finds_no_slot_was_not_sent(
    make_aws: Make, moto_api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without a slot is not sent: a launch that is no longer needed does not wait on."""
    monkeypatch.setattr(aws_clients, "SLOT_WAIT_SECONDS_MAX", 0.2)
    slow = RequestRate(interval_seconds=2.0, burst=5)
    monkeypatch.setitem(aws_clients.RATES, "run_instances", slow)
    provider = make_aws()
    await limit(moto_api)
    made = await asyncio.gather(
        *(launch(provider, f"web-{n}") for n in range(7)), return_exceptions=True
    )
    assert 5 == (await counted(moto_api, "RunInstances"))["answered"]
    refused = [each for each in made if isinstance(each, ProviderError)]
    assert [("THROTTLE", False)] * 2 == [(each.kind, each.rule.in_doubt) for each in refused]


def test_a_thousand_launches_use_nearly_every_slot() -> None:
    """Launches retry as the provisioner does; their waits and their back-off end apart."""
    ec2 = Answers(["made"] * LAUNCHES)

    async def connect(_: str) -> Answers:
        return ec2

    async def run() -> float:
        clients = AwsClients(
            "us-east-1",
            profile="",
            endpoint_url="",
            timeout_seconds=1.0,
            rate_limiter=local_rate_limiter,
        )
        clients._connect = connect  # type: ignore[method-assign]

        async def one() -> None:
            for tries in itertools.count(1):
                try:
                    await clients.call("ec2", "run_instances")
                except ProviderError as error:
                    wait = TimeLimits().retry_seconds(tries, error.retry_after)
                    await asyncio.sleep(wait)
                else:
                    return

        await asyncio.gather(*(one() for _ in range(LAUNCHES)))
        return asyncio.get_running_loop().time()

    lasted = virtual_time.run(run)
    assert lasted < 1.05 * LAUNCHES * rate_of("run_instances").interval_seconds


@pytest.mark.parametrize(
    "what",
    [
        *("run_instances", "terminate_instances", "describe_spot_price_history"),
        "terminate_instance_in_auto_scaling_group",
    ],
)
def test_every_action_has_a_rate_that_replicas_can_share(what: str) -> None:
    """Each action's rate has a name that is a key of the bus, and a short interval."""
    made: list[SharedRateLimiter] = []

    def make(name: str, rate: RequestRate) -> SharedRateLimiter:
        made.append(SharedRateLimiter(None, SystemClock(), name, rate))
        return made[-1]

    clients = AwsClients(
        "us-east-1", profile="", endpoint_url="", timeout_seconds=1.0, rate_limiter=make
    )
    clients._slots(what)
    assert clients._slots(what)[0] is made[0]
    assert rate_of(what).interval_seconds < INTERVAL_SECONDS_MAX
