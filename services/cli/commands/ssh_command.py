"""Implements `navarch ssh`: a shell on a node, with its pinned host key.

The instance record has the address and the host key, the pool's record the user. If no host key is
recorded yet, ssh pins the first one that it sees under the node's name. Names,
addresses, users and keys of the answers match the patterns of `schemas/value_limits.py`.
"""

import asyncio
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from schemas.addresses import host_and_port
from schemas.fleet_queries import Query
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.names import token
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import POOLS
from schemas.value_limits import UserName
from services.cli import console
from services.cli.bus_client import connect_fleet
from services.cli.command_options import Config, NatsUrl
from services.cli.fleet_discovery import LOCAL_FOLDER, find_bus, settings_of
from services.cli.fleet_names import Kind, complete
from services.cli.live_names import complete_node
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.instance_reader import read_instances
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError

RUNNING: Final = Kind("running instances", "there is no running instance", "navarch list")
KNOWN_HOSTS: Final = "known_hosts.d"


def ssh(
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            help="A node, a pool, or POOL-0.",
            show_default=False,
            autocompletion=complete_node,
        ),
    ],
    command: Annotated[
        list[str] | None, typer.Argument(help="The command to run; default: a shell.")
    ] = None,
    *,
    show: Annotated[bool, typer.Option("--print", help="Print the command, run nothing.")] = False,
    user: Annotated[str, typer.Option("--user", help="Default: the pool's ssh_user.")] = "",
    nats_url: NatsUrl = "",
    config: Config = None,
) -> None:
    """Open a shell on a node; its host key is pinned."""

    async def work() -> list[str]:
        async with connect_fleet(find_bus(nats_url, config)) as fleet:
            record, spec = await _find_instance(fleet, node)
        data = Path(settings_of(config).data_dir)
        here = data / LOCAL_FOLDER / record.instance
        if record.address == "127.0.0.1" and not record.host_key and here.is_dir():
            return local_shell(here, command or ())
        if user:
            spec = msgspec.structs.replace(spec, ssh_user=checked_user(user))
        return command_line(record, spec, known_hosts(record, data), command or ())

    words = asyncio.run(work())
    if show:
        console.write(shlex.join(words), exactly=True)
        return
    try:
        os.execvp(words[0], words)  # noqa: S606 - it takes this process's place
    except FileNotFoundError as error:
        raise NavarchError(f"there is no {words[0]} here; install an SSH client") from error


async def _find_instance(fleet: FleetClient, name: str) -> tuple[InstanceRecord, PoolSpec]:
    """Find the node's instance and its pool's settings."""
    running = [each for each in await read_instances(fleet, Query()) if each.state == "running"]
    record = select_instance(running, name)
    entry = await fleet.bus.get(POOLS, pool_key(record.pool))
    if entry is None:
        raise NavarchError(f"the pool {record.pool} no longer exists")
    spec: PoolSpec = decoder(PoolRecord).decode(entry.value).spec
    return record, spec


def select_instance(running: Sequence[InstanceRecord], name: str) -> InstanceRecord:
    """The instance of this name, the first one of this pool, or POOL-N, counted from 0."""
    by_name = {each.instance: each for each in running}
    if name in by_name:
        return by_name[name]
    pool, _, number = name.rpartition("-")
    for wanted, place in ((name, 0), (pool, int(number) if number.isdecimal() else -1)):
        of_pool = sorted((each for each in running if each.pool == wanted), key=_serial)
        if 0 <= place < len(of_pool):
            return of_pool[place]
    return by_name[complete(name, by_name, RUNNING)]


def _serial(record: InstanceRecord) -> tuple[int, str]:
    """Sort key: the number in its name, `training-12-a285`."""
    digits = record.instance.removeprefix(f"{record.pool}-").partition("-")[0]
    return int(digits) if digits.isdecimal() else 0, record.instance


def local_shell(place: Path, command: Sequence[str]) -> list[str]:
    """A shell in the folder of a node that is a process on this machine."""
    shell = os.environ.get("SHELL", "/bin/sh")
    then = shlex.join(command) if command else f"exec {shlex.quote(shell)}"
    return ["sh", "-c", f"cd {shlex.quote(str(place.absolute()))} && {then}"]


def checked_user(user: str) -> str:
    """The user of `--user`; NavarchError if ssh might read it as something else."""
    try:
        return msgspec.convert(user, UserName)
    except msgspec.ValidationError as error:
        raise NavarchError(
            f"--user {user!r} is not a login name: use a-z, A-Z, 0-9, '_', '-' and '.'"
        ) from error


def known_hosts(record: InstanceRecord, data_dir: Path) -> Path:
    """The file in the fleet's data directory that holds only this node's host key."""
    name = token(record.instance, "instance")
    file = data_dir.absolute() / KNOWN_HOSTS / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if record.host_key:
            write_secret(file, f"{name} {record.host_key}\n")
    except OSError as error:
        raise NavarchError(
            f"the node's host key cannot be written to {file} ({error.strerror}): name a data_dir "
            "that you may write in the configuration (--config)"
        ) from error
    return file


def command_line(
    record: InstanceRecord, spec: PoolSpec, known: Path, command: Sequence[str]
) -> list[str]:
    """The ssh command that replaces this process."""
    if not record.address:
        raise NavarchError(
            f"{record.provider} has not reported an address of {record.instance} yet: navarch why "
            f"{record.instance}"
        )
    words = ["ssh", "-o", f"HostKeyAlias={record.instance}", "-o", f"UserKnownHostsFile={known}"]
    strict = "yes" if record.host_key else "accept-new"
    words += ["-o", f"StrictHostKeyChecking={strict}", "-o", "HashKnownHosts=no"]
    if spec.ssh_private_key_path and Path(spec.ssh_private_key_path).is_file():
        words += ["-i", spec.ssh_private_key_path, "-o", "IdentitiesOnly=yes"]
    host, port = host_and_port(record.address, spec.setup.port)
    return [*words, "-p", str(port), "--", f"{spec.ssh_user}@{host}", *command]
