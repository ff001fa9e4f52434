"""`navarch audit`: who changed what, and what came of it."""

from typing import Annotated, Final

import typer

from schemas.messages import Invalid, Message, UnknownType
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from services.cli import console
from services.cli.command_options import Output, Pool, Since, start_time
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.fleet_client.audit_rows import AUDIT_FILTERS, audit_rows
from services.fleet_client.fleet_client import FleetClient, stored_batches
from services.operator_text.quantities import local_time

HEADERS: Final = ("time", "by", "from", "change", "about", "outcome", "saga", "reason")


@fleet_command
async def audit(
    fleet: FleetClient,
    pool: Pool = "",
    by: Annotated[str, typer.Option("--by", help="Only what this user changed.")] = "",
    since: Since = "24h",
    output: Output = Format.TABLE,
) -> None:
    """Show who requested which change, from where, and its outcome.

    Requests by command, HTTP and bus; changes that Navarch decides by itself are events.
    """
    await fleet.check_pool(pool)
    start = start_time(since)
    found: list[Message | UnknownType | Invalid] = []
    async for batch in stored_batches(fleet.bus, EVENTS.name, AUDIT_FILTERS, start or 0):
        found += map(decode_stored, batch)
    rows = audit_rows(found, pool=pool, by=by)
    if output.is_data:
        console.write_data(output, rows)
        return
    cells = [
        (
            local_time(each.time),
            each.by or "-",
            each.where,
            each.change,
            each.about or "-",
            each.outcome,
            each.saga or "-",
            each.reason or "-",
        )
        for each in rows
    ]
    console.write_table(HEADERS, cells, f"Nothing was requested since {since}.")
