"""Decides whether a node that leaves before its successor comes would leave a gap. Pure.

The provisioner says what it knows of offerings. A node that is well, and goes first, waits while
none of those that its pool may launch has room: nothing is cordoned for that. Where its own leaving
makes the room (a quota, owned machines) it need not wait.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from schemas.launch_offers import Offer
from schemas.node_records import NodeRecord
from schemas.offering_records import OfferingView
from schemas.pool_records import PoolRecord
from services.settings.provider_choices import choice_of

TRIED_AGAIN: Final = timedelta(minutes=30)
"""After it could have been tried: a launch for want of nodes would have."""
LOOK_AGAIN: Final = timedelta(minutes=5)
NO_ROOM: Final = "nothing that the pool may launch has room"


def is_open(view: OfferingView, now: datetime) -> bool:
    """Return whether nothing is known against an offering.

    One without capacity that nothing has been launched from since is tried after a while.
    """
    known = view.state == "available" or _is_forgotten(view, now)
    return known and view.reported_available is not False


def allowed(record: PoolRecord, offered: Iterable[OfferingView]) -> list[OfferingView]:
    """Return the offerings that the pool may launch."""
    offers = choice_of(record.spec, record.avoid).offers
    return [view for view in offered if any(_allows(each, view) for each in offers)]


def leaves_gap(node: NodeRecord, may: Iterable[OfferingView], now: datetime) -> bool:
    """Return whether none of what the pool may launch could follow the node once it has left."""
    return not any(is_open(view, now) or _makes_room(node, view) for view in may)


def _makes_room(node: NodeRecord, view: OfferingView) -> bool:
    provider = node.launch.provider if node.launch is not None else ""
    if provider not in ("", view.provider):
        return False
    return view.kind == "QUOTA" or (view.fixed_capacity and view.kind == "CAPACITY")


def _allows(offer: Offer, view: OfferingView) -> bool:
    """Return whether it may be launched: a pool may have nodes of what it launches no more."""
    return (
        offer.provider == view.provider
        and offer.instance_type in (view.instance_type, *view.abstract)
        and offer.market in ("", view.market)
        and (not offer.regions or view.region in ("", *offer.regions))
        and (not offer.zones or view.zone in ("", *offer.zones))
    )


def _is_forgotten(view: OfferingView, now: datetime) -> bool:
    exhausted = view.state == "exhausted" and not view.probe
    return exhausted and view.probe_at is not None and now - view.probe_at >= TRIED_AGAIN
