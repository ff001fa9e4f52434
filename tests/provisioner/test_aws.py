"""AWS EC2, against a real moto server over HTTP; what moto lacks is said in `moto_server`.

Proven: the requests are such as the SDK's own model of the API accepts, tags and paging find every
instance again, and deaths between calls leave one instance. Not proven: AWS itself.
"""

from collections.abc import Callable

import pytest
from botocore.exceptions import (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOTokenLoadError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from schemas.duration import Duration
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import aws, aws_clients
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.aws_errors import KINDS, error_of
from services.saga.participant import StepFailure
from tests.provisioner.provisioner_parts import (
    Killed,
    Life,
    Mortal,
    provision,
    request,
    steps,
    token_of,
)

Make = Callable[..., AwsProvider]
ZONE = "us-east-1a"
REGION = "us-east-1"
POINTS_MAX = 40


def wanted(name: str = "web-1", **changes: object):
    """A launch that moto knows."""
    return request(name, **({"region": REGION, "instance_type": "p5.48xlarge"} | changes))


# --- requests and answers ------------------------------------------------------------------------


async def test_a_launch_carries_all_that_finds_it_again(make_aws: Make) -> None:
    """Tags, place and type come back from the launch and from the list."""
    provider = make_aws()
    made = await provider.provision(wanted(zone=ZONE, labels={"team": "vision"}))
    [listed] = await provider.list()
    for each in (made, listed):
        assert ("web-1", "web", token_of()) == (each.name, each.pool, each.token)
        assert (REGION, ZONE, "p5.48xlarge") == (each.region, each.zone, each.instance_type)
        assert "vision" == each.tags["team"]
    assert listed.created_at is not None
    assert listed.address


async def test_an_instance_ends_with_its_machine_and_is_paid_as_said(make_aws: Make) -> None:
    """Shutting down terminates, spot is spot, and the metadata service wants a session."""
    provider = make_aws(market="spot", root_gb=200)
    made = await provider.provision(wanted())
    ends = await provider._call(
        "describe_instance_attribute",
        InstanceId=made.provider_id,
        Attribute="instanceInitiatedShutdownBehavior",
    )
    found = await provider._call("describe_instances", InstanceIds=[made.provider_id])
    [[shown]] = [each["Instances"] for each in found["Reservations"]]
    assert "terminate" == ends["InstanceInitiatedShutdownBehavior"]["Value"]
    assert "spot" == shown["InstanceLifecycle"]
    assert "required" == shown["MetadataOptions"]["HttpTokens"]
    volumes = await provider._call("describe_volumes")
    assert [200] == [each["Size"] for each in volumes["Volumes"]]
    [image] = (await provider._call("describe_images", ImageIds=[shown["ImageId"]]))["Images"]
    assert [image["RootDeviceName"]] == [
        each["DeviceName"] for each in shown["BlockDeviceMappings"]
    ]


async def test_pages_are_read_to_the_end(make_aws: Make, monkeypatch) -> None:
    """A list that ends with the first page would forget instances."""
    monkeypatch.setattr(aws_clients, "PAGE", 5)
    provider = make_aws()
    for number in range(12):
        await provider.provision(wanted(f"web-{number}"))
    assert {f"web-{n}" for n in range(12)} == {each.name for each in await provider.list()}


async def test_others_instances_are_not_seen(make_aws: Make) -> None:
    """An instance that no fleet has tagged is not listed."""
    provider = make_aws()
    await provider._call("run_instances", MinCount=1, MaxCount=1, ImageId=make_aws().options.image)
    assert [] == await provider.list()


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        ({"region": "eu-central-1"}, {}, "add a provider of type aws"),
        ({"zone": "us-east-1c"}, {"subnets": {ZONE: "subnet-1"}}, "add it to `subnets`"),
        ({"ssh_keys": ("one", "two")}, {}, "takes one key pair"),
    ],
)
async def test_what_the_provider_cannot_do_is_refused_with_the_remedy(
    make_aws: Make, changes: dict[str, object], options: dict[str, object], says: str
) -> None:
    """INVALID, before anything is asked of EC2."""
    with pytest.raises(ProviderError, match=says) as refused:
        await make_aws(**options).provision(wanted(**changes))
    assert "INVALID" == refused.value.kind


@pytest.mark.parametrize(
    ("image", "instance_type", "sent"),
    [
        ("ami-1", "p5.48xlarge", "ami-1"),
        ("", "p5.48xlarge", "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-"),
        ("", "p6e-gb200.36xlarge", "resolve:ssm:/aws/service/deeplearning/ami/arm64/base-oss-"),
    ],
)
def test_without_an_image_the_type_decides(
    make_aws: Make, image: str, instance_type: str, sent: str
) -> None:
    """A launch without an image gets AWS's own with the driver, for the type's processors."""
    launch = make_aws(image=image)._launch(wanted(instance_type=instance_type))
    assert launch["ImageId"].startswith(sent)


