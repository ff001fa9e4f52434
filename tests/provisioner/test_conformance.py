"""What every provider must keep: the contract in `services.provisioner.provider`, on all ours."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from schemas.duration import Duration
from services.provisioner.errors import ProviderError
from services.provisioner.provider import Environment, Provider, ProvisionRequest, Reboots
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.providers.lambda_cloud import LambdaProvider
from services.provisioner.providers.local import LocalProvider, stop_all
from tests.provisioner.lambda_server import KEY, serving
from tests.provisioner.support import FLEET, request

Make = Callable[[], Provider]
SLEEP = ("/bin/sleep", "1000")


@pytest.fixture
async def make_lambda(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes the Lambda provider, on a strict server of its API."""
    (tmp_path / "key").write_text(KEY)
    environment = Environment(
        name="lambda", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=tmp_path
    )
    async with serving() as api:
        options = LambdaProvider.Options(
            api_key_file=str(tmp_path / "key"),
            base_url=api.url,
            ssh_key="laptop",
            request_interval=Duration(0),
            launch_interval=Duration(0),
        )
        yield lambda: LambdaProvider(options=options, environment=environment)


@pytest.fixture(params=["fake", "fake-file", "local", "lambda", "aws", "gcp"])
async def make(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_lambda: Make,
    make_aws: Make,
    make_gcp: Make,
) -> AsyncIterator[Make]:
    """Makes the provider anew, as a restarted provisioner does: what it holds must outlive it."""
    kind: str = request.param
    environment = Environment(
        name=kind, fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=tmp_path
    )
    once = FakeProvider(options=FakeProvider.Options(), environment=environment)
    made: list[Provider] = []

    def again() -> Provider:
        provider: Provider
        if kind == "lambda":
            provider = make_lambda()
        elif kind == "aws":
            provider = make_aws()
        elif kind == "gcp":
            provider = make_gcp()
        elif kind == "local":
            options = LocalProvider.Options(gpu_count=0)
            provider = LocalProvider(options=options, environment=environment, command=SLEEP)
        elif kind == "fake-file":
            file = FakeProvider.Options(file=str(tmp_path / "fake.json"))
            provider = FakeProvider(options=file, environment=environment)
        else:
            provider = once
        made.append(provider)
        return provider

    yield again
    for each in made:
        await each.close()
    stop_all(tmp_path / "local")


def wanted(name: str = "web-1", **changes: object) -> ProvisionRequest:
    """A request without GPUs, so that no compiler is needed."""
    return request(name, gpu_count=0, **({"region": "us-east-1", "zone": "us-east-1a"} | changes))


async def test_a_provider_says_its_name_and_what_it_can(make: Make) -> None:
    """The name is the configuration's, and capabilities are declared."""
    provider = make()
    assert provider.name in {"fake", "fake-file", "local", "lambda"}
    assert provider.capabilities.list_lag_seconds >= 0


async def test_an_instance_says_what_it_was_made_for(make: Make) -> None:
    """Name, fleet, pool, token, type and place come back from `provision` and from `list`."""
    provider = make()
    asked = wanted()
    made = await provider.provision(asked)
    (listed,) = await provider.list()
    for each in (made, listed):
        assert (each.name, each.fleet, each.pool) == ("web-1", FLEET, "web")
        assert (each.token, each.instance_type) == (asked.token, "h100")
        assert each.status in ("running", "pending")
        # Lambda has no zones; Google's say which region they are in.
        assert (each.region, each.zone) in {
            ("us-east-1", "us-east-1a"),
            ("us-east-1", ""),
            ("us-east", "us-east-1a"),
        }
        assert each.provider_id == made.provider_id


async def test_a_repeated_launch_makes_nothing_new(make: Make) -> None:
    """Also after a restart, and also at the same time as others repeat it."""
    first = await make().provision(wanted())
    again = await make().provision(wanted())
    crowd = await asyncio.gather(*(make().provision(wanted()) for _ in range(5)))
    assert {each.provider_id for each in (first, again, *crowd)} == {first.provider_id}
    assert len(await make().list()) == 1


async def test_the_list_is_whole(make: Make) -> None:
    """Every instance that was made and not removed is listed, once."""
    provider = make()
    made = [await provider.provision(wanted(f"web-{n}")) for n in range(6)]
    await provider.terminate(made[2].provider_id)
    expected = sorted(each.provider_id for each in made if each is not made[2])
    assert sorted(each.provider_id for each in await make().list()) == expected


async def test_a_removal_repeated_or_of_nothing_is_a_success(make: Make) -> None:
    """What is gone, and what never was, can be removed again."""
    provider = make()
    made = await provider.provision(wanted())
    for _ in range(3):
        await provider.terminate(made.provider_id)
    await make().terminate(made.provider_id)
    await provider.terminate("never-was")
    assert await provider.list() == []


async def test_two_removals_at_once_are_a_success(make: Make) -> None:
    """Neither fails because of the other."""
    made = await make().provision(wanted())
    await asyncio.gather(*(make().terminate(made.provider_id) for _ in range(4)))
    assert await make().list() == []


async def test_a_launch_and_a_removal_at_once_leave_one_or_none(make: Make) -> None:
    """Whichever comes last, the list says what stands."""
    for number in range(5):
        asked = wanted(f"web-{number}")
        made = await make().provision(asked)
        await asyncio.gather(make().provision(asked), make().terminate(made.provider_id))
        left = [each for each in await make().list() if each.name == asked.name]
        assert len(left) <= 1
        for each in left:
            await make().terminate(each.provider_id)
    assert await make().list() == []


async def test_a_reboot_keeps_the_instance(make: Make) -> None:
    """Who can reboot says so and does: once, twice or at the same time, it stands as it stood."""
    provider = make()
    assert provider.capabilities.reboot == isinstance(provider, Reboots)
    if not isinstance(provider, Reboots):
        pytest.skip("it cannot reboot")
    made = await provider.provision(wanted())
    await provider.reboot(made)
    await asyncio.gather(*(each.reboot(made) for each in (make(), make())))
    (listed,) = await provider.list()
    assert (listed.provider_id, listed.token) == (made.provider_id, made.token)


async def test_a_reboot_of_nothing_is_refused(make: Make) -> None:
    """What was removed is not brought back by it."""
    provider = make()
    if not isinstance(provider, Reboots):
        pytest.skip("it cannot reboot")
    made = await provider.provision(wanted())
    await provider.terminate(made.provider_id)
    with pytest.raises(ProviderError) as refused:
        await provider.reboot(made)
    assert refused.value.kind == "INVALID"
    assert await provider.list() == []
