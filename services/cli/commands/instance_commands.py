"""`navarch instances`, `leaked` and `sweep`: what costs money, and what should not any more.

All three ask the provisioner, which alone speaks with providers.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.console import Format

if TYPE_CHECKING:
    from schemas.instance_records import InstanceRecord
    from schemas.sweeps import SweepAnswer
    from services.cli.bus_client import Fleet

WHO: Final = "provisioner"
SWEEP_SECONDS_MAX: Final = 110.0
"""Each provider may take a minute to be listed."""
PAGE: Final = 500
"""Records of some kilobytes each: a page must fit one message of the bus."""
Pool = Annotated[str, typer.Option("--pool", help="Of one pool only.")]


def instances(
    pool: Pool = "",
    *,
    terminated: Annotated[bool, typer.Option("--all", help="Also those that are gone.")] = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """List what costs money: every instance.

    Where it stands, since when, and its price.
    """

    async def work() -> None:
        from services.cli.text import instances_text, tables  # noqa: PLC0415

        async with _asked(nats_url, config, pool) as fleet:
            items, records = await _records(fleet, pool, terminated=terminated)
        if output is Format.JSON:
            console.write_json(console.json_array(items))
            return
        now = datetime.now(UTC)
        rows = instances_text.instance_rows(records, now)
        if rows:
            headers = instances_text.INSTANCE_HEADERS
            console.write(tables.columns(headers, rows, colour=console.colour()))
        console.write(instances_text.total(records))

    asyncio.run(work())


def leaked(
    pool: Pool = "",
    *,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """List what should be gone and cannot be removed.

    Since when, why, and what it costs.
    """

    async def work() -> None:
        from services.cli.text import instances_text, tables  # noqa: PLC0415

        async with _asked(nats_url, config, pool) as fleet:
            items, records = await _records(fleet, pool, terminated=False)
        if output is Format.JSON:
            kept = [item for item, each in zip(items, records, strict=True) if _leaked(each)]
            console.write_json(console.json_array(kept))
            return
        now = datetime.now(UTC)
        rows = instances_text.leaked_rows([each for each in records if _leaked(each)], now)
        if rows:
            headers = instances_text.LEAKED_HEADERS
            console.write(tables.columns(headers, rows, colour=console.colour()))
        console.write(instances_text.leaked_total(records, now))

    asyncio.run(work())


def sweep(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what a sweep would do; touch nothing.")
    ] = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Compare providers and records now, and mend what differs.

    Both ways.

    A sweep runs by itself every half minute; this one is not waited for.
    """

    async def work() -> None:
        from schemas.sweeps import SweepAnswer, SweepRequest  # noqa: PLC0415
        from services.cli.bus_client import asker  # noqa: PLC0415

        name = "sweep-plan" if dry_run else "sweep-now"
        async with _asked(nats_url, config) as fleet:
            data = await fleet.ask(
                name, SweepRequest(by=asker()), timeout_seconds=SWEEP_SECONDS_MAX, who=WHO
            )
        if output is Format.JSON:
            console.write_json(data)
            return
        _say_sweep(msgspec.json.decode(data, type=SweepAnswer))

    asyncio.run(work())


def _say_sweep(answer: "SweepAnswer") -> None:
    from services.cli.text import instances_text, tables  # noqa: PLC0415

    rows = instances_text.sweep_rows(answer)
    if rows:
        headers = instances_text.SWEEP_HEADERS
        console.write(tables.columns(headers, rows, colour=console.colour()))
    for line in instances_text.sweep_words(answer):
        console.write(line)


@asynccontextmanager
async def _asked(nats_url: str, config: Path | None, pool: str = "") -> "AsyncIterator[Fleet]":
    from services.cli.bus_client import connected  # noqa: PLC0415
    from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

    async with connected(find_bus(nats_url, config)) as fleet:
        await fleet.check_pool(pool)
        yield fleet


async def _records(
    fleet: "Fleet", pool: str, *, terminated: bool
) -> "tuple[Sequence[msgspec.Raw], list[InstanceRecord]]":
    from schemas.fleet_queries import Query  # noqa: PLC0415
    from schemas.instance_records import InstanceRecord  # noqa: PLC0415
    from schemas.messages import decoder  # noqa: PLC0415

    query = Query(pool=pool, terminated=terminated, limit=PAGE)
    items = await fleet.pages("instances", query, who=WHO)
    read = decoder(InstanceRecord)
    return items, [read.decode(each) for each in items]


def _leaked(record: "InstanceRecord") -> bool:
    return record.state == "leaked"
