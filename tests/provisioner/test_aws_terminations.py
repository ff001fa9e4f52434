"""Terminations at EC2 share requests, and none is kept from another by an instance that is gone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from services.bus.nats.nats_bus import NatsBus
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.rate_limit import RequestRate
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.aws_clients import AwsClients
from services.provisioner.providers.aws_errors import error_of
from services.provisioner.providers.aws_terminations import (
    INSTANCES_PER_REQUEST_MAX,
    RefusedBatch,
    Terminations,
    after_refusal,
)
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.saga.participant import Command
from tests.provisioner.lossy_proxy import lossy
from tests.provisioner.provider_table import ROWS
from tests.provisioner.provisioner_parts import recorded, terminate
from tests.provisioner.test_aws_rate import counted, launch, limit, moto_api
from tests.provisioner.test_every_crash import MOMENTS_MAX, Cloud

__all__ = ["moto_api"]

Make = Callable[..., AwsProvider]
SENT = ("i-1", "i-2", "i-3")
ROUNDS = 9
"""Of halves, and of groups that are refused again: more than a hundred instances have."""


def refusal(code: str, message: str = "m", status: int = 400) -> ProviderError:
    """Return the error of EC2's refusal."""
    answer = {"Code": code, "Message": message}
    return error_of({"Error": answer, "ResponseMetadata": {"HTTPStatusCode": status}})


NOT_FOUND = "InvalidInstanceID.NotFound"
HALVES = RefusedBatch(apart=(("i-1",), ("i-2", "i-3")))


@pytest.mark.parametrize(
    ("sent", "error", "means"),
    [
        (
            SENT,
            refusal(NOT_FOUND, "The instance ID 'i-2' does not exist"),
            RefusedBatch(absent=("i-2",), apart=(("i-1", "i-3"),)),
        ),
        (
            SENT,
            refusal(NOT_FOUND, "The instance IDs 'i-1, i-3' do not exist"),
            RefusedBatch(absent=("i-1", "i-3"), apart=(("i-2",),)),
        ),
        (SENT, refusal(NOT_FOUND, "i-1, i-2, i-3"), RefusedBatch(absent=SENT)),
        # An instance is not named by a longer name that contains it, nor by a text that was cut.
        (SENT, refusal(NOT_FOUND, "The instance ID 'i-22' does not"), HALVES),
        (("i-1",), refusal("InvalidInstanceID.Malformed", "odd"), RefusedBatch(absent=("i-1",))),
        (SENT, refusal("OperationNotPermitted", "'i-1' is protected"), HALVES),
        (SENT, refusal("UnauthorizedOperation", status=403), HALVES),
        (("i-1",), refusal("OperationNotPermitted"), RefusedBatch(failed=("i-1",))),
        (SENT, refusal("AuthFailure", status=401), RefusedBatch(failed=SENT)),
        (SENT, refusal("RequestLimitExceeded", status=503), RefusedBatch(failed=SENT)),
        (SENT, refusal("InternalError", status=500), RefusedBatch(failed=SENT)),
        (SENT, ProviderError("TRANSIENT", "no answer"), RefusedBatch(failed=SENT)),
    ],
)
def test_what_a_refusal_means(
    sent: tuple[str, ...], error: ProviderError, means: RefusedBatch
) -> None:
    """The instance that EC2 names is gone; what one may have caused is narrowed down.

    Any other refusal is everyone's.
    """
    assert means == after_refusal(sent, error)


class Ec2:
    """Knows some instances, protects others, and allows a caller to look at each request."""

    def __init__(self, gone: set[str], protected: set[str], *, names: bool) -> None:
        self.gone, self.protected, self.names = gone, protected, names
        self.terminated: set[str] = set()
        self.requests: list[list[str]] = []
        self.slots = asyncio.Semaphore(1_000_000)

    def make(self, _name: str, _rate: RequestRate) -> "Ec2":
        """Be the rate limiter."""
        return self

    async def wait_for_slot(self, _kind: str = "") -> None:
        """Wait for the test."""
        await self.slots.acquire()

    async def terminate_instances(self, *, InstanceIds: list[str]) -> None:  # noqa: N803
        """Terminate all of them, or none."""
        self.requests.append(InstanceIds)
        await asyncio.sleep(0)
        code = NOT_FOUND
        refused = [each for each in InstanceIds if each in self.gone]
        if not refused:
            code = "OperationNotPermitted"
            refused = [each for each in InstanceIds if each in self.protected]
        if refused:
            message = f"The instance IDs '{', '.join(refused)}'" if self.names else "no"
            raise ClientError({"Error": {"Code": code, "Message": message}, **STATUS}, "Terminate")
        self.terminated |= {*InstanceIds}


STATUS: dict[str, Any] = {"ResponseMetadata": {"HTTPStatusCode": 400}}


def terminations(ec2: Ec2) -> Terminations:
    """Return the provider's terminations at this EC2."""
    clients = AwsClients(
        "us-east-1", profile="", endpoint_url="", timeout_seconds=1.0, rate_limiter=ec2.make
    )

    async def connect(_: str) -> Ec2:
        return ec2

    clients._connect = connect  # type: ignore[method-assign]
    return Terminations(clients)


instances = st.lists(
    st.sampled_from(["there"] * 8 + ["gone", "protected"]), min_size=1, max_size=250
)


