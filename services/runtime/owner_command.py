"""Runs a command of the owner: JSON on standard input, no shell, limits on time and output."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "TZ")
"""All that a command gets of the notifier's environment, which holds secrets."""
CLOSE_SECONDS_MAX: Final = 1.0
"""A process that left the command's session may keep its output open for ever."""


class CommandTimeoutError(Exception):
    """The command did not end in time; it was killed, with what it had started."""


class CommandResult(NamedTuple):
    """A command that ended."""

    code: int
    """Its exit code; negative: the signal that ended it."""
    output: bytes
    errors: bytes
    cut: bool
    """Whether it printed more than was kept."""


async def run_command(
    command: Sequence[str],
    body: bytes,
    *,
    environment: Sequence[str],
    seconds_max: float,
    output_bytes_max: int,
) -> CommandResult:
    """Run it to its end; OSError where it cannot be started.

    `environment`: variables that it gets besides ENVIRONMENT.
    """
    names = (*ENVIRONMENT, *environment)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={each: os.environ[each] for each in names if each in os.environ},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(seconds_max):
            output, errors, _ = await asyncio.gather(
                _read(process.stdout, output_bytes_max),
                _read(process.stderr, output_bytes_max),
                _write(process, body),
            )
            code = await process.wait()
    except TimeoutError as error:
        raise CommandTimeoutError(f"{command[0]} took longer than {seconds_max:g} s") from error
    finally:
        # Its children too: they are in the session that it leads.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode is None:
            await asyncio.shield(close_killed(process))
    return CommandResult(code, output[0], errors[0], output[1] or errors[1])


async def _write(process: Process, body: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader, bytes_max: int) -> tuple[bytes, bool]:
    """The beginning, and whether there was more, which is dropped so that the command can end."""
    chunks: list[bytes] = []
    kept, cut = 0, False
    while chunk := await stream.read(65_536):
        cut = cut or kept + len(chunk) > bytes_max
        chunks.append(chunk[: bytes_max - kept])
        kept += len(chunks[-1])
    return b"".join(chunks), cut


async def close_killed(process: Process) -> None:
    """Read a killed process's pipes to their end, without which asyncio does not see its end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    while await stream.read(65_536):
                        pass
            await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public does
