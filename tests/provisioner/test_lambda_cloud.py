"""Lambda Cloud: held to its published API by a server that refuses whatever that does not know.

Proven here: requests and answers as the OpenAPI description has them, and what becomes of refusals,
lost answers and deaths between calls. Not proven: the real service, which no test here can reach.
"""

from collections.abc import Callable

import pytest

from schemas.duration import Duration
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.lambda_cloud import LambdaProvider
from services.provisioner.providers.lambda_errors import KINDS, error_of
from services.saga.participant import StepFailure
from tests.provisioner.faulty_transports import MortalTransport
from tests.provisioner.http_status_table import COMMON
from tests.provisioner.lambda_server import (
    BAD_KEY,
    BROKEN,
    CAPACITY,
    QUOTA,
    THROTTLED,
    LambdaServer,
)
from tests.provisioner.provisioner_parts import (
    FLEET,
    Killed,
    Life,
    provision,
    request,
    steps,
    token_of,
)

Make = Callable[..., LambdaProvider]
LAUNCH = "/instance-operations/launch"
POINTS_MAX = 40


@pytest.fixture
def api(lambda_api: LambdaServer) -> LambdaServer:
    """Return the strict server."""
    return lambda_api


@pytest.fixture
def make(make_lambda: Make) -> Make:
    """Makes the provider again."""
    return make_lambda


def wanted(name: str = "web-1", **changes: object):
    """A launch that the server knows."""
    return request(name, **({"region": "us-west-2", "instance_type": "gpu_1x_a10"} | changes))


# --- requests and answers ------------------------------------------------------------------------


async def test_a_launch_carries_all_that_finds_it_again(api: LambdaServer, make: Make) -> None:
    """Name, tags, key, place; and what is listed later says the price and the address."""
    made = await make().provision(wanted(labels={"team": "vision"}))
    [stood] = api.instances.values()
    tags = {each["key"]: each["value"] for each in stood["tags"]}
    assert ("web-1", ["laptop"]) == (stood["name"], stood["ssh_key_names"])
    assert {
        "navarch-fleet": FLEET,
        "navarch-pool": "web",
        "navarch-node": "web-1",
        "navarch-token": token_of(),
        "team": "vision",
    } == tags
    api.boot()
    [listed] = await make().list()
    assert (made.provider_id, "running", "192.0.2.1", 0.75) == (
        listed.provider_id,
        listed.status,
        listed.address,
        listed.dollars_per_hour,
    )


async def test_what_is_gone_is_not_listed_and_what_is_new_to_us_is(
    api: LambdaServer, make: Make
) -> None:
    """A preempted instance costs nothing; one in a state that we do not know may."""
    for number, status in enumerate(("terminated", "preempted", "terminating", "migrating")):
        await make().provision(wanted(f"web-{number}"))
        list(api.instances.values())[-1]["status"] = status
    assert {"web-2": "stopping", "web-3": "running"} == {
        each.name: each.status for each in await make().list()
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"region": ""}, "names no `region`"),
        ({"ssh_keys": ("one", "two")}, "exactly one SSH key"),
        ({"name": "n" * 65}, "longer than 64"),
    ],
)
async def test_what_lambda_cannot_do_is_refused_before_it_is_asked(
    api: LambdaServer, make: Make, changes: dict[str, object], says: str
) -> None:
    """INVALID names the remedy, and no request goes out."""
    with pytest.raises(ProviderError, match=says) as refused:
        await make().provision(wanted(**changes))
    assert ("INVALID", []) == (refused.value.kind, api.calls)


def test_without_a_key_the_service_does_not_start(make: Make, monkeypatch) -> None:
    """The error names the provider, the variable and the two ways out."""
    monkeypatch.delenv("LAMBDA_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="LAMBDA_API_KEY is not set"):
        make(api_key_file="")
    with pytest.raises(ConfigurationError, match="No such file"):
        make(api_key_file="/nowhere/key")


async def test_requests_are_paced(api: LambdaServer, make: Make) -> None:
    """Never faster than the account is allowed, however many come at once."""
    provider = make(request_interval=Duration(0.1), launch_interval=Duration(0.4))
    for number in range(3):
        await provider.provision(wanted(f"web-{number}"))
    moments = [moment for _, moment in api.calls]
    launches = [moment for path, moment in api.calls if path == LAUNCH]
    # A request may reach the server late, and the next one then seems early: their number counts.
    assert moments[-1] - moments[0] > (len(moments) - 1) * 0.1 - 0.3
    assert launches[-1] - launches[0] > 0.5


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), KINDS.items())
def test_every_documented_code_has_its_kind(code: str, kind: str) -> None:
    """Each documented error code has one row, which gives its kind."""
    body = f'{{"error": {{"code": "{code}", "message": "m", "suggestion": "s"}}}}'.encode()
    error = error_of(400, body)
    assert (kind, f"HTTP 400 {code}: m s") == (error.kind, error.message)


