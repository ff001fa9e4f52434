"""`navarch alerts list|acknowledge|test`: the open alerts, and the channels."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from msgspec.structs import replace

from schemas.alert_records import Alert, AlertAcknowledge, OpenAlertRecord
from schemas.operations import ACKNOWLEDGE_ALERT
from services.cli import console
from services.cli.command_options import Config, ListOutput, command_group
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_discovery import settings_of
from services.cli.fleet_names import AN_ALERT
from services.cli.live_names import complete_alert
from services.operator_text.quantities import age, local_time
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError
from services.primitives.redaction import redacted

if TYPE_CHECKING:
    from services.notifier.alerts.alert_sender import RoutedChannel

SEND_SECONDS_MAX: Final = 30.0

commands = command_group("The open alerts, and the channels that they are sent to.")
HEADERS = ("severity", "age", "since", "key", "acknowledged", "sent to", "title")
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


@commands.command("acknowledge")
@everyday_command
async def acknowledge(
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


def _row(record: OpenAlertRecord, now: datetime) -> tuple[str, ...]:
    alert = record.opened
    assert alert is not None
    sent = ", ".join(name for name, each in sorted(record.channels.items()) if each.event)
    return (
        *(alert.severity, age((now - alert.began).total_seconds()), local_time(alert.began)),
        *(alert.key, alert.acknowledged_by or "-", sent or "-", alert.title),
    )


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
