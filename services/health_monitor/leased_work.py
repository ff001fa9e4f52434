"""What one replica alone does while it holds a lease, and how it tells of many nodes side by side.

Liveness and levels both watch for the whole fleet, and both end in changes of single nodes'
records; what they have in common stands here.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from services.bus.leases import Lease
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Reject, Retry

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 0.2
"""Before a watch that ended by itself is begun anew."""
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
    try:
        while True:
            await _either(keeping, lease.acquired())
            await _either(keeping, _until_lost(lease, watch))
            if lease.held:
                await clock.sleep(AGAIN_SECONDS)
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await lease.release()


async def _either(keeping: "asyncio.Task[None]", work: Coroutine[Any, Any, None]) -> None:
    """Do the work; where the keeping of the lease ends, which is a defect, raise why."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([keeping, task], return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _until_lost(lease: Lease, watch: Watch) -> None:
    """Watch until the lease is lost, or the watch ends by itself."""
    watching, losing = asyncio.ensure_future(watch()), asyncio.create_task(lease.lost())
    try:
        await asyncio.wait([watching, losing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        losing.cancel()
        await _end(watching)


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
