"""`navarch up` and `navarch down`: launch a pool of GPUs by request, and remove it.

Both send a request (`apply`, `remove`) and follow its progress; interrupting the command does not
cancel the request.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from schemas.duration import parse_duration
from schemas.fleet_queries import Query
from schemas.names import TOKEN
from schemas.offering_records import OfferingsQuery, OfferingView
from schemas.operator_requests import ApplyRequest, RemoveRequest
from services.cli import console, dry_run_output
from services.cli.command_options import (
    Config,
    DryRun,
    Mode,
    PoolName,
    Timeout,
    Yes,
    confirm,
    drain_options,
)
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_discovery import served_settings
from services.cli.progress_board import show_launches, show_removal
from services.cli.text.launch_plan import LaunchPlan, LaunchRequest, catalogue_offerings, plan
from services.fleet_client import fleet_client
from services.fleet_client.query_answers import decode_answer, decode_pools
from services.primitives.errors import AnswerError, ConfigurationError, NavarchError
from services.settings.instance_type_file import load_instance_types
from services.settings.yaml_document import read_document

READY_MINUTES: Final = 60

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]


@everyday_command
async def up(
    fleet: FleetAccess,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Number of GPUs in total.")],
    kind: Annotated[
        str,
        typer.Option(
            "--type", help="GPU model (h100), abstract type, or a provider's instance type."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="The pool's name.")],
    provider: Annotated[str, typer.Option("--provider", help="Only at this provider.")] = "",
    region: Annotated[str, typer.Option("--region", help="Only in this region.")] = "",
    *,
    spot: Annotated[bool, typer.Option("--spot", help="On the spot market.")] = False,
    max_price: Annotated[
        float, typer.Option("--max-price", min=0, help="Dollars per hour and node; 0: no limit.")
    ] = 0.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the pool, as in YAML."),
    ] = None,
    idle_after: Annotated[
        str,
        typer.Option(
            "--idle-after", metavar="30m", help="Remove nodes that have no work for so long."
        ),
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = True,
    config: Config = None,
) -> None:
    """Launch a pool of GPUs: plan, price, confirm, progress.

    Run again with another number to grow or shrink the same pool.
    """
    request = LaunchRequest(
        name=name,
        gpus=gpus,
        type=kind,
        provider=provider,
        region=region,
        market="spot" if spot else "on-demand",
        max_price=max_price,
        settings={**idle_setting(idle_after), **read_settings(settings or [])},
    )
    planned = await _make_plan(fleet, await _with_current_size(fleet, request), config)
    there = await _nodes(fleet, name)
    applied = ApplyRequest(spec=planned.spec, nodes=planned.nodes)
    if dry_run:
        console.write(plan_text(planned, there))
        await dry_run_output.dry_runs(fleet, "apply", [(name, applied)], console.Format.TABLE)
        return
    # No plan is shown that is refused then.
    found = await dry_run_output.rehearse(fleet, name, "apply", applied)
    console.write("\n".join([plan_text(planned, there), *dry_run_output.owner_lines(found)]))
    confirm("Launch it?", yes=yes, instead="--dry-run")
    console.write_message(
        fleet_client.require_accepted(await fleet.request(name, "apply", applied)),
        console.Format.TABLE,
    )
    if wait:
        await _wait_until_ready(fleet, name, planned.nodes)


@everyday_command
async def down(
    fleet: FleetAccess,
    name: PoolName,
    *,
    mode: Mode = "",
    drain_timeout: Timeout = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = True,
) -> None:
    """Drain and terminate all nodes of a pool, and remove it."""
    request = drain_options(RemoveRequest, mode, drain_timeout)
    owners = list[str]()
    if not dry_run:
        owners = dry_run_output.owner_lines(
            await dry_run_output.rehearse(fleet, name, "remove", request)
        )
    there = await _nodes(fleet, name)
    for node, status in there.items():
        console.write(f"  {node:<24} {status}")
    nodes = "1 node leaves" if len(there) == 1 else f"{len(there)} nodes leave"
    console.write(f"{name}: {nodes}, each after its work has left.")
    if dry_run:
        await dry_run_output.dry_runs(fleet, "remove", [(name, request)], console.Format.TABLE)
        return
    for line in owners:
        console.write(line)
    confirm(f"Take {name} down?", yes=yes, instead="--dry-run")
    answer = fleet_client.require_accepted(await fleet.request(name, "remove", request))
    console.write_message(answer, console.Format.TABLE)
    if wait:
        await _wait_until_removed(fleet, name)


def idle_setting(after: str) -> dict[str, Any]:
    """The setting that has nodes leave by themselves; the pool stays, with none."""
    if not after:
        return {}
    try:
        parse_duration(after)
    except ValueError as error:
        raise NavarchError(f"--idle-after: {error}") from error
    return {"idle_after": after}


def read_settings(options: list[str]) -> dict[str, Any]:
    """`--set KEY=VALUE`, each value as YAML; `health.auto_replace=false` goes into `health`."""
    found: dict[str, Any] = {}
    for each in options:
        path, equals, text = each.partition("=")
        if not equals or not path:
            raise NavarchError(f"--set {each}: write KEY=VALUE")
        try:
            value = read_document("--set", text).value if text.strip() else None
        except ConfigurationError as error:
            raise NavarchError(f"--set {each}: the value is not YAML") from error
        *inside, last = path.split(".")
        place = found
        for key in inside:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise NavarchError(f"--set {each}: {key} has a value already")
        place[last] = value
    return found


# --- the plan ------------------------------------------------------------------------------------


async def _with_current_size(fleet: FleetAccess, request: LaunchRequest) -> LaunchRequest:
    """The request, with the size of the nodes that the pool already has."""
    if not TOKEN.match(request.name):
        return request
    pools = decode_pools(await fleet.pages("pools", Query(pool=request.name)))
    gpus = [each.gpu_count for each in pools if each.desired]
    return msgspec.structs.replace(request, each=gpus[0]) if gpus else request


async def _make_plan(fleet: FleetAccess, request: LaunchRequest, config: Path | None) -> LaunchPlan:
    settings, file = served_settings(config)
    kinds = {name: each.type for name, each in settings.providers.items()}
    try:
        items = await fleet.pages("offerings", OfferingsQuery(everything=True), who="provisioner")
        offers = [decode_answer(OfferingView, each, "offerings", "provisioner") for each in items]
        # Of the fleet: there may be no configuration here.
        kinds = {each.provider: each.plugin for each in offers if each.plugin} | kinds
    except AnswerError:
        raise
    except NavarchError:
        # The provisioner does not answer, or is older: the catalogue has the types.
        offers = catalogue_offerings(load_instance_types(settings.instance_types, file), kinds)
    return plan(request, offers, kinds)


def plan_text(planned: LaunchPlan, there: dict[str, str]) -> str:
    """The plan as a table, the offering that is tried first on top."""
    headers = ("", "provider", "region", "type", "market", "$/h per node", "$/h total", "capacity")
    rows = []
    for number, each in enumerate(planned.offers):
        price = each.dollars_per_hour
        rows.append(
            (
                "first" if number == 0 else "else",
                each.provider,
                each.zone or each.region or "-",
                each.instance_type,
                each.market,
                "?" if price is None else f"{price:.2f}",
                "?" if price is None else f"{price * planned.nodes:.2f}",
                each.state if each.state == "available" else f"{each.state}: {each.reason}",
            )
        )
    nodes = "node" if planned.nodes == 1 else "nodes"
    head = f"{planned.name}: {planned.nodes} {nodes} with {planned.gpus} GPUs each"
    if there:
        head += f"; it has {len(there)} now"
    return f"{head}\n{console.table(headers, rows)}"


# --- progress ------------------------------------------------------------------------------------


async def _nodes(fleet: FleetAccess, pool: str) -> dict[str, str]:
    """The pool's nodes and their states."""
    return {each.id: each.status for each in await fleet.nodes(Query(pool=pool))}


async def _wait_until_ready(fleet: FleetAccess, pool: str, wanted: int) -> None:
    """Show the progress of each node until `wanted` nodes are in service."""
    try:
        async with asyncio.timeout(READY_MINUTES * 60):
            await show_launches(fleet, pool, wanted)
    except TimeoutError as error:
        raise NavarchError(
            f"fewer than {wanted} nodes are in service after {READY_MINUTES} minutes; the pool "
            f"continues to launch: navarch why {pool}"
        ) from error
    console.write(f"{pool} is up: {wanted} in service. navarch ssh {pool}, navarch down {pool}")


async def _wait_until_removed(fleet: FleetAccess, pool: str) -> None:
    """Show the nodes that leave until the pool is removed."""
    await show_removal(fleet, pool)
    console.write(f"{pool} is down: the provider confirmed that its last instance is terminated")
