"""Implements `navarch nats-config rotate`, which replaces keys in use."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from schemas.permissions import GATEWAY, SERVICES, USER_ROLES
from schemas.settings import NatsSettings
from services.bus.nats.account_updates import Requests, UntrustedKeyError
from services.cli import console, key_rotation
from services.cli.bus_certificates import BusCertificates
from services.cli.bus_keys import ROTATIONS
from services.cli.command_options import BUS, BusDirectoryOption, Config, NatsUrl
from services.cli.fleet_discovery import find_bus
from services.cli.key_rotation import connecting_revoker
from services.cli.nats_config_files import BusDirectory
from services.primitives.errors import NavarchError

T = TypeVar("T")
AUTHORITY: Final = "authority"

HAND_OVER: Final[Mapping[str, str]] = {
    "agents": (
        "copy agent-signing.json to the provisioner's host. Write the files of each region again "
        "(`navarch nats-config region`), copy them to its server and restart it. Agents have "
        "credentials of the new key after agent.credentials_valid (a day); then"
    ),
    "authority": (
        "copy tls/ca.pem to the hosts of services, users and nodes, and to the servers, where "
        "`nats-server --signal reload` is needed if they verify clients. Agents receive it with "
        "their credentials, within agent.credentials_valid (a day). Clients' certificates: "
        "`navarch nats-config certificate NAME`; then"
    ),
    "regions": (
        "write each region's files again (`navarch nats-config region`), copy them to its server "
        "and restart it; then"
    ),
    "operator-key": (
        "copy revocation.json and revoker.creds to the provisioner's host and restart the "
        "provisioner; then"
    ),
    **{
        service: f"copy creds/{service}.creds to its host and restart the {service}; then"
        for service in (*SERVICES, GATEWAY)
    },
    **{
        role: (
            f"replace the credentials of each {role} (`navarch nats-config user revoke NAME`, then "
            "`user add NAME`); then"
        )
        for role in USER_ROLES
    },
    "all": "do what is said for each of the others; then",
}
"""What an operator does between the two steps."""
REFUSED: Final[Mapping[str, str]] = {
    "agents": (
        "credentials, rejoin tokens and bootstrap credentials of the old key, also of agents that "
        "are not connected now; their nodes must be replaced"
    ),
    "authority": (
        "clients' certificates of the old authority; and clients that accept the old alone refuse "
        "the servers. Both once each nats-server has the new tls/ and has read it (`nats-server "
        "--signal reload`)"
    ),
    "regions": "servers of regions with credentials of the old key, and so all their agents",
    "operator-key": (
        "accounts' tokens of the old key, once each nats-server has the new accounts.conf and is "
        "restarted; revoker.creds of the old key at once"
    ),
    **{service: f"credentials of the {service} of the old key" for service in (*SERVICES, GATEWAY)},
    **{role: f"credentials of each {role} of the old key" for role in USER_ROLES},
    "all": "what any old key has signed, as is said for each of the others",
}
"""What the second step has the servers refuse."""


def rotate(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help=", ".join((AUTHORITY, *ROTATIONS)), show_default=False),
    ],
    directory: BusDirectoryOption = BUS,
    finish: Annotated[
        bool, typer.Option("--finish", help="Have the servers refuse the old key.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be refused, and change nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --finish: also if the old key is in use.")
    ] = False,
    nats_url: NatsUrl = "",
    config: Config = None,
) -> None:
    """Replace a key: the servers accept both until --finish."""
    if what not in (AUTHORITY, *ROTATIONS):
        known = ", ".join((AUTHORITY, *ROTATIONS))
        raise NavarchError(f"there is no key {what!r}; there is {known}")
    if what == AUTHORITY:
        _rotate_authority(directory, finishes=finish, is_dry_run=dry_run)
        return
    nats, now = find_bus(nats_url, config), datetime.now(UTC)
    again, refused = f"navarch nats-config rotate {what}", REFUSED[what]
    under_way = key_rotation.is_under_way(directory, what)
    if not (finish or dry_run):
        try:
            files = _run(partial(key_rotation.begin, what=what, at=now), directory, nats)
        except UntrustedKeyError as error:
            console.write(f"The new keys are made. {error}: {again}")
            return
        _write_files(files)
        console.write(f"Both keys are accepted. Next: {HAND_OVER[what]} `{again} --finish`")
        return
    if not under_way and dry_run:
        console.write(f"`{again}` makes a new key. Until `{again} --finish` nothing is refused.")
        return
    if dry_run:
        used = _run(partial(key_rotation.users_of_old_keys, what=what, at=now), directory, nats)
        console.write(f"`{again} --finish` has the servers refuse {refused}.")
        console.write(f"Of the old key and in use now: {', '.join(used) or 'none'}")
        return
    ending = partial(key_rotation.finish, what=what, at=now, is_forced=force)
    _write_files(_run(ending, directory, nats))
    console.write(
        f"The servers refuse {refused}."
        if under_way
        else f"No rotation of {what} was under way; `{again}` begins one."
    )


def _rotate_authority(directory: Path, *, finishes: bool, is_dry_run: bool) -> None:
    made, now = BusCertificates(directory), datetime.now(UTC)
    again, under_way = f"navarch nats-config rotate {AUTHORITY}", made.is_under_way
    if is_dry_run or (finishes and not under_way):
        console.write(f"A rotation of the authority is {'' if under_way else 'not '}under way.")
        console.write(f"`{again} --finish` has the servers refuse {REFUSED[AUTHORITY]}.")
        return
    if finishes:
        made.finish(now)
    else:
        made.begin(BusDirectory(directory).fleet(), now)
    _write_files(made.written)
    console.write(
        f"Copy tls/ to each nats-server, then `nats-server --signal reload`: it refuses "
        f"{REFUSED[AUTHORITY]}."
        if finishes
        else f"Both authorities are accepted. Next: {HAND_OVER[AUTHORITY]} `{again} --finish`"
    )


def _run(
    step: Callable[[Requests, Path], Coroutine[Any, Any, T]], directory: Path, nats: NatsSettings
) -> T:
    async def connected() -> T:
        async with connecting_revoker(directory, nats) as server:
            return await step(server, directory)

    return asyncio.run(connected())


def _write_files(files: list[Path]) -> None:
    for file in files:
        console.write(f"wrote {file}")
