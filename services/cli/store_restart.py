"""Restarts a nats-server of ours that has stopped to store: until then it refuses everything."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Final

from services.bus.nats.embedded_server import EmbeddedServer

LOOK_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 600.0
"""Between two restarts: what made it stop may still be there."""
FREE_BYTES_MIN: Final = 64 * 2**20
"""With less a restart is of no use."""
STOPPED: Final = "nats-server has stopped to store ({line}); it is restarted"


async def keep_storing(
    server: EmbeddedServer,
    log: Callable[[str], None],
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Stop a server that stores nothing any more, for its supervisor to start it again."""
    while True:
        await asyncio.sleep(look_seconds)
        line = await asyncio.to_thread(server.stopped_storing)
        if not line or shutil.disk_usage(server.directory).free < FREE_BYTES_MIN:
            continue
        log(STOPPED.format(line=line))
        await server.stop()
        await asyncio.sleep(AGAIN_SECONDS)
