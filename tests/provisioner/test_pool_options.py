"""A pool's own options of its provider: checked with the configuration, sent by each launch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.duration import Duration
from schemas.launch_offers import Choice, Offer
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.azure import AzureProvider
from services.provisioner.providers.gcp import GcpProvider
from services.provisioner.providers.lambda_cloud import LambdaProvider
from services.settings.pool_options import per_pool_type, pool_option_names
from services.settings.settings_file import load_settings
from tests.provisioner.azure_server import AzureServer
from tests.provisioner.gcp_server import GcpServer
from tests.provisioner.provisioner_parts import provision, request, steps

Make = Callable[..., Any]
CONFIGURATION = """\
providers:
  aws: {type: aws, region: us-east-1}
  own: {type: local}
pools:
  web:
    instance_type: p5.48xlarge
    min_nodes: 0
    max_nodes: 1
    providers:
"""


async def test_aws_launches_with_the_options_of_the_pool(make_aws: Make) -> None:
    """Image, disk and tags; another pool's launch has the provider's."""
    provider: AwsProvider = make_aws(tags={"team": "all"})
    images = (await provider._call("describe_images"))["Images"]
    other = next(each["ImageId"] for each in images if each["ImageId"] != provider.options.image)
    options = {"image": other, "disk": {"gb": 321, "encrypted": True}, "tags": {"team": "web"}}
    ask = {"region": "us-east-1", "instance_type": "p5.48xlarge"}
    made = await provider.provision(request("web-1", **ask, options=options))
    plain = await provider.provision(request("web-2", **ask))
    found = await provider._call("describe_instances", InstanceIds=[made.provider_id])
    [[shown]] = [each["Instances"] for each in found["Reservations"]]
    assert other == shown["ImageId"]
    assert ("web", "all") == (made.tags["team"], plain.tags["team"])
    volumes = (await provider._call("describe_volumes"))["Volumes"]
    assert (321, True) in [(each["Size"], each["Encrypted"]) for each in volumes]


async def test_the_root_device_of_an_image_that_ec2_looks_up(make_aws: Make) -> None:
    """AWS's own image is an Ubuntu; of another one the operator must say it."""
    ask = {"region": "us-east-1", "instance_type": "p5.48xlarge"}
    provider: AwsProvider = make_aws(image="", root_gb=300)
    assert "/dev/sda1" == await provider._image_root_device("")
    asked = request("web-1", **ask, options={"image": "resolve:ssm:/ours"})
    with pytest.raises(ProviderError, match="set `root_device`"):
        await provider.provision(asked)


async def test_gcp_launches_with_the_options_of_the_pool(gcp: GcpServer, make_gcp: Make) -> None:
    """Image, disk and its key, networks, labels and age."""
    key = "projects/keys/locations/us-central1/keyRings/gpu/cryptoKeys/disks"
    networks = [{"network": "global/networks/gpu-1", "nic_type": "GVNIC"}]
    options = {"image": "i", "root_gb": 321, "networks": networks, "max_run": "1h"}
    options["disk_kms_key"] = key
    provider: GcpProvider = make_gcp()
    asked = {"zone": "us-central1-a", "instance_type": "a3-highgpu-8g", "options": options}
    await provider.provision(request("web-1", **asked))
    [sent] = gcp.instances.values()
    disk = sent["disks"][0]["initializeParams"]
    assert ("i", "321") == (disk["sourceImage"], disk["diskSizeGb"])
    assert (2, {"seconds": "3600"}) == (
        len(sent["networkInterfaces"]),
        sent["scheduling"]["maxRunDuration"],
    )
    assert {"kmsKeyName": key} == sent["disks"][0]["diskEncryptionKey"]
    assert provider.options.max_run == Duration(0)
    await provider.provision(request("web-2", **asked | {"options": {}}))
    [plain] = [each for each in gcp.instances.values() if each["name"] == "web-2"]
    assert "diskEncryptionKey" not in plain["disks"][0]


