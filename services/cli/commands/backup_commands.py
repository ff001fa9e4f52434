"""Implements `navarch backup` and `navarch restore`: every stream and bucket, as files."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from services.bus.backup.backup_files import BackupError, Manifest, read_manifest
from services.cli import console
from services.cli.bus_client import connect_archives
from services.cli.command_options import Config, NatsUrl, Output
from services.cli.fleet_discovery import find_bus
from services.cli.service_replies import service_replies
from services.primitives.clock import SystemClock
from services.primitives.errors import NotPermitted

KIB: Final = 1024
ADMIN_NEEDED: Final = (
    "this needs an administrator's credentials: `navarch nats-config user add NAME --role admin` "
    "makes some; name the file in NAVARCH_NATS_CREDS_FILE"
)
Directory = Annotated[
    Path, typer.Argument(metavar="DIRECTORY", help="The backup's directory.", show_default=False)
]


def backup(
    directory: Directory,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = console.Format.TABLE,
) -> None:
    """Save every stream and bucket in a new directory; the fleet may run."""
    manifest = _run(_backup(directory, nats_url, config))
    if output.is_data:
        console.write_data(output, manifest)
        return
    console.write(f"{directory}: {_described(manifest)}")
    if manifest.services:
        running = ", ".join(manifest.services)
        console.write(f"Running meanwhile: {running}. What they do from now on is not in it.")


def restore(
    directory: Directory,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = console.Format.TABLE,
) -> None:
    """Restore a backup into an empty server or cluster; start the services after it."""
    manifest = _run(_restore(directory, nats_url, config))
    if output.is_data:
        console.write_data(output, manifest)
        return
    console.write(f"Restored: {_described(manifest)}")
    console.write("Start the services, then see docs/backup.md, After a restore.")


def _run(work: Coroutine[Any, Any, Manifest]) -> Manifest:
    try:
        return asyncio.run(work)
    except NotPermitted as error:
        raise BackupError(f"{error}; {ADMIN_NEEDED}") from error


async def _backup(directory: Path, nats_url: str, config: Path | None) -> Manifest:
    from services.bus.backup.store_backup import back_up  # noqa: PLC0415 - it loads the bus's client

    async with connect_archives(find_bus(nats_url, config)) as (bus, fleet):
        return await back_up(
            bus,
            SystemClock(),
            directory,
            services=tuple(await service_replies(fleet)),
            progress=_progress("saving"),
        )


async def _restore(directory: Path, nats_url: str, config: Path | None) -> Manifest:
    from services.bus.backup import store_restore  # noqa: PLC0415

    manifest = read_manifest(directory)
    settings = find_bus(nats_url, config)
    async with connect_archives(settings) as (bus, fleet):
        if running := await service_replies(fleet):
            raise BackupError(
                f"services are connected to this server ({', '.join(running)}): stop them first. "
                "Nothing was changed"
            )
        await store_restore.restore(
            bus,
            SystemClock(),
            directory,
            manifest,
            replicas=settings.replicas,
            progress=_progress("restoring"),
        )
    return manifest


def _progress(what: str) -> Callable[[str], None]:
    """One line for each stream, where a person looks."""

    def show(stream: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"{what} {stream}\n")

    return show


def _described(manifest: Manifest) -> str:
    fleet = f"fleet {manifest.fleet}" if manifest.fleet else "a fleet without services yet"
    return (
        f"{fleet} as of {manifest.ended_at:%Y-%m-%d %H:%M:%S} UTC, {len(manifest.streams)} streams "
        f"and buckets, {manifest.bytes / KIB:,.0f} KiB, Navarch {manifest.navarch}"
    )
