"""Says what is wrong in a fleet, the most urgent first, for `navarch status`. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schemas.alert_records import OpenAlertRecord
from schemas.fleet_queries import PoolView
from services.cli.text.styles import COLOURS, RESET
from services.cli.text.table_layout import columns
from services.cli.text.tables import failure_line
from services.gateway.views import FleetStatus
from services.operator_text.quantities import age_since
from services.operator_text.safe_text import escape_line
from services.operator_text.stop_text import stop_lines

ALERTS_SHOWN_MAX: Final = 10
ALERT_HEADERS: Final = ("open alert", "age", "key", "title")


def alerts_text(
    alerts: Sequence[OpenAlertRecord], now: datetime, *, colour: bool, width: int
) -> str:
    """Return the open alerts as a table, the most severe first; empty where there are none."""
    opened = [each.opened for each in alerts if each.opened is not None]
    if not opened:
        return ""
    rows = [
        (each.severity, age_since(each.began, now), each.key, each.title)
        for each in opened[:ALERTS_SHOWN_MAX]
    ]
    text = columns(ALERT_HEADERS, rows, colour=colour, width=width)
    more = len(opened) - len(rows)
    return f"{text}\n… {more} more: navarch alerts list" if more else text


def problems(found: FleetStatus, alerts: Sequence[OpenAlertRecord]) -> list[str]:
    """Return what is wrong, one line each; none: a script may go on.

    An alert that only informs is nothing wrong.
    """
    opened = [each.opened for each in alerts if each.opened is not None]
    lines = list(stop_lines(found.stops))
    lines += [
        escape_line(f"{each.severity}: {each.key}: {each.title}")
        for each in opened
        if each.severity != "info"
    ]
    lines += [failure_line(each) for each in found.failures]
    return lines + [line for each in found.pools if (line := _breaker_line(each))]


def _breaker_line(pool: PoolView) -> str:
    if pool.breaker == "closed":
        return ""
    return escape_line(f"{pool.name}: the breaker is {pool.breaker}: {pool.breaker_reason}")


def in_red(lines: Sequence[str], *, colour: bool) -> str:
    """Return lines about what is wrong, coloured where they are for a terminal."""
    text = "\n".join(lines)
    return f"{COLOURS['bad']}{text}{RESET}" if colour and text else text