def test_the_client_token_differs_with_the_place() -> None:
    """EC2 refuses one token with two sets of parameters."""
    options = AwsProvider.Options(region=REGION, image="ami-1")
    tokens = {
        aws._client_token(each, options, "on-demand")
        for each in (wanted(), wanted(zone=ZONE), wanted(instance_type="p4d.24xlarge"))
    }
    assert 3 == len(tokens)
    assert all(64 == len(each) for each in tokens)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), KINDS.items())
def test_every_known_code_has_its_kind(code: str, kind: str) -> None:
    """Each known error code has one row, which gives its kind."""
    error = error_of({"Error": {"Code": code, "Message": "m"}})
    assert (kind, f"{code}: m") == (error.kind, error.message)


def test_an_unknown_code_is_transient_and_says_so() -> None:
    """Never silently something else; a server's own failure is no riddle."""
    odd = error_of({"Error": {"Code": "Odd", "Message": "m"}})
    broken = error_of({"Error": {"Code": "Odd"}, "ResponseMetadata": {"HTTPStatusCode": 503}})
    assert ("TRANSIENT", "TRANSIENT") == (odd.kind, broken.kind)
    assert (True, False) == ("not known" in odd.message, "not known" in broken.message)


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (SSOTokenLoadError(error_msg="expired"), "run `aws sso login --profile ops`"),
        (UnauthorizedSSOTokenError(), "run `aws sso login --profile ops`"),
        (TokenRetrievalError(provider="sso", error_msg="expired"), "aws sso login"),
        (NoCredentialsError(), "an instance role"),
        (CredentialRetrievalError(provider="process", error_msg="exit 1"), "an instance role"),
        (PartialCredentialsError(provider="env", cred_var="AWS_SECRET"), "set `profile`"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
async def test_without_credentials_operators_are_called(
    make_aws: Make, monkeypatch: pytest.MonkeyPatch, raised: Exception, says: str
) -> None:
    """Missing credentials are no outage that passes: the SDK raises before it asks EC2 anything."""
    provider = make_aws()
    monkeypatch.setattr(provider._clients, "_profile", "ops")

    async def connect(_service: str) -> None:
        raise raised

    monkeypatch.setattr(provider._clients, "_connect", connect)
    with pytest.raises(ProviderError, match=says) as failed:
        await provider.list()
    assert "AUTH" == failed.value.kind


async def test_a_profile_that_does_not_exist_is_no_outage(make_aws: Make) -> None:
    """The SDK finds it missing when it connects."""
    with pytest.raises(ProviderError, match=r"profile \(ops-2\) could not be found") as failed:
        await make_aws(profile="ops-2").list()
    assert "AUTH" == failed.value.kind


async def test_a_server_that_is_away_is_transient(make_aws: Make) -> None:
    """No server answers: another attempt of the same intention may succeed."""
    provider = make_aws(endpoint_url="http://127.0.0.1:9", timeout=Duration(1))
    with pytest.raises(ProviderError, match=r"127\.0\.0\.1:9") as refused:
        await provider.list()
    assert "TRANSIENT" == refused.value.kind


# --- through the provisioner ---------------------------------------------------------------------


def launch(node: str, **changes: object):
    """Return the provision step's command."""
    return provision(
        node, **({"instance_type": "p5.48xlarge", "region": REGION, "gpu_count": 8} | changes)
    )


async def test_a_launch_killed_between_any_two_calls_makes_one_instance(
    bus: NatsBus, make_aws: Make
) -> None:
    """Repeated by another process, it adopts the instance."""
    for point in range(1, POINTS_MAX):
        node = f"web-{point}"
        try:
            await steps(bus, Mortal(make_aws(), Life(point))).provision(launch(node))
        except Killed:
            outputs = await steps(bus, make_aws()).provision(launch(node))
            made = [each.provider_id for each in await make_aws().list() if each.name == node]
            assert [outputs.provider_id] == made
        else:
            assert point > 2
            break
    else:
        pytest.fail("the launch has more points than this test tries")


@pytest.mark.usefixtures("hopeless")
async def test_no_capacity_in_any_zone_fails_the_step_with_its_kind(
    bus: NatsBus, make_aws: Make
) -> None:
    """Nothing is left behind."""
    command = launch("web-1", instance_type="x2iedn.32xlarge", zones=(ZONE, "us-east-1b"))
    provider = make_aws()
    with pytest.raises(StepFailure, match="no capacity") as failed:
        await steps(bus, provider).provision(command)
    assert ("CAPACITY", []) == (failed.value.error, await provider.list())
