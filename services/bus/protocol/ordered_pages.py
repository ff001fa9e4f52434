"""Pages of what is stored under several filters, in the order of storing."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from services.bus.port import Bus, Stored

PAGE_MESSAGES_MAX: Final = 1000
"""Of each filter, in one page."""


async def read_page(
    bus: Bus, stream: str, filters: Sequence[str], after: int | datetime
) -> tuple[list[Stored], bool]:
    """The next messages under any of the filters, and whether more may follow them."""
    pages = await asyncio.gather(
        *(bus.read_batch(stream, each, after=after, count=PAGE_MESSAGES_MAX) for each in filters)
    )
    # A full page may be followed by more: beyond the first that ends, the order is unknown.
    ends = [page[-1].sequence for page in pages if len(page) == PAGE_MESSAGES_MAX]
    known = [each for page in pages for each in page if not ends or each.sequence <= min(ends)]
    return sorted(known, key=lambda each: each.sequence), bool(ends)
