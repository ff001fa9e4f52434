"""`navarch alerts`: tries the alert channels of a configuration."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from msgspec.structs import replace

from schemas.alert_records import Alert
from services.cli import console
from services.cli.command_options import Config
from services.cli.fleet_discovery import settings_of
from services.notifier.alerts.alert_sender import RoutedChannel
from services.notifier.service import load_channels
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError
from services.primitives.redaction import redacted

SEND_SECONDS_MAX: Final = 30.0

commands = typer.Typer(name="alerts", help="Try the alert channels.", no_args_is_help=True)


@commands.callback()
def alerts() -> None:
    """Try the alert channels."""


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
    channels = load_channels(settings_of(config), config, SystemClock())
    chosen = [each for each in channels if channel in ("", each.route.name)]
    if not chosen:
        known = ", ".join(each.route.name for each in channels) or "none"
        raise NavarchError(f"no alert channel {channel!r} in the configuration (known: {known})")
    asyncio.run(_try_all(chosen))


async def _try_all(channels: list[RoutedChannel]) -> None:
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


async def _try(routed: RoutedChannel) -> list[str]:
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
