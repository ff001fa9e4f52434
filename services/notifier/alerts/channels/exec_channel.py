"""A command of the owner: the alert as JSON on standard input, no shell, a time limit."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress
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

OUTPUT_BYTES_MAX: Final = 4_096
ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "TZ")
"""All that the command gets of the notifier's environment, which holds secrets."""


class ExecAlertChannel:
    """The alert channel plugin."""

    class Options(Setting, frozen=True, kw_only=True):
        """`{type: exec, command: [/usr/local/bin/page, --team, gpu]}`."""

        command: tuple[str, ...]
        environment: tuple[str, ...] = ()
        """More variables that the command gets."""
        timeout: Duration = Duration(10)

        def __post_init__(self) -> None:
            """Refuse what cannot be run."""
            if not self.command or not shutil.which(self.command[0]):
                named = self.command[0] if self.command else ""
                raise ValueError(
                    f"`command` {named!r} is not a program that can be run; write its full path"
                )

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Run one command for each alert."""
        del clock
        self._options = options

    @property
    def name(self) -> str:
        """The kind of channel, in logs."""
        return "exec"

    @property
    def repeat_seconds(self) -> float:
        """The command keeps what it needs."""
        return 0.0

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Run the command; anything but exit 0 is a failure."""
        del receipt
        names = (*ENVIRONMENT, *self._options.environment)
        process = await asyncio.create_subprocess_exec(
            *self._options.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={each: os.environ[each] for each in names if each in os.environ},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._options.timeout):
                body = msgspec.json.encode(alert_document(alert))
                output, _ = await asyncio.gather(_read(process), _write(process, body))
                code = await process.wait()
        except TimeoutError as error:
            limit = f"{self._options.timeout:g} s"
            raise RuntimeError(f"{self._options.command[0]} took longer than {limit}") from error
        finally:
            # Its children too: they are in the session that it leads.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:
                await process.wait()
        said = escape_line(redacted(" ".join(output.decode("utf-8", "replace").split())))
        if code:
            raise RuntimeError(f"{self._options.command[0]} ended with {code}: {said}")
        return AlertDelivery(answer=f"exit 0: {said}")

    async def close(self) -> None:
        """Nothing is held."""


async def _write(process: asyncio.subprocess.Process, body: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process) -> bytes:
    """The beginning of the output; the rest is read and dropped, so that the command can end."""
    assert process.stdout is not None
    found = b""
    while chunk := await process.stdout.read(OUTPUT_BYTES_MAX):
        found = (found + chunk)[:OUTPUT_BYTES_MAX]
    return found
