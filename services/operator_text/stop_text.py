"""Stops, and what waits for them, as lines of the command line. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from schemas.stops import FLEET, Stop, StopsAnswer, WaitingStart
from services.operator_text.safe_text import escape_line

HEADERS: Final = ("pool", "begins", "node", "$/h", "why")


def stop_lines(found: StopsAnswer, *, counted: bool = True) -> Iterator[str]:
    """Yield a line for each stop, the fleet's first, with what waits in the last one.

    `counted`: what waits was looked for.
    """
    stops = sorted(found.stops, key=lambda each: (each.scope != FLEET, each.scope))
    for number, stop in enumerate(stops, 1):
        waits = f" {waiting_text(found)}" if counted and number == len(stops) else ""
        held = "nothing automatic begins"
        if stop.running:
            held += ", and open sagas wait"
        yield escape_line(
            f"STOPPED {about(stop)} {stop}: {held}.{waits} To go on: {resume_command(stop)}"
        )


def waiting_text(found: StopsAnswer) -> str:
    """Return how much waits, and what its nodes cost an hour meanwhile."""
    if found.waiting_total < 0:
        return "The pool-manager does not answer what waits."
    if not found.waiting_total:
        return "Nothing waits now."
    price = f", on nodes that cost ${found.dollars_per_hour:,.2f} an hour"
    count = "1 action waits" if found.waiting_total == 1 else f"{found.waiting_total} actions wait"
    return f"{count}{price if found.dollars_per_hour else ''}."


def about(stop: Stop) -> str:
    """Return `the fleet`, `pool training`, `provider aws`."""
    if stop.pool:
        return f"pool {stop.pool}"
    return f"provider {stop.provider}" if stop.provider else "the fleet"


def resume_command(stop: Stop) -> str:
    """Return the command that ends a stop."""
    pool = f" --pool {stop.pool}" if stop.pool else ""
    provider = f" --provider {stop.provider}" if stop.provider else ""
    return f"navarch resume{pool}{provider}"


def waiting_rows(waiting: Sequence[WaitingStart]) -> list[tuple[str, ...]]:
    """Return a row for each action that would begin."""
    return [
        (
            each.pool,
            each.kind,
            each.node or "a new one",
            f"{each.dollars_per_hour:.2f}" if each.dollars_per_hour else "-",
            each.reason or "-",
        )
        for each in waiting
    ]
