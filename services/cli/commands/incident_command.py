"""Implements `navarch incident`: the review of an incident, or of a span of time, in Markdown."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from services.bus.port import Stored
from services.cli import console
from services.cli.command_options import Output, Pool, Since, start_time
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import Kind, complete
from services.cli.text.incident_text import incident_page
from services.fleet_client.incident_review import (
    ReviewSpan,
    incident_names,
    incident_span,
    review,
)
from services.primitives.errors import NavarchError

KEPT: Final = timedelta(days=30)
"""So long events are stored, and incidents are found."""
EVENTS_MAX: Final = 100_000
SAGAS_MAX: Final = 50
"""Sagas of which every step is read."""
INCIDENT: Final = Kind("incidents", "there is no incident", "navarch events --since 30d")


@everyday_command
async def incident(
    fleet: FleetAccess,
    which: Annotated[
        str,
        typer.Argument(
            metavar="INCIDENT",
            help="Its name, or the beginning of one; without it, --since.",
            show_default=False,
        ),
    ] = "",
    since: Since = "",
    pool: Pool = "",
    dashboard: Annotated[
        str,
        typer.Option(
            "--dashboard",
            metavar="https://HOST",
            help="Make links to this dashboard of nodes and sagas.",
        ),
    ] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Compose the review of an incident in Markdown.

    What was seen, decided and done, what waited for which gate, who requested what, the sagas, and
    where the evidence is. With --since, of all that happened since then.
    """
    if bool(which) == bool(since):
        raise NavarchError("give the name of an incident, or --since 2h: one of the two")
    now = datetime.now(UTC)
    about = await _incident(fleet, which, now) if which else _span(since, pool, now)
    stored, sagas, (evidence, _) = await asyncio.gather(
        _events(fleet, about), fleet.saga_history(about.pool, about.start), fleet.evidence_list()
    )
    logs = await asyncio.gather(*(fleet.saga(each.saga) for each in sagas[:SAGAS_MAX]))
    entries = [entry for _, log in logs for entry in log]
    blocked = (await fleet.why(about.pool)).blocked if about.lasts and about.pool else ()
    found = review(about, [*stored, *entries], sagas, evidence, blocked)
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write(incident_page(found, dashboard), exactly=True)


def _span(since: str, pool: str, now: datetime) -> ReviewSpan:
    start = start_time(since)
    assert start is not None
    where = f"pool {pool}" if pool else "the fleet"
    return ReviewSpan(title=f"What happened in {where}", pool=pool, start=start, end=now)


async def _incident(fleet: FleetAccess, which: str, now: datetime) -> ReviewSpan:
    events = await fleet.incident_events(now - KEPT)
    found = incident_span(events, complete(which, incident_names(events), INCIDENT), now)
    assert found is not None
    return found


async def _events(fleet: FleetAccess, about: ReviewSpan) -> Sequence[Stored]:
    """Read the events of the span; of too many, the first."""
    found: list[Stored] = []
    following = fleet.follow_events(pool=about.pool, node="", since=about.start, follow=False)
    async with aclosing(following) as batches:
        async for batch in batches:
            found += batch
            if batch and batch[-1].time > about.end:
                break
            if len(found) >= EVENTS_MAX:
                console.note(f"it has more than {EVENTS_MAX} events: the first of them are shown")
                break
    return found
