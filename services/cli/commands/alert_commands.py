"""`navarch alerts list|acknowledge|silence|assign|note|test`: open alerts, and the channels."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from msgspec.structs import replace

from schemas.alert_records import (
    SILENCE_SECONDS_MAX,
    Alert,
    AlertAcknowledge,
    AlertUpdate,
    OpenAlertRecord,
)
from schemas.duration import parse_duration
from schemas.operations import ACKNOWLEDGE_ALERT, UPDATE_ALERT
from services.cli import console
from services.cli.command_options import Config, ListOutput, command_group
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_discovery import settings_of
from services.cli.fleet_names import AN_ALERT
from services.cli.live_names import complete_alert
from services.operator_text.quantities import age_since, local_time
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError
from services.primitives.redaction import redacted

if TYPE_CHECKING:
    from services.notifier.alerts.alert_sender import RoutedChannel

SEND_SECONDS_MAX: Final = 30.0

commands = command_group("The open alerts, and the channels that they are sent to.")
HEADERS = ("severity", "age", "since", "key", "acknowledged", "handled", "sent to", "title")
AlertKey = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="The alert's key, or the beginning of one key.",
        show_default=False,
        autocompletion=complete_alert,
    ),
    AN_ALERT,
]


@commands.command("list")
@everyday_command
async def list_alerts(fleet: FleetAccess, output: ListOutput = console.LISTING) -> None:
    """List the open alerts, the most severe first.

    With who has acknowledged each, and who was sent it. It reads the records, so it works while the
    notifier is down.
    """
    lasting = await fleet.alerts()
    if output.is_data:
        console.write_data(output, msgspec.json.encode(lasting))
        return
    now = datetime.now(UTC)
    rows = [_row(each, now) for each in lasting]
    console.write_table(HEADERS, rows, "No alert is open.", output)


async def _acknowledge(
    fleet: FleetAccess,
    key: AlertKey,
    reason: Annotated[str, typer.Option("--reason", help="Shown in every channel.")] = "",
) -> None:
    """Take on an open alert.

    Channels that have it get that as news, PagerDuty and Opsgenie stop escalating, and it is not
    repeated unless its severity changes.
    """
    alert = await fleet.perform(ACKNOWLEDGE_ALERT, AlertAcknowledge(key=key, reason=reason))
    console.write(f"{alert.key}: acknowledged by {alert.acknowledged_by}")


acknowledge = commands.command("acknowledge")(everyday_command(_acknowledge))
commands.command("ack", help="The short form of acknowledge.")(everyday_command(_acknowledge))


@commands.command("silence")
@everyday_command
async def silence(
    fleet: FleetAccess,
    key: AlertKey,
    for_: Annotated[
        str, typer.Option("--for", help="How long: 30m, 2h, at most 168h.", show_default=False)
    ],
    reason: Annotated[str, typer.Option("--reason", help="Shown in every channel.")] = "",
) -> None:
    """Send no news of an open alert for some time.

    If it lasts, channels are sent it again then; its end is sent at once. The alert about a stop,
    or about a store that is lost, cannot be silenced.
    """
    try:
        seconds = int(parse_duration(for_))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from error
    if not 0 < seconds <= SILENCE_SECONDS_MAX:
        raise typer.BadParameter("a silence lasts 1s to 168h", param_hint="--for")
    update = AlertUpdate(key=key, silence_seconds=seconds, note=reason)
    alert = await fleet.perform(UPDATE_ALERT, update)
    assert alert.silenced_until is not None
    console.write(f"{alert.key}: silent until {local_time(alert.silenced_until)}")


@commands.command("assign")
@everyday_command
async def assign(
    fleet: FleetAccess,
    key: AlertKey,
    to: Annotated[str, typer.Option("--to", help="Who looks after it.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Shown in every channel.")] = "",
) -> None:
    """Say who looks after an open alert."""
    if not to.strip():
        raise typer.BadParameter("name a person or a team", param_hint="--to")
    alert = await fleet.perform(UPDATE_ALERT, AlertUpdate(key=key, assign_to=to, note=reason))
    console.write(f"{alert.key}: assigned to {alert.assigned_to}")


@commands.command("note")
@everyday_command
async def note(
    fleet: FleetAccess,
    key: AlertKey,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="Shown in every channel.", show_default=False),
    ],
) -> None:
    """Add a note to an open alert."""
    if not text.strip():
        raise typer.BadParameter("the note is empty", param_hint="TEXT")
    alert = await fleet.perform(UPDATE_ALERT, AlertUpdate(key=key, note=text))
    console.write(f"{alert.key}: noted")


def _row(record: OpenAlertRecord, now: datetime) -> tuple[str, ...]:
    alert = record.opened
    assert alert is not None
    sent = ", ".join(name for name, each in sorted(record.channels.items()) if each.event)
    return (
        *(alert.severity, age_since(alert.began, now), local_time(alert.began)),
        *(alert.key, alert.acknowledged_by or "-", _handled(alert, now), sent or "-", alert.title),
    )


def _handled(alert: Alert, now: datetime) -> str:
    """Return who looks after it, and until when it is silent."""
    silent = alert.silenced_until if alert.is_silent(now) else None
    words = [f"to {alert.assigned_to}"] if alert.assigned_to else []
    words += [f"silent until {local_time(silent)}"] if silent is not None else []
    return ", ".join(words) or "-"


@commands.command("test")
def try_channels(
    channel: Annotated[
        str, typer.Argument(help="Its name; default: every channel.", show_default=False)
    ] = "",
    config: Config = None,
) -> None:
    """Send a test alert and its end, and print the answers.

    Run it where the notifier runs: it reads the same configuration and environment.
    """
    from services.notifier.service import load_channels  # noqa: PLC0415 - loads the service

    channels = load_channels(settings_of(config), config, SystemClock())
    chosen = [each for each in channels if channel in ("", each.route.name)]
    if not chosen:
        known = ", ".join(each.route.name for each in channels) or "none"
        raise NavarchError(f"no alert channel {channel!r} in the configuration (known: {known})")
    asyncio.run(_try_all(chosen))


async def _try_all(channels: list["RoutedChannel"]) -> None:
    failed = []
    for each in channels:
        name = each.route.name
        try:
            for answer in await _try(each):
                console.write(f"{name}: {answer}")
        except Exception as error:  # noqa: BLE001 - a channel may be a third party's code
            failed.append(name)
            console.write(f"{name}: FAILED: {redacted(str(error)) or type(error).__name__}")
        finally:
            await each.channel.close()
    if failed:
        raise NavarchError(f"not delivered by {', '.join(failed)}: check the entry under `alerts`")


async def _try(routed: "RoutedChannel") -> list[str]:
    begin = _alert(routed.route.name, datetime.now(UTC))
    end = replace(begin, event=f"{begin.event}-end", since=begin.time, resolved=True)
    end = replace(end, title="Navarch: the test is over")
    answers, receipt = [], ""
    for said, alert in (("alert", begin), ("its end", end)):
        async with asyncio.timeout(SEND_SECONDS_MAX):
            sent = await routed.channel.send(alert, receipt)
        receipt = sent.receipt or receipt
        answers.append(f"{said} sent: {sent.answer or 'done'}")
    return answers


def _alert(name: str, now: datetime) -> Alert:
    return Alert(
        severity="warning",
        title="Navarch: a test of this alert channel",
        text=f"Sent by `navarch alerts test {name}`. Nothing is wrong, and nothing is to be done.",
        kind="test",
        key=f"test/{name}",
        event=f"test-{name}-{now.isoformat()}",
        time=now,
    )
