"""`navarch saga list|show|retry|cancel|proceed`: open sagas, and requests about them.

`list` and `show` read the logs; the others are requests that the pool-manager answers.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from schemas.operator_requests import SagaRequest
from schemas.saga_log_entries import StepStarted, UndoStarted
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.cli import console
from services.cli.command_options import (
    ListOutput,
    Output,
    Pool,
    SagaName,
    Since,
    Wait,
    WaitTimeout,
    command_group,
    start_time,
)
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import find_saga
from services.cli.node_requests import saga_end, waiting
from services.cli.text import tables
from services.fleet_client.fleet_client import require_accepted
from services.fleet_client.node_timeline import timeline_rows
from services.fleet_client.saga_progress import Progress
from services.fleet_client.saga_summaries import SagaSummary
from services.operator_text.quantities import age_since, elapsed, local_time
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

commands = command_group("Show sagas, cancel one, or continue a stuck one.")

Reason = Annotated[str, typer.Option("--reason", help="Why; shown in the saga's log.")]
ALL_HEADERS = ("saga", "pool", "node", "status", "age", "began", "took", "reason")
HEADERS = ("saga", "pool", "node", "status", "step", "age", "since", "deadline", "waiting for")


@commands.command("list")
@everyday_command
async def list_sagas(
    fleet: FleetAccess,
    pool: Pool = "",
    *,
    ended: Annotated[bool, typer.Option("--all", help="Include those that have ended.")] = False,
    since: Since = "7d",
    output: ListOutput = console.LISTING,
) -> None:
    """List the open sagas and what each waits for.

    With --all also those that have ended, of all that began since --since.
    """
    if ended:
        _write_all(await fleet.saga_history(pool, start_time(since)), output)
        return
    found = await fleet.open_sagas(pool)
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write_table(HEADERS, rows(found, datetime.now(UTC)), "No saga is open.", output)


def _write_all(summaries: Sequence[SagaSummary], output: console.Listing) -> None:
    if output.is_data:
        console.write_data(output, summaries)
    else:
        empty = "No saga began in that time."
        console.write_table(ALL_HEADERS, summary_rows(summaries, datetime.now(UTC)), empty, output)


def summary_rows(found: Sequence[SagaSummary], now: datetime) -> list[tuple[str, ...]]:
    """One row per saga, open or ended."""
    return [
        (
            each.saga,
            each.pool,
            " -> ".join(name for name in (each.node, each.new_node) if name) or "-",
            each.status,
            age_since(each.started_at, now),
            local_time(each.started_at),
            elapsed((each.ended_at - each.started_at).total_seconds()) if each.ended_at else "-",
            each.reason or "-",
        )
        for each in found
    ]


def rows(found: Sequence[Progress], now: datetime) -> list[tuple[str, ...]]:
    """Return a table with one row per saga."""
    return [
        (
            each.saga,
            each.pool,
            " -> ".join(name for name in (each.node, each.new_node) if name),
            each.status,
            each.step or "-",
            age_since(_began(each), now),
            local_time(each.since),
            local_time(each.deadline) if each.deadline else "-",
            each.waiting_for or "-",
        )
        for each in found
    ]


def _began(saga: Progress) -> datetime:
    """Return when its first step began; before that it has only waited."""
    return min((each.started_at for each in saga.steps if each.started_at), default=saga.since)


@commands.command("show")
@everyday_command
async def show(fleet: FleetAccess, saga: SagaName, output: Output = console.Format.TABLE) -> None:
    """Show a saga and its log, with each step's inputs and outputs."""
    where, stored = await find_saga(fleet, saga)
    if output.is_data:
        entries = [msgspec.Raw(console.json_line(each).encode()) for each in stored]
        console.write_data(output, {**msgspec.structs.asdict(where), "log": entries})
    else:
        console.write(page(where, stored))


def page(where: Progress, stored: Sequence[Stored]) -> str:
    """A saga, its log and what it waits for, as text."""
    until = f", until {local_time(where.deadline)} at the latest" if where.deadline else ""
    facts = (
        ("saga", where.saga),
        ("pool", where.pool),
        ("kind", where.kind),
        ("node", " -> ".join(name for name in (where.node, where.new_node) if name)),
        ("status", where.status),
        ("reason", where.reason),
        (
            "waits for",
            where.waiting_for and f"{where.waiting_for}, since {local_time(where.since)}{until}",
        ),
        ("next", ", ".join(where.next)),
        ("if unwound", f"it leaves {where.leaves}"),
    )
    in_order = sorted(stored, key=lambda one: one.time)
    timeline = [
        msgspec.structs.replace(row, detail=inputs_text(each) or row.detail)
        for each, row in zip(in_order, timeline_rows(in_order), strict=True)
    ]
    head = "\n".join(f"{key:<11} {escape_line(value)}" for key, value in facts if value)
    return f"{head}\n\n{tables.timeline(timeline, colour=console.colour())}"


def inputs_text(stored: Stored) -> str:
    """The inputs of a step, if the entry starts it or its undo."""
    entry = decode_stored(stored)
    if not isinstance(entry, StepStarted | UndoStarted):
        return ""
    return ", ".join(
        f"{key} {msgspec.json.encode(value).decode() if isinstance(value, dict) else value}"
        for key, value in entry.inputs.items()
        if value not in ("", None)
    )


def _request_command(verb: str) -> Callable[..., None]:
    async def command(
        fleet: FleetAccess,
        saga: SagaName,
        reason: Reason = "",
        *,
        wait: Wait = False,
        wait_timeout: WaitTimeout = "",
        output: Output = console.Format.TABLE,
    ) -> None:
        where, stored = await find_saga(fleet, saga, ended=False)
        request = SagaRequest(saga=where.saga, reason=reason)
        answer = await fleet.request(where.pool, verb, request)
        console.write_message(require_accepted(answer), output)
        if wait:
            async with waiting(wait_timeout, where.saga):
                # What it was before the request is no end of it.
                after, is_cancelled = stored[-1].sequence, verb == "cancel"
                found = await saga_end(
                    fleet, where.saga, output, after=after, cancelled=is_cancelled
                )
            if found:
                raise NavarchError(found)

    return everyday_command(command)


for _verb, _help in (
    ("cancel", "Unwind a saga, if it has not passed its pivot."),
    ("retry", "Continue a stuck saga after its cause is fixed."),
    ("proceed", "Stop waiting for a drain, even if work still runs."),
):
    commands.command(_verb, help=_help)(_request_command(_verb))
