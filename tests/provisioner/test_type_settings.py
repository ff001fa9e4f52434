"""Agents get what follows from their type: RDMA devices, and the time of the driver."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.conditions.rdma_reader import RdmaPort, rdma_check
from agent.rdma_monitor import needs_of
from agent.settings import load
from schemas.duration import Duration, parse_duration
from schemas.instance_records import InstanceRecord
from schemas.instance_type_catalogue import InstanceTypes, TypeSpec
from schemas.launch_offers import Choice, Offer, Offering
from schemas.saga_log_entries import StepSucceeded
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.conformance import environment
from services.provisioner.instances.instance_decisions import intended_record
from services.provisioner.launch.type_settings import OF_GPUS, TypeSettings, stated
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.provider_client.provider import (
    Environment,
    Instance,
    Provider,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.azure import AzureProvider
from services.provisioner.providers.fake import FakeProvider
from services.settings.instance_type_file import with_shipped
from tests.provisioner.provisioner_parts import (
    answer_to,
    launch,
    providers,
    provision,
    running,
    start_step,
)
from tests.support.secured import NOW

H100 = "Standard_ND96isr_H100_v5"


def aws(where: Path, **options: Any) -> AwsProvider:
    """A provider that is asked nothing of EC2."""
    given = AwsProvider.Options(region="us-east-1", **options)
    return AwsProvider(options=given, environment=named("aws", where))


def azure(where: Path, **options: Any) -> AzureProvider:
    """One that is asked nothing of Azure."""
    places = {"subscription": "s", "resource_group": "g", "location": "l", "subnet": "n"}
    given = AzureProvider.Options(image="i", **places, **options)
    return AzureProvider(options=given, environment=named("azure", where))


def named(name: str, where: Path) -> Environment:
    """Return the environment of a provider with this name."""
    return msgspec.structs.replace(environment(where), name=name)


def record(provider: str, kind: str, options: dict[str, Any]) -> InstanceRecord:
    """A launch whose offering is chosen, with its pool's own options."""
    choice = Choice(offers=(Offer(provider=provider, instance_type=kind, options=options),))
    wanted = launch(provider=provider, instance_type=kind, choice=choice)
    made = intended_record("web", "web-1", wanted, "saga", NOW)
    return msgspec.structs.replace(made, offering=Offering(provider=provider, instance_type=kind))


EFA: dict[str, Any] = {"efa": True, "security_groups": ("sg-1",)}


@pytest.mark.parametrize(
    ("make", "configured", "of_pool", "kind", "devices"),
    [
        (aws, EFA, {}, "p5.48xlarge", 32),
        (aws, EFA, {}, "p5en.48xlarge", 16),
        (aws, {}, EFA, "p4d.24xlarge", 4),
        (aws, EFA, {"efa": False}, "p5.48xlarge", 0),
        (aws, {}, {}, "p5.48xlarge", 0),
        (aws, EFA, {}, "g6.48xlarge", 0),
        (aws, EFA, {}, "x9.unknown", 0),
        (azure, {"scale_set": "ib"}, {}, H100, 8),
        (azure, {"availability_set": "ib"}, {}, H100, 8),
        (azure, {}, {"scale_set": "ib"}, H100, 8),
        (azure, {}, {}, H100, 0),
    ],
)
async def test_the_options_ask_for_the_fabric_and_the_catalogue_counts_its_devices(
    tmp_path: Path,
    make: Any,
    configured: dict[str, Any],
    of_pool: dict[str, Any],
    kind: str,
    devices: int,
) -> None:
    """An agent checks no devices where the catalogue knows none or no option asks for them."""
    provider: Provider = make(tmp_path, **configured)
    calls = providers(provider)
    found = TypeSettings(calls, OfferingCatalogue(with_shipped(InstanceTypes()), calls.traits()))
    expected = {"RDMA_DEVICES": str(devices)} if devices else {}
    given = found.of(record(provider.name, kind, of_pool))
    assert expected == {name: text for name, text in given.items() if name in expected}
    assert ("RDMA_DEVICES" in given) == bool(devices)
    assert ("RDMA_GBIT_PER_SECOND" in given) == (kind == H100 and bool(devices))
    await provider.close()


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, {}),
        ("10m", {}),
        ("0s", {"DRIVER_WAIT": "0s"}),
        ("9m59s", {"DRIVER_WAIT": "599s"}),
        ("10m1s", {"DRIVER_WAIT": "601s"}),
        ("25m", {"DRIVER_WAIT": "1500s"}),
    ],
)
async def test_an_agent_gets_the_time_of_its_driver_unless_it_has_it(
    tmp_path: Path, stated: str | None, expected: dict[str, str]
) -> None:
    """User data of a launch that is repeated after an upgrade stays what it was."""
    spec = TypeSpec() if stated is None else TypeSpec(driver_wait=parse_duration(stated))
    provider = aws(tmp_path)
    calls = providers(provider)
    types = InstanceTypes(types={"aws": {"p5.48xlarge": spec}})
    found = TypeSettings(calls, OfferingCatalogue(types, calls.traits()))
    assert found.of(record("aws", "p5.48xlarge", {})) == expected
    await provider.close()


