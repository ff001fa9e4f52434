"""What one replica alone does while it holds a lease, and how it tells of many nodes side by side.

Liveness and levels both watch for the whole fleet, and both end in changes of single nodes'
records; what they have in common stands here.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from services.runtime.clock import Clock
from services.runtime.errors import BusError, Reject, Retry
from services.runtime.leases import Lease

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 0.5
WORKERS: Final = 32
"""Nodes told of side by side; the words about one node stay in order."""
WAITING_MAX: Final = 2_000
"""Words that wait at one worker before the watch itself waits."""

Watch = Callable[[], Awaitable[None]]
Tell = Callable[[], Awaitable[None]]


async def while_held(lease: Lease, clock: Clock, watch: Watch) -> None:
    """Contend for the lease and watch while it is held; a watch that ends is begun anew."""
    keeping = asyncio.create_task(lease.keep())
    watching: asyncio.Future[None] | None = None
    try:
        while True:
            if keeping.done():
                keeping.result()
            if lease.held and watching is None:
                watching = asyncio.ensure_future(watch())
            elif watching is not None and (watching.done() or not lease.held):
                await _end(watching)
                watching = None
            await clock.sleep(LOOK_SECONDS)
    finally:
        for task in (keeping, watching):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await lease.release()


async def _end(watching: "asyncio.Future[None]") -> None:
    """End a watch; why it ended by itself is logged."""
    watching.cancel()
    await asyncio.wait([watching])
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.warning("a watch ended", exc_info=error)


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