@pytest.mark.parametrize(
    ("status", "body", "kind", "unknown"),
    [
        *((status, b"{}", kind, unknown) for status, kind, unknown in COMMON),
        (429, b"slow down", "THROTTLE", False),
        (502, b"<html>", "TRANSIENT", False),
        (400, b'{"error": {"code": "global/new"}}', "TRANSIENT", True),
        (418, b"\xff", "TRANSIENT", True),
    ],
)
def test_an_unknown_answer_is_transient_and_says_so(
    status: int, body: bytes, kind: str, unknown: bool
) -> None:
    """An unknown answer is never silently something else."""
    error = error_of(status, body)
    assert (kind, unknown) == (error.kind, "not known here" in error.message)


@pytest.mark.parametrize(
    ("answer", "kind", "retry_after"),
    [
        (CAPACITY, "CAPACITY", None),
        (QUOTA, "QUOTA", None),
        (BROKEN, "TRANSIENT", None),
        (THROTTLED, "THROTTLE", 1.0),
        (BAD_KEY, "AUTH", None),
    ],
)
async def test_a_refused_launch_has_its_kind(
    api: LambdaServer, make: Make, answer: tuple[int, str], kind: str, retry_after: float | None
) -> None:
    """A refused launch has the kind and the wait that the provisioner needs."""
    api.order(LAUNCH, answer)
    with pytest.raises(ProviderError) as refused:
        await make().provision(wanted())
    assert (kind, retry_after) == (refused.value.kind, refused.value.retry_after)
    assert {} == api.instances


async def test_a_removal_of_what_lambda_does_not_know_is_done(make: Make) -> None:
    """404 there means gone; another error stays one."""
    await make().terminate("0" * 32)


# --- through the provisioner ---------------------------------------------------------------------


async def test_a_launch_killed_between_any_two_calls_makes_one_instance(
    bus: NatsBus, api: LambdaServer, make: Make
) -> None:
    """Repeated by another process, it adopts the instance."""
    for point in range(1, POINTS_MAX):
        node = f"web-{point}"
        command = provision(node, instance_type="gpu_1x_a10", region="us-west-2")
        try:
            await steps(bus, make(MortalTransport(Life(point)))).provision(command)
        except Killed:
            outputs = await steps(bus, make()).provision(command)
            made = [each["id"] for each in api.instances.values() if each["name"] == node]
            assert [outputs.provider_id] == made
        else:
            assert point > 3
            break
    else:
        pytest.fail("the launch has more points than this test tries")


@pytest.mark.parametrize("lost", ["answer", "silence"])
async def test_a_launch_whose_answer_is_lost_is_adopted(
    bus: NatsBus, api: LambdaServer, make: Make, lost: str
) -> None:
    """A 500 after the fact, or no answer ever: one instance, and it is ours."""
    if lost == "answer":
        api.order(LAUNCH, BROKEN, after_success=True)
    else:
        api.silent.add(LAUNCH)
    command = provision("web-1", instance_type="gpu_1x_a10", region="us-west-2")
    provider = make(timeout=Duration(0.3))
    outputs = await steps(bus, provider).provision(command)
    assert [outputs.provider_id] == list(api.instances)
    assert 1 == api.called(LAUNCH)


@pytest.mark.usefixtures("hopeless")
async def test_no_capacity_fails_the_step_with_its_kind(
    bus: NatsBus, api: LambdaServer, make: Make
) -> None:
    """The step fails, so that the pool waits or another offering is tried.

    Nothing is left behind.
    """
    api.order(LAUNCH, CAPACITY)
    command = provision("web-1", instance_type="gpu_1x_a10", region="us-west-2")
    with pytest.raises(StepFailure) as failed:
        await steps(bus, make()).provision(command)
    assert ("CAPACITY", {}) == (failed.value.error, api.instances)
