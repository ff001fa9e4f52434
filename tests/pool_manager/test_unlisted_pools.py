"""A pool that the configuration no longer has is reported with its cost and the remedy."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_records import node_key
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import PoolSpec
from schemas.topology import INSTANCES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.configured_pools import unlisted_warning
from services.pool_manager.service import build
from services.settings.pool_differences import is_unlisted
from tests.pool_manager.fleet import peers, pools, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

NOW = datetime(2026, 11, 24, tzinfo=UTC)
POOL = PoolRecord(name="training", spec=PoolSpec(min_nodes=1, max_nodes=4), desired=2)


@pytest.mark.parametrize(
    ("record", "configured", "unlisted"),
    [
        (POOL, (), True),
        (POOL, ("learning",), True),
        (POOL, ("training",), False),
        (msgspec.structs.replace(POOL, applied="request-1"), (), False),
        (msgspec.structs.replace(POOL, removing="request-1"), (), False),
    ],
)
def test_which_pools_are_unlisted(
    record: PoolRecord, configured: tuple[str, ...], *, unlisted: bool
) -> None:
    """Requested pools belong in no file, and pools that are being removed need no remedy."""
    assert is_unlisted(record, configured) is unlisted


@pytest.mark.parametrize(
    ("prices", "text"),
    [
        ((), "0 instances, desired size 2"),
        ((0.0,), "1 instance of unknown cost, desired size 2"),
        ((98.32, 98.32), "2 instances for 196.64 $/h, desired size 2"),
        ((98.32, 0.0), "2 instances for 98.32 $/h and the unknown cost of 1, desired size 2"),
    ],
)
def test_the_warning_has_the_cost(prices: tuple[float, ...], text: str) -> None:
    """The known part of the cost is stated, and so is the unknown part."""
    warning = unlisted_warning(POOL, prices)
    assert text in warning
    assert "navarch down training" in warning


async def test_a_renamed_pool_is_reported_with_its_cost(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    """The old pool's nodes stay after a restart with another name, and their cost is shown."""
    assert peers is not None
    before = settings(min_nodes=1)
    async with Running(server.url, "pool-manager", build, before):
        [node] = await eventually(settled(bus, 1))
        [view] = await pools(bus)
        assert not any("not in the configuration" in each for each in view.warnings)
    instance = InstanceRecord(
        pool="training",
        instance=node,
        provider="test",
        token="t",
        launch=LaunchSpec(fleet="f", provider="test", instance_type="h100-8x"),
        state="running",
        dollars_per_hour=98.32,
        intended_at=NOW,
    )
    await bus.put(INSTANCES, node_key("training", node), encode(instance))
    gone = msgspec.structs.replace(instance, instance="old", state="terminated")
    await bus.put(INSTANCES, node_key("training", "old"), encode(gone))

    renamed = msgspec.structs.replace(before, pools={"learning": before.pools["training"]})
    async with Running(server.url, "pool-manager", build, renamed):
        views = {each.name: each for each in await pools(bus)}

    [warning] = [each for each in views["training"].warnings if "configuration" in each]
    assert "1 instance for 98.32 $/h" in warning
    assert not any("not in the configuration" in each for each in views["learning"].warnings)
    assert "pool training is not in the configuration" in caplog.text
