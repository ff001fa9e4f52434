"""A pool of real machines whose drains nothing confirms: operators read so until they accept it."""

import msgspec
import pytest

from schemas.settings import PluginSettings, Settings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import pools, settings
from tests.support.inprocess import Running, eventually

NOOP = PluginSettings(type="noop")
ACCEPTED = PluginSettings(type="noop", options={"accept_no_drain": True})


def fleet(provider: str, notifier: PluginSettings) -> Settings:
    """Return an empty pool of this provider, with this notifier."""
    return msgspec.structs.replace(
        settings(min_nodes=0),
        providers={"test": PluginSettings(type=provider)},
        notifier=notifier,
    )


@pytest.mark.parametrize(
    ("provider", "notifier", "warned"),
    [("lambda", NOOP, True), ("lambda", ACCEPTED, False), ("fake", NOOP, False)],
)
async def test_status_warns_that_nothing_confirms_drains(
    server: EmbeddedServer, bus: NatsBus, provider: str, notifier: PluginSettings, *, warned: bool
) -> None:
    """`navarch status` reads the pools' warnings."""
    async with Running(server.url, "pool-manager", build, fleet(provider, notifier)):

        async def known() -> bool:
            return bool(await pools(bus))

        await eventually(known)
        [view] = await pools(bus)
    assert any("accept_no_drain: true" in each for each in view.warnings) is warned
