"""Implements `navarch evidence`: evidence about unhealthy nodes, for repair and vendors."""

import io
import os
import sys
import tarfile
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas.evidence_bundles import EvidenceBundle, KeptEvidence
from schemas.messages import encode
from schemas.names import saga_token, token
from services.cli import console
from services.cli.command_options import ListOutput
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import A_SAGA, GONE, named, node_names
from services.cli.live_names import complete_node, complete_saga
from services.cli.text import evidence_text
from services.operator_text.quantities import age_since, elapsed, gpu_hours, local_time
from services.primitives.atomic_files import write_whole
from services.primitives.errors import NavarchError

HEADERS: Final = (
    "unhealthy since",
    "age",
    "node",
    "fault",
    "out of service",
    "gpu-hours",
    "ended",
    "saga",
)
ROWS_MAX: Final = 200
"""The newest; `-o json` has all."""
ARCHIVE: Final = ".tar.gz"


@everyday_command
async def evidence(
    fleet: FleetAccess,
    node: Annotated[
        str,
        typer.Argument(
            help="The node's name, or its beginning; without it, list all evidence.",
            show_default=False,
            autocompletion=complete_node,
        ),
    ] = "",
    saga: Annotated[
        str,
        typer.Option(
            "--saga", help="Only the outage that this saga ended.", autocompletion=complete_saga
        ),
        A_SAGA,
    ] = "",
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="DIR|FILE.tar.gz",
            help="Write it as files, to attach to a vendor's ticket.",
        ),
    ] = None,
    output: ListOutput = console.LISTING,
) -> None:
    """Show the evidence about an unhealthy node.

    Also after the node is terminated. Without a node, list all evidence.
    """
    if node:

        async def names() -> list[str]:
            kept, _ = await fleet.evidence_list()
            return [*(each.node for each in kept), *await node_names(fleet)]

        def ask(name: str) -> Awaitable[EvidenceBundle]:
            return fleet.evidence(name, saga)

        _show(await named(node, ask, names, GONE), output, save)
    elif save or saga:
        raise typer.BadParameter("give the node: navarch evidence NODE --save DIR")
    else:
        show_list(*await fleet.evidence_list(), output)


def show_list(shown: Sequence[KeptEvidence], unreadable: int, output: console.Format) -> None:
    """Write all evidence, one line an outage; `unreadable`: objects that are none."""
    if unreadable:
        sys.stderr.write(
            f"{unreadable} objects in EVIDENCE do not say what outage they are about and are left "
            "out: `nats object ls EVIDENCE` lists them, `nats object rm EVIDENCE NAME` removes "
            "one.\n"
        )
    if output.is_data:
        console.write_data(output, shown)
        return
    if not shown:
        console.write("No evidence: no node has been unhealthy.")
        return
    now = datetime.now(UTC)
    rows = [_row(each, now) for each in shown[-ROWS_MAX:]]
    console.write_table(HEADERS, rows, output=output)
    if isinstance(output, console.Listing) and output.is_bare:
        return
    if len(shown) > ROWS_MAX:
        console.write(f"… {len(shown) - ROWS_MAX} older: navarch evidence -o json")
    console.write("\nDetails: navarch evidence NODE; to save it: --save DIR or FILE.tar.gz")


def _row(about: KeptEvidence, now: datetime) -> tuple[str, ...]:
    since, back = about.unhealthy_at, about.restored_at
    return (
        local_time(since or about.time),
        age_since(since or about.time, now),
        about.node,
        about.fault_signature or "-",
        elapsed((back - since).total_seconds()) if since and back else "-",
        gpu_hours(about.lost_gpu_hours) if back else "-",
        about.outcome + (f" by {about.new_node}" if about.new_node else ""),
        about.saga or "-",
    )


def _show(bundle: EvidenceBundle, output: console.Format, save: Path | None) -> None:
    if save is not None:
        where = write_files(save, bundle)
        console.write(f"{where}: {len(evidence_text.FILES)} files; begin with README.txt")
    elif output.is_data:
        console.write_data(output, encode(bundle))
    else:
        console.write(evidence_text.summary(bundle, console.room(output)))
        console.write(
            f"\nEverything: navarch evidence {bundle.node} -o json; to save it: "
            "--save DIR or --save FILE.tar.gz"
        )


def write_files(place: Path, bundle: EvidenceBundle) -> Path:
    """Write the files to a new folder in `place`, or to an archive."""
    node = token(bundle.node, "node")
    folder = f"evidence-{node}" + (f"-{saga_token(bundle.saga)}" if bundle.saga else "")
    files = evidence_text.files(bundle)
    try:
        if place.name.endswith(ARCHIVE):
            place.parent.mkdir(parents=True, exist_ok=True)
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                for name, data in files.items():
                    about = tarfile.TarInfo(f"{folder}/{name}")
                    about.size = len(data)
                    about.mtime = int(bundle.unhealthy_at.timestamp())
                    archive.addfile(about, io.BytesIO(data))
            write_whole(place, packed.getvalue())
            return place
        where = place / folder
        where.mkdir(parents=True, exist_ok=True)
        if where.is_symlink() or where.stat().st_uid != os.geteuid():
            raise NavarchError(f"{where} is a link, or another user's folder: name another place")
        for name, data in files.items():
            write_whole(where / name, data)
    except OSError as error:
        raise NavarchError(f"cannot write to {place}: {error.strerror or error}") from error
    return where
