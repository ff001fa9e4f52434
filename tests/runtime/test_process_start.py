"""A service that cannot start yet: operators learn why, and it can be stopped."""

import msgspec
import pytest

from schemas.fleet_queries import CurrentFailure
from schemas.pool_records import FLEET_KEY
from schemas.subjects import failures_query
from schemas.topology import POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from tests.support.service_process import service_failures, service_process

SERVICE = "services.pool_manager"
START_SECONDS_MAX = 30.0


@pytest.mark.parametrize("removed", [False, True])
async def test_what_keeps_a_service_from_starting_is_published(
    server: EmbeddedServer, bus: NatsBus, *, removed: bool
) -> None:
    """An unreadable record of the fleet: an event with the remedy, and its end once that is done.

    SIGTERM ends the wait.
    """
    await bus.put(POOLS, FLEET_KEY, b"garbage")
    failures = service_failures(bus)

    async with service_process(SERVICE, server.url, seconds_max=START_SECONDS_MAX) as process:
        began = await anext(failures)
        assert (began.status, began.about) == ("failing", "POOLS fleet")
        assert "nats kv del POOLS fleet" in began.remedy
        # The notifier asks, because the stream of events may be what takes no writes.
        asked = await bus.request(failures_query("pool-manager"), b"", timeout_seconds=5)
        (current,) = msgspec.json.decode(asked.data, type=list[CurrentFailure])
        assert current.about == began.about
        if removed:
            await bus.delete(POOLS, FLEET_KEY)
            ended = await anext(failures)
            assert (ended.status, ended.about) == ("recovered", "POOLS fleet")
            assert await bus.get(POOLS, FLEET_KEY) is not None
        process.terminate()
        assert await process.wait() == 0
