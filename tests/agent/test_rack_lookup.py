"""Rack of a host: as the clouds' metadata services report it, or none, within a deadline."""

from pathlib import Path
from typing import Any

import pytest

from agent.settings import AgentConfig
from agent.sources.cloud import cloud_detection
from agent.sources.cloud.cloud_detection import (
    azure_rack,
    gcp_rack,
    provider_id,
    provider_id_of,
    rack,
    rack_of,
)
from services.bus.nats.nats_bus import NatsBus
from tests.agent.conftest import AgentHost, contents, events
from tests.agent.metadata_servers import Aws, Azure, Gcp, Raw, Serve, Server


async def test_aws_reports_of_partitions(serve: Serve) -> None:
    """A partition of a placement group; without one nothing is known."""
    server = await serve(Aws)
    assert "" == await rack_of("aws", server.url)
    server.items |= {"placement/partition-number": 3, "placement/group-name": "training"}
    assert "training/partition-3" == await rack_of("aws", server.url)
    assert 0 == server.refused


async def test_google_reports_of_racks(serve: Serve) -> None:
    """Cluster and rack of `/cluster/rack/host`; an instance without the attribute has none."""
    server = await serve(Gcp)
    assert "" == await rack_of("gcp", server.url)
    server.values["attributes/physical_host"] = "/3fa1/77b0/9c2e"
    assert "3fa1/77b0" == await rack_of("gcp", server.url)


async def test_azure_reports_of_fault_domains(serve: Serve) -> None:
    """The fault domain is one of a placement group; a lone machine has none."""
    server = await serve(Azure)
    assert "" == await rack_of("azure", server.url)
    server.compute = {"platformFaultDomain": "2", "placementGroupId": "f67c14ab"}
    assert "f67c14ab/fault-domain-2" == await rack_of("azure", server.url)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b/c", "a/b"),
        ("a/b/c\n", "a/b"),
        ("/a/b", ""),
        ("/a//c", ""),
        ("", ""),
        ("/a b/\x1b[31m/c", "a-b/-[31m"),
        (f"/{'x' * 200}/b/c", "x" * cloud_detection.RACK_CHARS_MAX),
    ],
)
def test_what_is_no_place_names_no_rack(text: str, expected: str) -> None:
    """Text that does name a place becomes a word that can be shown."""
    assert expected == gcp_rack(text)


@pytest.mark.parametrize(
    "compute", [None, [], "x", {}, {"platformFaultDomain": "1"}, {"placementGroupId": "g"}]
)
def test_a_part_of_a_place_is_none(compute: Any) -> None:
    """A fault domain means something within its group alone."""
    assert "" == azure_rack(compute)


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
async def test_a_service_that_does_not_report_holds_nothing_up(
    serve: Serve, cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence, nonsense and a closed port are a host without a rack."""
    monkeypatch.setattr(cloud_detection, "SECONDS_MAX", 0.1)
    silent = await serve({"aws": Aws, "gcp": Gcp, "azure": Azure}[cloud])
    silent.silent = True
    raw = await serve(Raw)
    raw.bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff{"
    for url in (silent.url, raw.url, "http://127.0.0.1:9"):
        assert "" == await rack_of(cloud, url)
        assert "" == await provider_id_of(cloud, url)


@pytest.mark.parametrize(
    ("cloud", "kind", "known", "expected"),
    [
        ("aws", Aws, {"items": {"instance-id": "i-0a1b2c3d"}}, "i-0a1b2c3d"),
        (
            "gcp",
            Gcp,
            {"values": {"zone": "projects/42/zones/us-central1-a", "name": "training-7"}},
            "us-central1-a/training-7",
        ),
        ("azure", Azure, {"compute": {"name": "Training-7"}}, "training-7"),
        ("aws", Aws, {"items": {}}, ""),
        ("gcp", Gcp, {"values": {"zone": "projects/42/zones/us-central1-a"}}, ""),
        ("azure", Azure, {"compute": {}}, ""),
        ("aws", Aws, {"items": {"instance-id": "a b"}}, ""),
        ("", Aws, {}, ""),
    ],
)
async def test_an_instance_id_is_read_in_the_form_that_its_provider_lists(
    serve: Serve, cloud: str, kind: type[Server], known: dict[str, Any], expected: str
) -> None:
    """The form is that of INSTANCES; where the service names none, or no word, it is not known."""
    server = await serve(kind)
    for name, value in known.items():
        setattr(server, name, value)
    assert expected == await provider_id_of(cloud, server.url)


async def test_what_is_set_is_not_asked_for(tmp_path: Path) -> None:
    """The setting wins; outside the clouds no service is polled."""
    config = {"pool": "training", "node": "n1"}
    assert "r17" == await rack(AgentConfig(**config, rack="r17", cloud="aws"), tmp_path)
    assert "" == await rack(AgentConfig(**config), tmp_path)
    assert "" == await provider_id(AgentConfig(**config), tmp_path)


async def test_an_agent_registers_with_its_rack(
    serve: Serve, host: AgentHost, bus: NatsBus
) -> None:
    """The rack and instance that the metadata service names reach the bus."""
    server = await serve(Gcp)
    server.values |= {"zone": "projects/42/zones/us-central1-a", "name": "training-7"}
    server.values["attributes/physical_host"] = "/3fa1/77b0/9c2e"
    await host.start(NAVARCH_CLOUD="gcp", NAVARCH_CLOUD_METADATA_URL=server.url)
    [registered] = contents(await events(bus, host.node, 1))
    assert "3fa1/77b0" == registered["rack"]
    assert "us-central1-a/training-7" == registered["provider_id"]
    assert await host.stop() == 0


DOMAIN = "00000000-0000-0000-0000-0000000000a7"


@pytest.mark.slow
async def test_an_nvlink_domain_is_the_rack_as_soon_as_the_gpus_are_in_it(
    serve: Serve, host: AgentHost, bus: NatsBus
) -> None:
    """The cloud's rack holds until they are; the node registers again before its checks pass."""
    server = await serve(Gcp)
    server.values["attributes/physical_host"] = "/3fa1/77b0/9c2e"
    cloud = {"NAVARCH_CLOUD": "gcp", "NAVARCH_CLOUD_METADATA_URL": server.url}
    host.order("gpu * fabric_cluster 0xa7", "gpu * fabric_clique 3", "gpu 2 fabric_state 2")
    await host.start(**cloud)
    [first] = contents(await events(bus, host.node, 1))
    host.order("gpu * fabric_cluster 0xa7", "gpu * fabric_clique 3")
    _, again, checked = contents(await events(bus, host.node, 3))
    assert ("3fa1/77b0", "") == (first["rack"], first["nvlink_domain"])
    assert (f"{DOMAIN}.3",) * 2 == (again["rack"], again["nvlink_domain"])
    assert checked["ok"]
    assert await host.stop() == 0


@pytest.mark.slow
async def test_the_operator_s_name_of_a_rack_wins(host: AgentHost, bus: NatsBus) -> None:
    """The GPUs' own domain is published beside the name, with the first registration."""
    host.order("gpu * fabric_cluster 0xa7")
    await host.start(NAVARCH_RACK="r17")
    registered, checked = contents(await events(bus, host.node, 2))
    assert ("r17", f"{DOMAIN}.0") == (registered["rack"], registered["nvlink_domain"])
    assert checked["ok"]
    assert await host.stop() == 0
