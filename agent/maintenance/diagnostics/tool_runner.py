"""Runs a tool in its own process group, under a deadline, and returns its output."""

import asyncio
import logging
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from agent.maintenance.diagnostics.findings import ToolOutput

log = logging.getLogger(__name__)

OUTPUT_BYTES_MAX: Final = 4 * 1_048_576
"""The middle of longer output is dropped."""
CHUNK_BYTES: Final = 65_536
GRACE_SECONDS: Final = 5.0
SECRETS: Final = "NAVARCH_NATS_"
"""Prefix of settings that tools must not see."""


class ToolHung(Exception):  # noqa: N818 - reads as the state it names
    """The tool exceeded its deadline and was stopped."""


async def run_tool(
    command: Sequence[str],
    *,
    seconds_max: float,
    environment: Mapping[str, str],
    directory: Path | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> ToolOutput:
    """Run a tool to its end; raise ToolHung, or OSError where it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=directory,
        env={k: v for k, v in environment.items() if not k.startswith(SECRETS)} | {"LC_ALL": "C"},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(seconds_max):
            text, errors, code = await asyncio.gather(
                _all(process.stdout), _all(process.stderr), process.wait()
            )
    except TimeoutError as error:
        await _stop(process, grace_seconds)
        raise ToolHung(f"not done in {seconds_max:g} s") from error
    except asyncio.CancelledError:
        _signal(process, signal.SIGKILL)
        await process.wait()
        raise
    return ToolOutput(code, text, errors)


async def _all(stream: asyncio.StreamReader) -> str:
    """Read to the end; keep the beginning and the end of long output."""
    front, back = bytearray(), bytearray()
    while chunk := await stream.read(CHUNK_BYTES):
        if len(front) < OUTPUT_BYTES_MAX // 2:
            front += chunk
        else:
            back += chunk
            del back[: -OUTPUT_BYTES_MAX // 2]
    return (front + back).decode("utf-8", "replace")


async def _stop(process: Process, grace_seconds: float) -> None:
    """Terminate the process group, then kill it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Also after the tool has ended: its children may still run.
        _signal(process, number)
        try:
            async with asyncio.timeout(grace_seconds):
                await process.wait()
        except TimeoutError:
            log.warning("process %s does not end on signal %s", process.pid, int(number))


def _signal(process: Process, number: signal.Signals) -> None:
    """Signal the tool and everything that it started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        log.debug("process group %s is gone", process.pid)
