"""Options that many commands take, and how a moment is read from the command line."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from services.cli.console import Format
from services.primitives.errors import NavarchError

if TYPE_CHECKING:
    from schemas.operator_requests import DrainRequest

NatsUrl = Annotated[
    str,
    typer.Option(
        "--nats-url",
        envvar="NAVARCH_NATS_URL",
        help="The bus; default: that of the `navarch serve` of this data directory.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="NAVARCH_CONFIG", help="Configuration file."),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="deadline|wait|immediate",
        help="How its work is waited for; default: as the pool says.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen, and touch nothing.")
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="10m", help="How long; default: as the pool says.")
]
Output = Annotated[Format, typer.Option("--output", "-o", help="How to print the answer.")]


def moment(since: str) -> datetime | None:
    """Read `--since`: a span back from now, or a moment; None where nothing is written."""
    from schemas.duration import parse_duration  # noqa: PLC0415

    if not since:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(since))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(since)
    except ValueError:
        raise typer.BadParameter(
            f"{since!r} is neither a span (10m, 2h) nor a moment (2026-11-21T01:35:00Z)"
        ) from None
    return found if found.tzinfo else found.astimezone()


def drain_request(node: str, reason: str, mode: str, timeout: str) -> "DrainRequest":
    """Read what the options say, as the pool-manager will."""
    from schemas.duration import decode_hook  # noqa: PLC0415
    from schemas.operator_requests import DrainRequest  # noqa: PLC0415

    said = {"node": node, "reason": reason, "mode": mode, "timeout": timeout or None}
    try:
        return msgspec.convert(said, DrainRequest, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise NavarchError(f"--mode or --timeout: {error}") from error
