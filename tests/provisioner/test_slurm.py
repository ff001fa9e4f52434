"""Nodes of Slurm partitions: listed, adopted without their agents, never ended."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.duration import Duration
from schemas.launch_offers import Market
from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.notifier.workload.workload_notifier import NodeReference, WorkloadOrder
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_decisions import instance_of, record_from_tags
from services.provisioner.provider_client.provider import Environment, ProvisionRequest
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.slurm import SlurmProvider
from services.workload_systems.slurm_rest import SlurmRestOptions
from tests.workload_systems.slurm_rest_server import (
    TOKEN,
    USER,
    StrictNode,
    StrictSlurm,
    strict_slurm,
)

Make = Callable[..., SlurmProvider]
MARKET: Market = "on-demand"


class Site:
    """A strict slurmrestd, and what talks to it."""

    def __init__(self, url: str, slurm: StrictSlurm) -> None:
        self.rest = SlurmRestOptions(url=url, user=USER, token=TOKEN)
        self.slurm = slurm

    def provider(self, **options: Any) -> SlurmProvider:
        """Return a provider of the partition `gpu`."""
        given = {"partitions": {"training": "gpu"}, "rest": self.rest, "timeout": Duration(5)}
        environment = Environment(name="cluster", fleet="f", nats_url="", data_dir=Path())
        return SlurmProvider(
            options=SlurmProvider.Options(**(given | options)), environment=environment
        )


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Serve a cluster of two nodes, one of them drained by an administrator."""
    async with strict_slurm(41) as (url, slurm):
        slurm.nodes = {
            "GPU_1.rack": StrictNode(),
            "gpu2": StrictNode(state={"IDLE", "DRAIN"}, reason="ticket 12", user="ada"),
        }
        yield Site(url, slurm)


async def test_every_node_of_the_partition_is_a_machine_of_its_pool(site: Site) -> None:
    """The state in Slurm does not matter; a name that Navarch cannot have is changed."""
    provider = site.provider()
    found = {each.name: each for each in await provider.list()}
    await provider.close()

    assert found.keys() == {"gpu-1-rack", "gpu2"}
    one = found["gpu-1-rack"]
    assert ("training", "running", "slurm://GPU_1.rack", "10.0.0.1") == (
        *(one.pool, one.status, one.provider_id, one.address),
    )
    record = record_from_tags("cluster", one, SystemClock().now())
    assert record.launch.lasting
    assert instance_of(record).lasting
    assert record.launch.fleet == ""


async def test_a_node_that_is_powered_down_is_no_machine_to_adopt(site: Site) -> None:
    """The sweep adopts it once Slurm has started it."""
    site.slurm.nodes["gpu2"].state = {"IDLE", "POWERED_DOWN"}
    provider = site.provider()
    found = {each.name: each.status for each in await provider.list()}
    await provider.close()

    assert found == {"gpu-1-rack": "running", "gpu2": "stopped"}


async def test_a_partition_without_nodes_is_an_error_where_it_is_not_known(site: Site) -> None:
    """A misspelt partition must not retire the nodes of a pool."""
    provider = site.provider(partitions={"training": "gqu"})
    with pytest.raises(ProviderError):
        await provider.list()
    await provider.close()


async def test_a_partition_that_lost_all_of_its_nodes_is_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of slurm.conf must not have the keys of a whole pool's agents refused."""
    provider = site.provider()
    site.slurm.nodes.clear()

    async def known(_: str) -> None:
        """Answer as slurmrestd does of a partition that it has."""

    monkeypatch.setattr(provider._slurm, "check_partition", known)
    with pytest.raises(ProviderError, match="partition gpu has no node: give it its nodes back"):
        await provider.list()
    await provider.close()


async def test_a_list_is_an_error_where_slurm_does_not_answer(site: Site) -> None:
    """No node is retired for an outage."""
    provider = site.provider(rest=SlurmRestOptions(url="http://127.0.0.1:1", user="u", token="t"))
    with pytest.raises(ProviderError) as raised:
        await provider.list()
    await provider.close()

    assert raised.value.kind == "TRANSIENT"


async def test_commands_that_are_missing_are_named(site: Site, tmp_path: Path) -> None:
    """Operators read what to install."""
    provider = site.provider(rest=None, commands=str(tmp_path))
    with pytest.raises(ProviderError, match=r"sinfo cannot be run here.*slurm-client"):
        await provider.list()


async def test_two_nodes_of_one_name_are_refused(site: Site) -> None:
    """Both names are in the message; a node of two pools is the first one's."""
    provider = site.provider(partitions={"one": "gpu", "two": "gpu"})
    assert {"one"} == {each.pool for each in await provider.list()}
    site.slurm.nodes["gpu-1-rack"] = StrictNode()
    with pytest.raises(ProviderError, match=r"GPU_1.rack and gpu-1-rack would both be gpu-1-rack"):
        await provider.list()
    await provider.close()


async def test_nothing_is_launched_and_nothing_is_ended(site: Site) -> None:
    """Both are errors of the configuration, or of who asks."""
    provider = site.provider()
    request = ProvisionRequest(
        name="a",
        fleet="f",
        pool="training",
        node="a",
        token="t",
        instance_type="",
        market=MARKET,
    )
    with pytest.raises(ProviderError, match="add `nodes: adopted` to pool training"):
        await provider.provision(request)
    with pytest.raises(ProviderError, match="not Navarch's to end"):
        await provider.terminate("slurm://gpu2")
    await provider.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": {}}, "`partitions` is empty"),
        ({"partitions": {"A B": "gpu"}}, "not the name of a pool"),
        ({"timeout": Duration(0)}, "timeout must be more than 0"),
    ],
)
def test_options_that_can_list_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    """The message says what to write."""
    with pytest.raises(ValueError, match=said):
        SlurmProvider.Options(**({"partitions": {"training": "gpu"}} | options))


async def test_an_adopted_node_is_ordered_by_its_own_name(site: Site) -> None:
    """The hostname of its agent and the form of its name in Navarch do not matter."""
    notifier = SlurmNotifier(
        options=SlurmNotifier.Options(rest=site.rest, commands="/nonexistent"), clock=SystemClock()
    )
    node = NodeReference(
        pool="training", node="gpu-1-rack", hostname="h1", provider_id="slurm://GPU_1.rack"
    )
    await notifier.cordon(WorkloadOrder(key="drain-1/cordon", node=node, reason="xid-79"))
    await notifier.close()

    assert site.slurm.calls == ["GPU_1.rack DRAIN navarch: xid-79 (drain-1)"]
