"""`navarch stop` and `resume`: whether anything begins by itself."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
import typer

from schemas.duration import parse_duration
from schemas.operations import RESUME, STOP
from schemas.stops import ResumeRequest, StopRequest, StopsAnswer, scope_of
from services.cli import console
from services.cli.command_options import Output, Pool
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.operator_text import stop_text
from services.primitives.errors import NavarchError

Provider = Annotated[str, typer.Option("--provider", help="Only what calls this provider.")]


@everyday_command
async def stop(
    fleet: FleetAccess,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; shown to other operators.", show_default=False)
    ],
    pool: Pool = "",
    provider: Provider = "",
    until: Annotated[
        str,
        typer.Option("--until", help="2h, or 2026-11-30T08:00Z; else until `navarch resume`."),
    ] = "",
    *,
    running: Annotated[
        bool,
        typer.Option("--running", help="Open sagas wait, too, before what cannot be taken back."),
    ] = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Begin nothing by itself: no repair, launch, removal or scaling.

    Operators' own requests go on, and what is observed is recorded.
    """
    try:
        request = StopRequest(
            pool=pool,
            provider=provider,
            running=running,
            until=_moment(until, datetime.now(UTC)) if until else None,
            reason=reason,
        )
        request = msgspec.convert(msgspec.to_builtins(request), StopRequest)
    except ValueError as error:
        raise NavarchError(str(error)) from error
    answer = await fleet.perform(STOP, request)
    _write(answer, output, "")


@everyday_command
async def resume(
    fleet: FleetAccess,
    pool: Pool = "",
    provider: Provider = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; shown in the events.")] = "",
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would begin, and change nothing.")
    ] = False,
    output: Output = console.Format.TABLE,
) -> None:
    """End a stop. What still holds is acted on, within the budgets."""
    try:
        request = ResumeRequest(pool=pool, provider=provider, reason=reason)
    except ValueError as error:
        raise NavarchError(str(error)) from error
    scope = scope_of(pool, provider)
    if not dry_run:
        answer = await fleet.perform(RESUME, request)
        _write(answer, output, f"{scope}: what is automatic goes on.")
        return
    found = await fleet.stops(request)
    if output.is_data:
        console.write_data(output, found)
        return
    if scope not in {each.scope for each in found.stops}:
        stopped = ", ".join(sorted(each.scope for each in found.stops)) or "nothing"
        raise NavarchError(f"{scope} is not stopped; stopped: {stopped}")
    console.write_table(stop_text.HEADERS, stop_text.waiting_rows(found.waiting), output=output)
    console.write(stop_text.waiting_text(found))


def _moment(text: str, now: datetime) -> datetime:
    """Read when a stop ends; ValueError for what is neither a duration nor a time."""
    try:
        return now + timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError(
            f"--until: {text!r} is neither a duration (30m, 2h) nor a time (2026-11-30T08:00Z)"
        ) from None


def _write(answer: StopsAnswer, output: console.Format, news: str) -> None:
    if output.is_data:
        console.write_data(output, answer)
        return
    if news:
        console.write(news)
    for line in stop_text.stop_lines(answer, counted=False):
        console.write(line)
