"""`navarch offerings`: where capacity may come from, at what price, and what is exhausted."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.console import Format


def offerings(
    *,
    pool: Annotated[str, typer.Option("--pool", help="That one pool may launch.")] = "",
    provider: Annotated[str, typer.Option("--provider", help="Of one provider.")] = "",
    instance_type: Annotated[
        str, typer.Option("--type", help="Of one type: gpu_8x_h100_sxm5, or h100-8x.")
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Also what no pool names, from the catalogue.")
    ] = False,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """List what can be launched, and what it costs.

    Where, since when it is exhausted, when that is tried again, and what uses it.
    """

    async def work() -> None:
        from schemas.offering_records import OfferingsQuery, OfferingView  # noqa: PLC0415
        from services.cli.bus_client import connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415
        from services.cli.text.offering_text import HEADERS, offering_rows  # noqa: PLC0415

        query = OfferingsQuery(
            pool=pool, provider=provider, instance_type=instance_type, everything=everything
        )
        async with connected(find_bus(nats_url, config)) as fleet:
            await fleet.check_pool(pool)
            items = await fleet.pages("offerings", query)
        if output is Format.JSON:
            console.write_json(console.json_array(items))
            return
        now = datetime.now(UTC)
        views = [msgspec.json.decode(each, type=OfferingView) for each in items]
        rows = offering_rows(views, now)
        empty = "No pool names an offering that can be launched; --all shows the catalogue."
        console.write_table(HEADERS, rows, empty)

    asyncio.run(work())
