"""Writes to the file named by its argument what its signals request, until one ends it."""

import asyncio
import logging
import sys

from services.primitives.race import race
from services.runtime.reload_requests import ReloadRequests

log = logging.getLogger(__name__)


async def main() -> None:
    """Run until the end is requested."""
    logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(message)s")
    requests = ReloadRequests()
    async with requests.taken() as stopping:
        log.info("started")
        while not stopping.is_set():
            await race(stopping.wait(), requests.next())
            log.info("ended" if stopping.is_set() else "request")


asyncio.run(main())
