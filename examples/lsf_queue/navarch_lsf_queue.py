"""The metrics source lsf-queue of Navarch: what LSF's `bjobs` prints about a queue.

    pools:
      training:
        autoscaling: {type: queue}
        metrics: {type: lsf-queue, queue: gpu}

A job that is suspended before its start, or that waits for another job, needs no node.
"""

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from navarch.schemas.settings import Setting
from navarch.services.pool_manager.autoscaling.metrics_sources import Load, SourceError

FIELDS: Final = "stat exec_host pend_reason"
OUTPUT_BYTES_MAX: Final = 32 * 2**20
SLOTS: Final = re.compile(r"^[0-9]+\*")
"""`8*gpu1`: eight slots on one host."""
DEPENDENCY: Final = "dependency condition"


class Job(msgspec.Struct, kw_only=True, rename="upper"):
    """A job as `bjobs -json` prints it; a field without a value is an empty text."""

    stat: str
    exec_host: str = ""
    pend_reason: str = ""


class Jobs(msgspec.Struct, kw_only=True, rename="upper"):
    """Holds the output of `bjobs -json`."""

    records: list[Job]


class LsfQueue:
    """Knows how many jobs wait and which hosts are busy."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("bjobs",)
        """The program, and arguments before those of this source."""
        queue: str = ""
        """The queue of LSF; empty: it has the pool's name."""
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=15)] = 10.0

    def __init__(self, *, options: Options) -> None:
        """Start nothing: a service constructs it at its start."""
        self._options = options

    async def load(self, pool: str) -> Load:
        """Return what is known; SourceError while nothing is: then the pool keeps its size."""
        try:
            return _load(msgspec.json.decode(await self._output(pool), type=Jobs).records)
        except msgspec.MsgspecError as error:
            raise SourceError(f"{self._options.command[0]} printed no list: {error}") from error

    async def close(self) -> None:
        """Close nothing: no process outlasts its question."""

    async def _output(self, pool: str) -> bytes:
        command, seconds = self._options.command, self._options.timeout_seconds
        asked = ("-u", "all", "-q", self._options.queue or pool, "-json", "-o", FIELDS)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, *asked, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise SourceError(f"{command[0]} cannot be run here: {error.strerror}") from error
        try:
            async with asyncio.timeout(seconds):
                output = await _read(process)
                status = await process.wait()
        except TimeoutError as error:
            raise SourceError(f"{command[0]} did not end within {seconds:g} s") from error
        finally:
            if process.returncode is None:
                _kill(process)  # also where the caller has cancelled the question
                await process.wait()
        if status != 0:
            raise SourceError(f"{command[0]} ended with status {status}: run it on this host")
        return output


def _kill(process: Process) -> None:
    """End the command with what it has started: a wrapper's child would keep the output open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _read(process: Process) -> bytes:
    """Return the output up to its end, within OUTPUT_BYTES_MAX."""
    assert process.stdout is not None
    try:
        await process.stdout.readexactly(OUTPUT_BYTES_MAX + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise SourceError(f"the list of jobs has more than {OUTPUT_BYTES_MAX >> 20} MiB")


def _load(jobs: list[Job]) -> Load:
    """Count the jobs by what they wait for, and the hosts of those that run."""
    waiting = [each for each in jobs if each.stat == "PEND" and DEPENDENCY not in each.pend_reason]
    started = [each for each in jobs if each.stat in ("RUN", "SSUSP", "USUSP")]
    hosts = {SLOTS.sub("", host) for each in started for host in each.exec_host.split(":") if host}
    held = sum(each.stat in ("PEND", "PSUSP") for each in jobs) - len(waiting)
    return Load(
        pending_jobs=len(waiting),
        queue_depth=len(waiting) + len(started),
        busy_nodes=len(hosts),
        not_for_nodes=held,
    )