@given(kinds=instances, names=st.booleans())
def test_each_has_its_own_outcome_whatever_the_others_are(kinds: list[str], *, names: bool) -> None:
    """An existing instance is terminated, a missing one succeeds, a protected one fails alone."""

    async def run() -> None:
        of = {kind: {f"i-{n}" for n, each in enumerate(kinds) if each == kind} for kind in kinds}
        ec2 = Ec2(of.get("gone", set()), of.get("protected", set()), names=names)
        shared = terminations(ec2)
        ids = [f"i-{n}" for n in range(len(kinds))]
        came = await asyncio.gather(*map(shared.terminate, ids), return_exceptions=True)
        failed = {each for each, said in zip(ids, came, strict=True) if said is not None}
        assert failed == of.get("protected", set())
        assert ec2.terminated == of.get("there", set())
        assert max(map(len, ec2.requests)) <= INSTANCES_PER_REQUEST_MAX
        odd = len(ec2.gone) + len(ec2.protected)
        whole = -(-len(kinds) // INSTANCES_PER_REQUEST_MAX)
        assert len(ec2.requests) <= whole + 1 + 2 * ROUNDS * odd

    asyncio.run(run())


async def test_all_that_wait_for_a_slot_go_in_one_request() -> None:
    """Terminations that wait for a slot share a request, in which each id is named once."""
    ec2 = Ec2(set(), set(), names=True)
    ec2.slots = asyncio.Semaphore(0)
    shared, asked = terminations(ec2), []
    for number in (1, 2, 3, 2):
        asked.append(asyncio.create_task(shared.terminate(f"i-{number}")))
        for _ in range(10):
            await asyncio.sleep(0)
    ec2.slots.release()
    await asyncio.gather(*asked)
    assert [["i-1", "i-2", "i-3"]] == ec2.requests


async def test_a_caller_that_is_cancelled_takes_nothing_from_another() -> None:
    """Not from one who waits for the same instance, either."""
    ec2 = Ec2(set(), set(), names=True)
    ec2.slots = asyncio.Semaphore(0)
    shared = terminations(ec2)
    first, same, other = (
        asyncio.create_task(shared.terminate(each)) for each in ("i-1", "i-1", "i-2")
    )
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    ec2.slots.release()
    await asyncio.gather(same, other)
    assert {"i-1", "i-2"} == ec2.terminated


async def test_closed_all_who_wait_are_cancelled() -> None:
    """None waits for an answer that no longer comes."""
    ec2 = Ec2(set(), set(), names=True)
    ec2.slots = asyncio.Semaphore(0)
    shared = terminations(ec2)
    waiting = [asyncio.create_task(shared.terminate(f"i-{n}")) for n in range(3)]
    await asyncio.sleep(0)
    await shared.close()
    await asyncio.wait(waiting)
    assert all(each.cancelled() for each in waiting)


async def test_at_moto_many_go_in_a_few_requests_past_one_that_does_not_exist(
    make_aws: Make, moto_api: Any
) -> None:
    """Five requests at once and two a second are allowed; none is refused."""
    provider = make_aws()
    await limit(moto_api)
    await asyncio.gather(*(launch(provider, f"web-{n}") for n in range(4)))
    ids = [each.provider_id for each in await provider.list()]
    await limit(moto_api, TerminateInstances=(5, 2))
    unknown = ["i-0123456789abcdef0", "i-0123456789abcdef1", "odd"]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(provider.terminate, [*ids[:2], *unknown, *ids[2:]]))
    counts = await counted(moto_api, "TerminateInstances")
    assert [] == await provider.list()
    assert 0 == counts["refused"]
    assert counts["answered"] <= 5


class Paired:
    """A provider whose removals wait for each other, so that two share a request."""

    def __init__(self, real: AwsProvider) -> None:
        self._real = real
        self._both = asyncio.Barrier(2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def terminate(self, provider_id: str) -> None:
        """Remove it together with the other."""
        await self._both.wait()
        await self._real.terminate(provider_id)


@pytest.mark.slow
async def test_killed_in_a_request_that_two_removals_share_it_leaves_neither(
    bus: NatsBus, make_aws: Make, moto: str, moto_api: Any
) -> None:
    """Begun again by another process, each ends with a confirmed absence."""
    [row] = [each for each in ROWS if each.label == "aws"]

    def make(**options: Any) -> Any:
        made = make_aws(**options)
        return Paired(made) if "endpoint_url" in options else made

    async def both(each: SagaStepHandlers, orders: list[Command]) -> None:
        await asyncio.gather(*map(each.terminate, orders))

    async with lossy(moto) as way:
        cloud = Cloud(bus, row, make, way)
        for moment in range(1, MOMENTS_MAX):
            nodes = [f"web-{moment}-{which}" for which in ("a", "b")]
            await asyncio.gather(*(cloud.process().provision(cloud.launch(n)) for n in nodes))
            orders = [terminate(each) for each in nodes]
            await limit(moto_api)
            killed = await cloud.killed_at(moment, lambda each, these=orders: both(each, these))
            shared = await counted(moto_api, "TerminateInstances")
            if killed:
                assert shared["answered"] <= 1
                await both(cloud.process(), orders)
            for node in nodes:
                assert "terminated" == (await recorded(bus, node)).state
                assert [] == await cloud.existing(node)
            if not killed:
                assert moment > 1
                assert 1 == shared["answered"]
                return
    pytest.fail("the removals have more moments than this test tries")
