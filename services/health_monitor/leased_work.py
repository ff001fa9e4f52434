"""What one replica alone does while it holds a lease, and how it tells of many nodes side by side.

Liveness and levels both watch for the whole fleet, and both end in changes of single nodes'
records; what they have in common stands here.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from services.bus.leases import Lease
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Reject, Retry

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
WORKERS: Final = 32
"""Nodes told of side by side; the words about one node stay in order."""
WAITING_MAX: Final = 2_000
"""Words that wait at one worker before the watch itself waits."""

Tell = Callable[[], Awaitable[None]]


class Tellers:
    """Workers that tell of nodes while the lease is held, as tasks of the watch's group."""

    def __init__(self, clock: Clock, lease: Lease) -> None:
        """Tell while `lease` is held."""
        self._clock = clock
        self._lease = lease
        self._queues = [asyncio.Queue[tuple[str, Tell]](WAITING_MAX) for _ in range(WORKERS)]

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start the workers."""
        for queue in self._queues:
            group.create_task(self._work(queue))

    async def put(self, node: str, tell: Tell) -> None:
        """Have something told of a node, after what is still to be told of it."""
        await self._queues[zlib.crc32(node.encode()) % WORKERS].put((node, tell))

    async def _work(self, queue: "asyncio.Queue[tuple[str, Tell]]") -> None:
        while True:
            node, tell = await queue.get()
            while self._lease.held:
                try:
                    await tell()
                except (BusError, Retry) as error:
                    log.info("cannot tell yet", extra={"key": node, "reason": str(error)})
                    await self._clock.sleep(RETRY_SECONDS)
                except Reject as error:
                    log.error("%s", error)  # noqa: TRY400 - the text is the whole story
                    break
                else:
                    break
