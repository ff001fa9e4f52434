"""A served nats-server that has stopped to store is restarted."""

import asyncio
from contextlib import suppress
from pathlib import Path

from services.bus.nats.embedded_server import LOG_FILE, EmbeddedServer
from services.cli.store_restart import keep_storing

LINE = b"[1] 2026/11/30 02:00:00.000000 [ERR] JetStream out of resources, will be DISABLED\n"


async def test_a_server_that_stores_nothing_is_stopped_once(tmp_path: Path) -> None:
    """The supervisor starts it again; the log of the start before counts no more."""
    server = EmbeddedServer(tmp_path, sync=False)
    await server.start()
    said: list[str] = []
    keeping = asyncio.create_task(keep_storing(server, said.append, look_seconds=0.01))
    assert server.stopped_storing() == ""
    with (tmp_path / LOG_FILE).open("ab") as log:
        log.write(LINE)
    async with asyncio.timeout(60):
        await server.wait()
    await server.start()
    assert server.stopped_storing() == ""
    assert server.pid
    assert ["JetStream out of resources, will be DISABLED" in each for each in said] == [True]
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    await server.stop()
