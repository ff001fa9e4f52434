"""Reports on many nodes concurrently, in order for each node, while a lease is held.

Heartbeat watch and level watch follow the whole fleet, and both change the records of single
nodes.
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
"""Nodes processed concurrently; the jobs of one node stay in order."""
WAITING_MAX: Final = 2_000
"""Jobs that wait at one worker before the watch itself waits."""

NodeJob = Callable[[], Awaitable[None]]


class NodeWorkers:
    """Workers that report on nodes while the lease is held, as tasks of the watch's group."""

    def __init__(self, clock: Clock, lease: Lease) -> None:
        """Work while `lease` is held."""
        self._clock = clock
        self._lease = lease
        self._queues = [asyncio.Queue[tuple[str, NodeJob]](WAITING_MAX) for _ in range(WORKERS)]

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start the workers."""
        for queue in self._queues:
            group.create_task(self._work(queue))

    async def put(self, node: str, job: NodeJob) -> None:
        """Queue a job of a node, after those that wait already."""
        await self._queues[zlib.crc32(node.encode()) % WORKERS].put((node, job))

    async def _work(self, queue: "asyncio.Queue[tuple[str, NodeJob]]") -> None:
        while True:
            node, job = await queue.get()
            while self._lease.held:
                try:
                    await job()
                except (BusError, Retry) as error:
                    log.info("cannot job yet", extra={"key": node, "reason": str(error)})
                    await self._clock.sleep(RETRY_SECONDS)
                except Reject as error:
                    log.error("%s", error)  # noqa: TRY400 - the text is the whole story
                    break
                else:
                    break
