"""`navarch evidence`: evidence about unhealthy nodes, for repair and vendor support."""

import io
import tarfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas.evidence_bundles import EvidenceBundle
from schemas.messages import encode
from schemas.names import saga_token, token
from schemas.topology import EVIDENCE
from services.bus.port import Bus, ObjectInfo
from services.cli import console
from services.cli.bus_client import FleetClient
from services.cli.command_options import Output
from services.cli.console import Format
from services.cli.fleet_connection import fleet_command
from services.cli.text import evidence_text, tables
from services.operator_text.quantities import elapsed, gpu_hours, local_time
from services.primitives.errors import NavarchError

HEADERS: Final = (
    "unhealthy since",
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
CAPTURE: Final = ".capture"


@fleet_command
async def evidence(
    fleet: FleetClient,
    node: Annotated[
        str,
        typer.Argument(help="The node's name; without it, list all evidence.", show_default=False),
    ] = "",
    saga: Annotated[str, typer.Option("--saga", help="Only the outage that this saga ended.")] = "",
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="DIR|FILE.tar.gz",
            help="Write it as files, to attach to a vendor's ticket.",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the evidence about an unhealthy node.

    Also after the node is terminated. Without a node, list all evidence.
    """
    if node:
        _show(await find_evidence(fleet.bus, node, saga), output, save)
    elif save or saga:
        raise typer.BadParameter("give the node: navarch evidence NODE --save DIR")
    else:
        _list(await fleet.bus.objects(EVIDENCE), output)


async def find_evidence(bus: Bus, node: str, saga: str = "") -> EvidenceBundle:
    """The evidence of a node's newest outage, or of the one that a saga ended.

    For an outage that has not ended, the bundle is assembled from what is stored now.
    """
    from services.metrics.evidence import stored_evidence  # noqa: PLC0415
    from services.metrics.evidence.evidence_content import bundle  # noqa: PLC0415
    from services.metrics.evidence.outage_endings import (  # noqa: PLC0415
        open_ending,
        recovered_ending,
    )

    about = [each for each in await bus.objects(EVIDENCE) if each.metadata.get("node") == node]
    captured = next((each for each in about if is_capture(each)), None)
    ended = [each for each in about if each is not captured]
    if saga:
        named = [each for each in ended if each.metadata.get("saga") == saga]
        if not named:
            there = ", ".join(each.metadata.get("saga", "") for each in ended) or "none"
            raise NavarchError(
                f"no evidence of an outage of {node} that saga {saga!r} ended; sagas: {there}"
            )
        ended = named
    if captured and not saga and (not ended or captured.time > ended[-1].time):
        pool = captured.metadata["pool"]
        kept, _ = await stored_evidence.stored_capture(bus, pool, node)
        pools = stored_evidence.PoolLog(bus)
        history = await stored_evidence.read_history(bus, pools, pool, node, ())
        current = open_ending(history)
        if current is None and kept is not None and not ended:
            current = recovered_ending(kept)
        if current is not None:
            return bundle(history, kept, current)
    if not ended:
        raise NavarchError(
            f"no evidence about a node {node!r}: it was never unhealthy, lost or replaced, or its "
            "evidence has expired; `navarch evidence` lists all evidence"
        )
    found = await stored_evidence.stored_bundle(bus, ended[-1].name)
    assert found is not None
    return found


def _list(kept: Sequence[ObjectInfo], output: Format) -> None:
    complete = {
        (e.metadata.get("node"), e.metadata.get("unhealthy_at")) for e in kept if not is_capture(e)
    }
    shown = [
        each
        for each in kept
        if not is_capture(each)
        or (
            each.metadata.get("outcome") in ("open", "recovered")
            and (each.metadata.get("node"), each.metadata.get("unhealthy_at")) not in complete
        )
    ]
    if output is Format.JSON:
        console.write_json([{"name": e.name, "bytes": e.size_bytes, **e.metadata} for e in shown])
        return
    if not shown:
        console.write("No evidence: no node has been unhealthy.")
        return
    rows = [_row(each) for each in shown[-ROWS_MAX:]]
    console.write(tables.columns(HEADERS, rows, colour=console.colour()))
    if len(shown) > ROWS_MAX:
        console.write(f"… {len(shown) - ROWS_MAX} older: navarch evidence -o json")
    console.write("\nDetails: navarch evidence NODE; to save it: --save DIR or FILE.tar.gz")


def is_capture(info: ObjectInfo) -> bool:
    """Whether an object is the capture from the start of an outage, not a full bundle."""
    return info.name.endswith(CAPTURE)


def _row(info: ObjectInfo) -> tuple[str, ...]:
    about = info.metadata
    unhealthy_at, back = (_moment(about.get(name, "")) for name in ("unhealthy_at", "restored_at"))
    ended = about.get("outcome", "-")
    if about.get("new_node"):
        ended += f" by {about['new_node']}"
    return (
        local_time(unhealthy_at or info.time),
        about.get("node", "-"),
        about.get("fault_signature", "") or "-",
        elapsed((back - unhealthy_at).total_seconds()) if unhealthy_at and back else "-",
        gpu_hours(float(about.get("lost_gpu_hours") or 0)) if back else "-",
        ended,
        about.get("saga", "") or "-",
    )


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _show(bundle: EvidenceBundle, output: Format, save: Path | None) -> None:
    if save is not None:
        where = write_files(save, bundle)
        console.write(f"{where}: {len(evidence_text.FILES)} files; begin with README.txt")
    elif output is Format.JSON:
        console.write_json(encode(bundle))
    else:
        console.write(evidence_text.summary(bundle))
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
            with tarfile.open(place, "w:gz") as archive:
                for name, data in files.items():
                    about = tarfile.TarInfo(f"{folder}/{name}")
                    about.size = len(data)
                    about.mtime = int(bundle.unhealthy_at.timestamp())
                    archive.addfile(about, io.BytesIO(data))
            return place
        where = place / folder
        where.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (where / name).write_bytes(data)
    except OSError as error:
        raise NavarchError(f"cannot write to {place}: {error.strerror or error}") from error
    return where