@pytest.mark.parametrize(
    ("provider", "kind", "figures"),
    [
        ("aws", "p5.48xlarge", {"NVLINKS": "18", "NVLINK_GBYTE_PER_SECOND": "25"}),
        ("aws", "p5.4xlarge", {}),
        ("aws", "g6.48xlarge", {}),
        (
            "coreweave",
            "gd-8xh100ib-i128",
            {
                "NVLINKS": "18",
                "NVLINK_GBYTE_PER_SECOND": "25",
                "PCIE_WIDTH": "16",
                "PCIE_GENERATION": "5",
            },
        ),
    ],
)
def test_an_agent_gets_the_figures_that_are_known_of_its_type(
    provider: str, kind: str, figures: dict[str, str]
) -> None:
    """Figures that are not published are left out, so that the agent does not compare them."""
    catalogue = OfferingCatalogue(with_shipped(InstanceTypes()), {})
    spec = catalogue.spec(provider, kind)
    assert spec is not None
    assert stated(spec, OF_GPUS) == figures
    env = {f"NAVARCH_{name}": text for name, text in figures.items()}
    config = load(env | {"NAVARCH_POOL": "p", "NAVARCH_NODE": "n"})
    assert (config.nvlinks or 0) == spec.nvlinks
    assert config.pcie_width == spec.pcie_width


async def test_wrong_options_are_reported_by_their_provider(tmp_path: Path) -> None:
    """The error is that of the launch itself, which they prevent."""
    provider = aws(tmp_path)
    with pytest.raises(ProviderError, match="`options` of pool web"):
        provider.joins_fabric(
            ProvisionRequest(
                **dict.fromkeys(("name", "fleet", "node", "token", "instance_type"), "x"),
                pool="web",
                options={"efa": True},
            )
        )
    await provider.close()


class Fabric(FakeProvider):
    """Joins every node, and keeps what was asked for."""

    asked: ProvisionRequest | None = None

    def joins_fabric(self, request: ProvisionRequest) -> bool:
        """Return whether the request is for the type with the fabric."""
        return request.instance_type == "h100"

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Note the request and launch it."""
        self.asked = request
        return await super().provision(request)


async def test_a_node_with_fewer_devices_than_its_type_has_is_refused(
    bus: NatsBus, tmp_path: Path
) -> None:
    """The number goes from the launch, by its user data, to the agent's own boot check."""
    options = FakeProvider.Options()
    provider = Fabric(options=options, environment=named("fake", tmp_path))
    spec = TypeSpec(rdma_devices=8, driver_wait=Duration(1500))
    types = InstanceTypes(types={"fake": {"h100": spec}})
    async with running(bus, provider, types=types):
        sequence = await start_step(bus, provision("web-1", "s", user_data="auto"))
        done, _ = await answer_to(bus, "s", sequence)
    assert isinstance(done, StepSucceeded)
    assert provider.asked is not None
    files = yaml.safe_load(provider.asked.user_data)["write_files"]
    [text] = [each["content"] for each in files if each["path"] == "/etc/navarch/agent.env"]
    config = load(dict(line.split("=", 1) for line in text.splitlines()))
    assert config.driver_wait == 1500
    up = [RdmaPort(device=f"mlx5_{number}") for number in range(8)]
    assert rdma_check(needs_of(config), {}, up).ok
    assert not rdma_check(needs_of(config), {}, up[:7]).ok
