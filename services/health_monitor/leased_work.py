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
from services.primitives.errors import BusError, Retry, UnreadableRecord

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
WORKERS: Final = 32
"""Nodes processed concurrently; the jobs of one node stay in order."""
WAITING_MAX: Final = 2_000
"""Jobs that wait at one worker before the watch itself waits."""

LATER_SECONDS: Final = 30.0
"""Before a job is tried again whose record cannot be read, or that raised."""
LATER_MAX: Final = 10_000

NodeJob = Callable[[], Awaitable[None]]


class NodeWorkers:
    """Workers that report on nodes while the lease is held, as tasks of the watch's group."""

    def __init__(self, clock: Clock, lease: Lease) -> None:
        """Work while `lease` is held."""
        self._clock = clock
        self._lease = lease
        self._queues = [asyncio.Queue[tuple[str, NodeJob]](WAITING_MAX) for _ in range(WORKERS)]
        self._later: dict[str, NodeJob] = {}

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start the workers."""
        for queue in self._queues:
            group.create_task(self._work(queue))
        group.create_task(self._retry())

    async def put(self, node: str, job: NodeJob) -> None:
        """Queue a job of a node, after those that wait already."""
        await self._queues[zlib.crc32(node.encode()) % WORKERS].put((node, job))

    async def _work(self, queue: "asyncio.Queue[tuple[str, NodeJob]]") -> None:
        while True:
            node, job = await queue.get()
            while self._lease.held:
                try:
                    await job()
                except UnreadableRecord as error:
                    log.error("%s", error)  # noqa: TRY400 - the text is the whole story
                    self._put_off(node, job)
                except (BusError, Retry) as error:
                    log.info("not reported yet", extra={"key": node, "reason": str(error)})
                    await self._clock.sleep(RETRY_SECONDS)
                    continue
                except Exception:
                    log.exception("%s cannot be reported on; other nodes are", node)
                    self._put_off(node, job)
                break

    def _put_off(self, node: str, job: NodeJob) -> None:
        """Try a node's newest job again later, while the others of its worker go on."""
        if node in self._later or len(self._later) < LATER_MAX:
            self._later[node] = job

    async def _retry(self) -> None:
        while True:
            await self._clock.sleep(LATER_SECONDS)
            later, self._later = self._later, {}
            for node, job in later.items():
                await self.put(node, job)
