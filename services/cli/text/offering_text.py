"""Formats offerings as a table. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from schemas.offering_records import OfferingView
from services.operator_text.quantities import elapsed, local_time

HEADERS: Final = ("provider", "place", "type", "gpus", "market", "$/h", "price", "state", "used by")


def offering_rows(views: Iterable[OfferingView], now: datetime) -> list[tuple[str, ...]]:
    """Return a table with one row per offering."""
    return [
        (
            each.provider,
            each.zone or each.region or "-",
            each.instance_type,
            f"{each.gpus} {each.gpu}".strip() if each.gpus else "-",
            each.market,
            "-" if each.dollars_per_hour is None else f"{each.dollars_per_hour:.2f}",
            price_text(each, now),
            state_text(each, now),
            users_text(each),
        )
        for each in views
    ]


def price_text(view: OfferingView, now: datetime) -> str:
    """Return the source and age of an offering's price."""
    if view.price_from == "provider" and view.price_at is not None:
        return f"{elapsed(max((now - view.price_at).total_seconds(), 0.0))} ago"
    return {"catalogue": "catalogue"}.get(view.price_from, "not known")


def state_text(view: OfferingView, now: datetime) -> str:
    """Return an offering's availability, since when it is exhausted, and recent interruptions."""
    found = _availability(view, now)
    if not view.interruptions or view.interrupted_at is None:
        return found
    times = "once" if view.interruptions == 1 else f"{view.interruptions} times"
    return f"{found}, interrupted {times}, last {local_time(view.interrupted_at)}"


def _availability(view: OfferingView, now: datetime) -> str:
    if view.state == "available":
        return "reported as unavailable" if view.reported_available is False else "available"
    since = f" since {local_time(view.since)}" if view.since is not None else ""
    what = "exhausted" if view.state == "exhausted" else view.kind
    tries = f", {view.failures} tries" if view.failures > 1 else ""
    if view.probe:
        then = f", {view.probe.partition('.')[2]} tries it now"
    elif view.probe_at is not None and view.probe_at > now:
        then = f", next try {local_time(view.probe_at)}"
    else:
        then = ", tried by the next launch"
    why = f" ({view.reason})" if view.state == "blocked" else ""
    return f"{what}{since}{tries}{then}{why}"


def users_text(view: OfferingView) -> str:
    """The pools that may launch it, with their number of instances."""
    if not view.used_by:
        return "-"
    return ", ".join(f"{each.pool} {each.instances}" for each in view.used_by)


def no_offerings(filters: str, *, everything: bool) -> str:
    """Return what an empty list means; `filters`: the options that limited it."""
    if everything:
        what = f"that matches {filters}" if filters else "at all"
        return f"The catalogue has no offering {what}: see `instance_types` in the configuration."
    what = f"that matches {filters}" if filters else "that can be launched"
    return f"No pool names an offering {what}; --all shows the catalogue."
