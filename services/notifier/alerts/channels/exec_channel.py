"""Runs a command of the owner: the alert as JSON on standard input, no shell, a time limit."""

import shutil
from typing import Final

import msgspec

from schemas.alert_records import Alert
from schemas.duration import Duration
from schemas.settings import Setting
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.alerts.channels.alert_document import alert_document
from services.operator_text.safe_text import escape_line
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.owner_command import run_command

OUTPUT_BYTES_MAX: Final = 4_096


class ExecAlertChannel:
    """Sends alerts to a command of the owner."""

    name = "exec"
    repeat_seconds = 0.0
    """The command keeps what it needs."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel: `{type: exec, command: [/usr/local/bin/page, --team, gpu]}`."""

        command: tuple[str, ...]
        """The program and its arguments; run once for each alert."""
        environment: tuple[str, ...] = ()
        """More variables that the command gets."""
        timeout: Duration = Duration(10)
        """Time limit of one run."""

        def __post_init__(self) -> None:
            """Refuse what cannot be run."""
            if not self.command or not shutil.which(self.command[0]):
                named = self.command[0] if self.command else ""
                raise ValueError(
                    f"`command` {named!r} is not a program that can be run; write its full path"
                )

    def __init__(self, *, options: Options, clock: Clock) -> None:
        del clock
        self._options = options

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Run the command; anything but exit 0 is a failure."""
        del receipt
        body = msgspec.json.encode(alert_document(alert))
        ended = await run_command(
            self._options.command,
            body,
            environment=self._options.environment,
            seconds_max=self._options.timeout,
            output_bytes_max=OUTPUT_BYTES_MAX,
        )
        output = ended.errors if ended.code and ended.errors else ended.output
        said = escape_line(redacted(" ".join(output.decode("utf-8", "replace").split())))
        if ended.code:
            raise RuntimeError(f"{self._options.command[0]} ended with {ended.code}: {said}")
        return AlertDelivery(answer=f"exit 0: {said}")

    async def close(self) -> None:
        """Nothing is held."""
