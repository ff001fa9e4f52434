"""`navarch offerings`: what can be launched, at what price, and what is exhausted."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from schemas.offering_records import OfferingsQuery, OfferingView
from services.cli import console
from services.cli.command_options import ListOutput, Pool
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.text.offering_text import HEADERS, no_offerings, offering_rows
from services.fleet_client.query_answers import decode_answer


@everyday_command
async def offerings(
    fleet: FleetAccess,
    *,
    pool: Pool = "",
    provider: Annotated[str, typer.Option("--provider", help="Only this provider.")] = "",
    instance_type: Annotated[
        str, typer.Option("--type", help="Only this type: gpu_8x_h100_sxm5, or h100-8x.")
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Include catalogue entries that no pool names.")
    ] = False,
    output: ListOutput = console.LISTING,
) -> None:
    """List the offerings and their prices.

    Where each is available, since when it is exhausted, when it is tried next, and what uses it.
    """
    query = OfferingsQuery(
        pool=pool, provider=provider, instance_type=instance_type, everything=everything
    )
    items = await fleet.pages("offerings", query, who="provisioner")
    views = [decode_answer(OfferingView, each, "offerings", "provisioner") for each in items]
    if output.is_data:
        console.write_data(output, items)
        return
    named = {"--pool": pool, "--provider": provider, "--type": instance_type}
    filters = " ".join(f"{option} {value}" for option, value in named.items() if value)
    empty = no_offerings(filters, everything=everything)
    console.write_table(HEADERS, offering_rows(views, datetime.now(UTC)), empty, output)
