"""`navarch slurm resume` and `suspend`: what Slurm's ResumeProgram and SuspendProgram run.

Slurm runs them once and ignores what they print. Names that could not be requested are therefore
printed on stdout, for the script around them to set DOWN, and the reasons on stderr, for its log.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas.messages import decoder
from schemas.operator_requests import WORKLOAD_NAMES_MAX, NamesRequest
from schemas.pool_events import RequestRefused, ScaleRefused
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import POOLS
from services.bus.bucket_mirror import readable
from services.cli import console
from services.cli.bus_client import connect_fleet
from services.cli.command_options import Config, NatsUrl, command_group
from services.cli.fleet_discovery import find_bus
from services.fleet_client.fleet_client import FleetClient, UnansweredError
from services.operator_text.safe_text import escape_line
from services.primitives.errors import BusError
from services.primitives.host_list import expand_hosts, some_of

commands = command_group("What Slurm runs to have nodes started and stopped.")
FAILED: Final = 1
BUS_SECONDS_MAX: Final = {"resume": 60.0, "suspend": 3600.0}
"""How long the bus is tried. Slurm runs neither again: a job waits for its nodes meanwhile, and a
node that is not terminated costs money."""
AGAIN_SECONDS: Final = 2.0

Names = Annotated[
    str,
    typer.Argument(metavar="NAMES", help="As Slurm passes it: gpu-[001-003].", show_default=False),
]
_pools = decoder(PoolRecord)


@commands.command("resume")
def resume(names: Names, nats_url: NatsUrl = "", config: Config = None) -> None:
    """Have nodes of these names; run by ResumeProgram.

    Prints the names that could not be requested, and ends with exit code 1.
    """
    _change("resume", names, nats_url, config)


@commands.command("suspend")
def suspend(names: Names, nats_url: NatsUrl = "", config: Config = None) -> None:
    """Terminate the nodes of these names; run by SuspendProgram.

    A node that still runs jobs is drained first, for as long as they take.
    """
    _change("suspend", names, nats_url, config)


def _change(verb: str, hosts: str, nats_url: str, config: Path | None) -> None:
    try:
        names = list(dict.fromkeys(expand_hosts(hosts)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not names:
        raise typer.BadParameter(f"{hosts!r} names no node, as gpu-[001-003] does")
    failed = asyncio.run(_request_in_time(verb, names, nats_url, config))
    if failed:
        console.write(escape_line(",".join(failed)))
        raise typer.Exit(FAILED)


async def _request_in_time(
    verb: str, names: Sequence[str], nats_url: str, config: Path | None
) -> Sequence[str]:
    """Request until the bus has it, which changes nothing where it had it before."""
    loop = asyncio.get_running_loop()
    until = loop.time() + BUS_SECONDS_MAX[verb]
    while True:
        try:
            async with connect_fleet(find_bus(nats_url, config)) as fleet:
                return await request_names(fleet, verb, names)
        except BusError as error:
            if loop.time() + AGAIN_SECONDS > until:
                _report(f"{verb} of {some_of(names)} was not requested: {error}")
                return names
            await asyncio.sleep(AGAIN_SECONDS)


async def request_names(fleet: FleetClient, verb: str, names: Sequence[str]) -> Sequence[str]:
    """Send each pool its names; return those that were refused."""
    entries = await fleet.bus.entries(POOLS, pool_key("*"))
    pools: list[PoolRecord] = [record for _, record in readable(entries, _pools)]
    by_pool, unknown = names_by_pool(names, pools)
    failed = list(unknown)
    if unknown:
        _report(
            f"{some_of(unknown)}: in no pool's workload_names; name them there, or in "
            "SuspendExcNodes of slurm.conf if Navarch does not launch them"
        )
    for pool, known in batches(by_pool):
        request = NamesRequest(names=tuple(known))
        try:
            answer = await fleet.request(pool, verb, request)
        except UnansweredError as error:
            _report(f"{verb} of {some_of(known)}: {error}")
            continue
        if isinstance(answer, RequestRefused | ScaleRefused):
            _report(f"{verb} of {some_of(known)} refused ({answer.refusal}): {answer.reason}")
            failed += known
        else:
            _report(f"{verb} of {some_of(known)} in pool {pool}: {getattr(answer, 'note', '')}")
    return failed


def batches(by_pool: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    """Pools with as many names as one request may have: a larger one is refused whole. Pure."""
    for pool, names in by_pool.items():
        for start in range(0, len(names), WORKLOAD_NAMES_MAX):
            yield pool, names[start : start + WORKLOAD_NAMES_MAX]


def names_by_pool(
    names: Sequence[str], pools: Sequence[PoolRecord]
) -> tuple[Mapping[str, Sequence[str]], Sequence[str]]:
    """Return the names of each pool, and those of none."""
    # Nodes of a name that the setting has no longer can still be suspended.
    owners = {name: each.name for each in pools for name in each.workload_names}
    owners |= {name: each.name for each in pools for name in expand_hosts(each.spec.workload_names)}
    found: dict[str, list[str]] = {}
    for name in names:
        if name in owners:
            found.setdefault(owners[name], []).append(name)
    return found, [each for each in names if each not in owners]


def _report(text: str) -> None:
    sys.stderr.write(f"navarch: {escape_line(text)}\n")
    sys.stderr.flush()
