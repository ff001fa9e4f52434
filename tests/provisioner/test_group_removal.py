"""A node's machine is removed so that its maker makes another: AWS's groups, on moto."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aioboto3
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.kubernetes import KubernetesProvider
from tests.notifier.kubernetes_site import kubeconfig
from tests.support.serving import serving

OPTIONS = {"selectors": {"gpu": "gpu=true"}, "kubeconfig": "k"}


class Api:
    """The part of a Kubernetes API with nodes and node claims; it counts what is deleted."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.deleted: list[tuple[str, str]] = []

    def add(self, name: str, provider_id: str = "", **about: Any) -> None:
        """A node joins."""
        spec = {"providerID": provider_id} if provider_id else {}
        self.nodes.append({"metadata": {"name": name, "uid": f"uid-{name}", **about}, "spec": spec})

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        assert request.headers["Authorization"] == "Bearer t"
        if request.method == "DELETE":
            self.deleted.append((request.url.path, (await request.body()).decode()))
            return JSONResponse({"status": "Success"})
        assert request.query_params["labelSelector"] == "gpu=true"
        return JSONResponse({"items": self.nodes, "metadata": {}})


@pytest.fixture
def api() -> Api:
    """Return a cluster without nodes."""
    return Api()


@pytest.fixture
async def make(api: Api, tmp_path: Path) -> AsyncIterator[Any]:
    """Makes a provider of that cluster."""
    file, providers = tmp_path / "kubeconfig", list[KubernetesProvider]()
    app = Starlette(routes=[Route("/{path:path}", api.answer, methods=["GET", "DELETE"])])

    def made(**options: Any) -> KubernetesProvider:
        provider = KubernetesProvider(
            options=KubernetesProvider.Options(**{**OPTIONS, **options, "kubeconfig": str(file)}),
            environment=Environment(name="eks", fleet="f", nats_url="", data_dir=tmp_path),
        )
        providers.append(provider)
        return provider

    async with serving(app) as url:
        file.write_text(kubeconfig(url))
        yield made
        for each in providers:
            await each.close()


