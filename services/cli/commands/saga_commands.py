"""`navarch saga list|show|retry|cancel|proceed`: what is under way, and what a person may do to it.

`list` and `show` read the logs themselves; the others are requests like any other, and the
pool-manager answers them.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.console import Format
from services.operator_text.quantities import local_time

if TYPE_CHECKING:
    from services.bus.port import Stored
    from services.cli.text.saga_progress import Progress

commands = typer.Typer(
    name="saga",
    help="Look at the sagas, cancel one, or bring on one that is stuck.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Saga = Annotated[str, typer.Argument(metavar="ID", help="The saga's id.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the saga's log.")]
HEADERS = ("saga", "pool", "node", "status", "step", "since", "deadline", "waiting for")


@commands.command("list")
def list_sagas(
    pool: Annotated[str, typer.Option("--pool", help="Of one pool only.")] = "",
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """List the open sagas and what each waits for."""

    async def work() -> None:
        from services.cli.bus_client import connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415
        from services.cli.stored_history import open_sagas  # noqa: PLC0415
        from services.cli.text import tables  # noqa: PLC0415
        from services.cli.text.saga_progress import progress  # noqa: PLC0415

        async with connected(find_bus(nats_url, config)) as fleet:
            await fleet.check_pool(pool)
            found = [progress(each) for each in await open_sagas(fleet.bus, pool)]
        if output is Format.JSON:
            console.write_json(found)
        elif found:
            console.write(tables.columns(HEADERS, rows(found), colour=console.colour()))
        else:
            console.write("No saga is open.")

    asyncio.run(work())


def rows(found: "Sequence[Progress]") -> list[tuple[str, ...]]:
    """One row a saga."""
    return [
        (
            each.saga,
            each.pool,
            " -> ".join(name for name in (each.node, each.new_node) if name),
            each.status,
            each.step or "-",
            local_time(each.since),
            local_time(each.deadline) if each.deadline else "-",
            each.waiting_for or "-",
        )
        for each in found
    ]


@commands.command("show")
def show(
    saga: Saga, nats_url: NatsUrl = "", config: Config = None, output: Output = Format.TABLE
) -> None:
    """Show a saga's log, open or ended.

    With what each step was given and put out.
    """

    async def work() -> None:
        from services.cli.bus_client import connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415
        from services.cli.stored_history import saga_log  # noqa: PLC0415
        from services.cli.text.saga_progress import progress  # noqa: PLC0415

        async with connected(find_bus(nats_url, config)) as fleet:
            state, stored = await saga_log(fleet.bus, saga)
        where = progress(state)
        if output is Format.JSON:
            entries = b"[" + b",".join(console.json_line(each).encode() for each in stored) + b"]"
            told = {**msgspec.structs.asdict(where), "log": msgspec.Raw(entries)}
            console.write_json(told)
        else:
            console.write(page(where, stored))

    asyncio.run(work())


def page(where: "Progress", stored: "Sequence[Stored]") -> str:
    """A saga as people read it: what it is, its log, and what it waits for."""
    from services.cli.text import tables  # noqa: PLC0415
    from services.cli.text.node_timeline import timeline_rows  # noqa: PLC0415

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
    moments = [
        msgspec.structs.replace(told, detail=given(each) or told.detail)
        for each, told in zip(in_order, timeline_rows(in_order), strict=True)
    ]
    head = "\n".join(f"{key:<11} {value}" for key, value in facts if value)
    return f"{head}\n\n{tables.timeline(moments, colour=console.colour())}"


def given(stored: "Stored") -> str:
    """What a step was given, where the entry is the order to perform or undo it."""
    from schemas.saga_log_entries import StepStarted, UndoStarted  # noqa: PLC0415
    from schemas.stored_messages import decode_stored  # noqa: PLC0415

    entry = decode_stored(stored)
    if not isinstance(entry, StepStarted | UndoStarted):
        return ""
    return ", ".join(
        f"{key} {msgspec.json.encode(value).decode() if isinstance(value, dict) else value}"
        for key, value in entry.inputs.items()
        if value not in ("", None)
    )


def _ask(
    verb: str, saga: str, reason: str, output: Format, nats_url: str, config: Path | None
) -> None:
    """Publish a request about a saga to its pool, and print what answers it."""

    async def work() -> None:
        from schemas.operator_requests import SagaRequest  # noqa: PLC0415
        from services.cli.bus_client import accepted, connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415
        from services.cli.stored_history import saga_log  # noqa: PLC0415

        async with connected(find_bus(nats_url, config)) as fleet:
            state, _ = await saga_log(fleet.bus, saga)
            request = SagaRequest(saga=saga, reason=reason)
            answer = await fleet.request(state.params.pool, verb, request)
            console.write_message(accepted(answer), output)

    asyncio.run(work())


@commands.command("cancel")
def cancel(
    saga: Saga,
    reason: Reason = "",
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Unwind a saga, where that still can be.

    That is before its old node goes, or its new one serves.
    """
    _ask("cancel", saga, reason, output, nats_url, config)


@commands.command("retry")
def retry(
    saga: Saga,
    reason: Reason = "",
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Bring on a stuck saga, once it is mended."""
    _ask("retry", saga, reason, output, nats_url, config)


@commands.command("proceed")
def proceed(
    saga: Saga,
    reason: Reason = "",
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Have a saga wait no longer for a drain.

    It goes on, whatever still runs on the node.
    """
    _ask("proceed", saga, reason, output, nats_url, config)
