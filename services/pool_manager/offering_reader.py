"""Asks the provisioner what it knows of a pool's offerings: prices, capacity and what failed."""

from typing import Final

import msgspec

from schemas import subjects
from schemas.fleet_queries import Page
from schemas.messages import encode
from schemas.offering_records import OfferingsQuery, OfferingView
from services.bus.port import Bus
from services.bus.protocol.endpoint_replies import reply_data

ASK_SECONDS_MAX: Final = 10.0
PAGES_MAX: Final = 10

_page: Final = msgspec.json.Decoder(Page)
_view: Final = msgspec.json.Decoder(OfferingView)


async def read_offerings(bus: Bus, pool: str) -> list[OfferingView]:
    """Return what a pool may launch or has launched; AnswerError, BusError or DecodeError."""
    found: list[OfferingView] = []
    after = ""
    for _ in range(PAGES_MAX):
        reply = await bus.request(
            subjects.query("offerings"),
            encode(OfferingsQuery(pool=pool, after=after)),
            timeout_seconds=ASK_SECONDS_MAX,
        )
        page = _page.decode(reply_data(reply))
        found += [_view.decode(each) for each in page.items]
        after = page.next
        if not after:
            break
    return found