async def group_of(moto: str, count: int) -> Any:
    """An auto-scaling group of a size; its client, and that of EC2."""
    session = aioboto3.Session(
        region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    async with (
        session.client("autoscaling", endpoint_url=moto) as groups,
        session.client("ec2", endpoint_url=moto) as ec2,
    ):
        [image, *_] = (await ec2.describe_images())["Images"]
        await groups.create_launch_configuration(
            LaunchConfigurationName="gpu", ImageId=image["ImageId"], InstanceType="p4d.24xlarge"
        )
        await groups.create_auto_scaling_group(
            AutoScalingGroupName="gpu",
            LaunchConfigurationName="gpu",
            MinSize=0,
            MaxSize=9,
            DesiredCapacity=count,
            AvailabilityZones=["us-east-1a"],
        )


async def members(moto: str) -> tuple[int, list[str]]:
    """A group's desired capacity and its instances that run."""
    session = aioboto3.Session(
        region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    async with (
        session.client("autoscaling", endpoint_url=moto) as groups,
        session.client("ec2", endpoint_url=moto) as ec2,
    ):
        [group] = (await groups.describe_auto_scaling_groups())["AutoScalingGroups"]
        named = sorted({each["InstanceId"] for each in group["Instances"]})
        found = await ec2.describe_instances(InstanceIds=named)
    instances = [each for all_ in found["Reservations"] for each in all_["Instances"]]
    running = [each["InstanceId"] for each in instances if each["State"]["Name"] == "running"]
    return group["DesiredCapacity"], running


async def test_an_instance_is_terminated_in_its_group(
    api: Api, make: Any, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group keeps its size; once the instance is gone the Node object is deleted, once."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    async with httpx.AsyncClient() as client:
        (await client.post(f"{moto}/moto-api/reset")).raise_for_status()
    await group_of(moto, 2)
    _, [first, second] = await members(moto)
    api.add("a", f"aws:///us-east-1a/{first}")
    api.add("b", f"aws:///us-east-1a/{second}")
    provider = make(removal="auto-scaling-group", region="us-east-1", endpoint_url=moto)
    await provider.terminate(f"aws:///us-east-1a/{first}")
    desired, left = await members(moto)
    assert desired == len(left) == 2
    assert first not in left
    assert second in left
    assert api.deleted == []
    await provider.terminate(f"aws:///us-east-1a/{first}")
    [(path, body)] = api.deleted
    assert (path, "uid-a" in body) == ("/api/v1/nodes/a", True)
    assert (await members(moto))[0] == 2
    await provider.terminate("aws:///us-east-1a/i-00000000")  # the cluster has none


@pytest.mark.parametrize(
    ("provider_id", "says"),
    [
        ("gce://p-roject/us-central1-a/n", "names no EC2 instance"),
        ("aws:///eu-west-1a/i-01234567", "not in region us-east-1"),
        ("", "names no EC2 instance"),
    ],
)
async def test_a_machine_of_another_maker_is_left_alone(
    api: Api, make: Any, provider_id: str, says: str
) -> None:
    """A machine of another maker is refused before AWS is asked."""
    api.add("a", provider_id)
    provider = make(removal="auto-scaling-group", region="us-east-1", endpoint_url="http://x:1")
    [instance] = await provider.list()
    with pytest.raises(ProviderError, match=says):
        await provider.terminate(instance.provider_id)
    assert api.deleted == []


async def test_karpenter_deletes_the_claim(api: Api, make: Any) -> None:
    """The node's owner is deleted by its UID; a node without a claim is refused."""
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "gpu-x7k", "uid": "u7"}
    api.add("a", "aws:///us-east-1a/i-0123456789abcdef0", ownerReferences=[owner])
    api.add("b", "aws:///us-east-1a/i-0123456789abcdef1")
    provider = make(removal="node-claim")
    await provider.terminate("aws:///us-east-1a/i-0123456789abcdef0")
    [(path, body)] = api.deleted
    assert (path, '"u7"' in body) == ("/apis/karpenter.sh/v1/nodeclaims/gpu-x7k", True)
    with pytest.raises(ProviderError, match="has no NodeClaim"):
        await provider.terminate("aws:///us-east-1a/i-0123456789abcdef1")


async def test_names_are_unique_and_removal_is_configured(api: Api, make: Any) -> None:
    """Two nodes of one name are an error, and so is a removal that is not configured."""
    api.add("a.b", "x://1")
    provider = make()
    [instance] = await provider.list()
    assert (instance.name, instance.pool, instance.fleet) == ("a-b", "gpu", "")
    with pytest.raises(ProviderError, match="has no `removal`"):
        await provider.terminate("x://1")
    api.add("a-b", "x://2")
    with pytest.raises(ProviderError, match="would both be a-b"):
        await provider.list()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"selectors": {}}, "is empty"),
        ({"selectors": {"gpu": " "}}, "write a label selector"),
        ({"selectors": {"GPU": "a"}}, "not the name of a pool"),
        ({"removal": "auto-scaling-group"}, "`region`"),
        ({"region": "us-east-1"}, "remove it"),
    ],
)
def test_options_that_cannot_work_are_refused(wrong: Any, says: str) -> None:
    """Options that cannot work are refused before anything runs, with the remedy."""
    with pytest.raises(ValueError, match=says):
        KubernetesProvider.Options(**{**OPTIONS, **wrong})


def test_outside_of_a_pod_a_kubeconfig_is_needed(tmp_path: Any) -> None:
    """The error names the key."""
    environment = Environment(name="eks", fleet="f", nats_url="", data_dir=tmp_path)
    options = KubernetesProvider.Options(selectors={"gpu": "a"})
    with pytest.raises(ConfigurationError, match="kubeconfig: FILE"):
        KubernetesProvider(options=options, environment=environment)
