"""`navarch audit`: who changed what, and what came of it."""

from typing import Annotated, Final

import typer

from schemas.stored_messages import decode_stored
from services.cli import console
from services.cli.command_options import Output, Pool, Since, start_time
from services.cli.console import Format
from services.cli.fleet_access import FleetAccess
from services.cli.fleet_connection import everyday_command
from services.fleet_client.audit_rows import audit_rows
from services.operator_text.quantities import local_time

HEADERS: Final = ("time", "by", "from", "change", "about", "outcome", "saga", "reason")


@everyday_command
async def audit(
    fleet: FleetAccess,
    pool: Pool = "",
    by: Annotated[str, typer.Option("--by", help="Only what this user changed.")] = "",
    since: Since = "24h",
    output: Output = Format.TABLE,
) -> None:
    """Show who requested which change, from where, and its outcome.

    Requests by command, HTTP and bus; changes that Navarch decides by itself are events.
    """
    await fleet.check_pool(pool)
    stored = await fleet.audited_events(start_time(since))
    rows = audit_rows(map(decode_stored, stored), pool=pool, by=by)
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