async def test_azure_launches_with_the_options_of_the_pool(
    azure: AzureServer, make_azure: Make
) -> None:
    """Image, disk and its key, security group and scale set."""
    options = {
        "disk_encryption_set": "keys",
        "image": "a:b:c:d",
        "root_gb": 321,
        "scale_set": "ib",
        "security_group": "/nsg",
    }
    provider: AzureProvider = make_azure()
    await provider.provision(
        request("web-1", zone="1", instance_type="Standard_ND96isr_H100_v5", options=options)
    )
    [machine] = azure.machines.values()
    [nic] = azure.resources["networkInterfaces"].values()
    storage = machine["properties"]["storageProfile"]
    assert ("a", 321) == (storage["imageReference"]["publisher"], storage["osDisk"]["diskSizeGB"])
    used = storage["osDisk"]["managedDisk"]["diskEncryptionSet"]["id"]
    assert used.endswith("/gpus/providers/Microsoft.Compute/diskEncryptionSets/keys")
    assert {"id": "/nsg"} == nic["properties"]["networkSecurityGroup"]
    assert machine["properties"]["virtualMachineScaleSet"]["id"].endswith("/ib")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"region": "eu-west-1"}, "unknown field `region`"),
        ({"disk": {"gb": "big"}}, "Expected `int`"),
        ({"disk": {"type": "io2"}}, "io2 needs `iops`"),
        ({"efa": True}, "efa needs `security_groups`"),
    ],
)
async def test_a_launch_with_wrong_options_is_refused(
    make_aws: Make, options: dict[str, Any], says: str
) -> None:
    """INVALID, before anything is asked of EC2: its record may be older than the provider."""
    asked = request("web-1", region="us-east-1", instance_type="p5.48xlarge", options=options)
    with pytest.raises(ProviderError, match=says) as refused:
        await make_aws().provision(asked)
    assert "INVALID" == refused.value.kind


async def test_a_launch_carries_the_options_of_the_provider_it_takes(
    bus: NatsBus, gcp: GcpServer, make_gcp: Make
) -> None:
    """Options of a pool's entry arrive in the request at the cloud."""
    offers = (
        Offer(provider="other", instance_type="t", options={"image": "wrong"}),
        Offer(
            provider="fake",
            instance_type="a3-highgpu-8g",
            zones=("z-a",),
            options={"image": "ours"},
        ),
    )
    await steps(bus, make_gcp()).provision(provision("web-1", choice=Choice(offers=offers)))
    [sent] = gcp.instances.values()
    assert "ours" == sent["disks"][0]["initializeParams"]["sourceImage"]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("[{name: aws, options: {image: ami-1, disk: {gb: 500}}}]", ""),
        ("[{name: aws, options: {imag: ami-1}}]", "options.imag: is no option that a pool may set"),
        (
            "[{name: aws, options: {region: x}}]",
            r"options.region: is no .* \(those are: disk,",
        ),
        ("[{name: aws, options: {disk: {gb: x}}}]", r"providers.0.options: .*\$.disk.gb"),
        ("[{name: own, options: {image: x}}]", r"options.image: .* 'own' \(those are: none\)"),
        (
            "[{name: aws, options: {image: a}}, {name: aws, options: {image: b}}]",
            "providers.1.options: differ from those of another entry of aws",
        ),
    ],
)
def test_options_of_a_pool_are_checked_with_the_configuration(
    tmp_path: Path, entries: str, says: str
) -> None:
    """A wrong option is named with its place, and with what would be right."""
    file = tmp_path / "navarch.yaml"
    file.write_text(f"{CONFIGURATION}      {entries}\n")
    if not says:
        spec = load_settings(file, {}).pools["web"]
        assert {"image": "ami-1", "disk": {"gb": 500}} == spec.providers[0].options
        return
    with pytest.raises(ConfigurationError, match=says):
        load_settings(file, {})


@pytest.mark.parametrize("plugin", [AwsProvider, AzureProvider, GcpProvider, LambdaProvider])
def test_what_a_pool_may_set_are_options(plugin: type[Any]) -> None:
    """Each name is one, and none says which account or place the provider is."""
    names = pool_option_names(plugin)
    assert names == set(per_pool_type(plugin).__struct_fields__)
    assert not names & {"region", "profile", "project", "subscription", "location", "base_url"}
