"""Runs Slurm's commands: no shell, a clean environment, limits on time, number and output."""

import asyncio
import os
import secrets
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.runtime.owner_command import close_killed
from services.saga.participant import StepFailure
from services.workload_systems.slurm_client import (
    DENIED,
    NodeChange,
    SlurmRefusedError,
    SlurmUnavailableError,
)
from services.workload_systems.slurm_output import (
    JOB_STATES,
    PendingJob,
    SlurmJob,
    SlurmNode,
    admin_comment_format,
    comment_format,
    job_format,
    node_format,
    queue_format,
    read_admin_comments,
    read_comments,
    read_jobs,
    read_nodes,
    read_queue,
)

COMMANDS_MAX: Final = 8
"""At once: a wave of cordons must not start a process for each of its nodes."""
OUTPUT_BYTES_MAX: Final = 64 * 1024 * 1024
MESSAGE_CHARS_MAX: Final = 500


class SlurmCommands:
    """Runs `sinfo`, `squeue`, `scontrol` and `scancel` of one cluster."""

    def __init__(
        self,
        *,
        folder: str,
        conf: str,
        seconds_max: float,
        new_mark: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`folder`: of the commands, empty: as PATH says; `conf`: slurm.conf, empty: Slurm's."""
        self._folder = folder
        self._seconds_max = seconds_max
        self._new_mark = new_mark
        self._environment = _environment(conf)
        self._running = asyncio.Semaphore(COMMANDS_MAX)

    async def nodes(self, partition: str = "") -> Mapping[str, SlurmNode]:
        """Return every node, by name; or those of a partition."""
        mark = self._new_mark()
        which = ("-p", partition) if partition else ("-a",)  # sinfo refuses both
        return read_nodes(await self.run("sinfo", "-hN", *which, "-O", node_format(mark)), mark)

    async def jobs(self, states: str = JOB_STATES) -> tuple[SlurmJob, ...]:
        """Every job in one of these states; by default those in which a job has nodes."""
        mark = self._new_mark()
        output = await self.run("squeue", "-ah", "-t", states, "-o", job_format(mark))
        return read_jobs(output, mark)

    async def queue(self, partition: str) -> tuple[PendingJob, ...]:
        """Every job of a partition that waits, each task of an array by itself."""
        mark = self._new_mark()
        arguments = ("-ahr", "-p", partition, "-t", "PENDING", "-o", queue_format(mark))
        return read_queue(await self.run("squeue", *arguments), mark)

    async def check_partition(self, partition: str) -> None:
        """SlurmRefusedError if there is none: lists of an unknown partition are empty."""
        await self.run("scontrol", "show", "partition", partition)

    async def ping(self) -> str:
        """Return what `scontrol ping` prints: which controllers answer."""
        return " ".join((await self.run("scontrol", "ping")).split())

    async def change_node(self, name: str, change: NodeChange) -> None:
        """Change a node by `scontrol update`."""
        changes = {
            "State": change.state,
            "Reason": change.reason,
            "NodeAddr": change.address,
            "NodeHostname": change.hostname,
        }
        arguments = [f"{key}={value}" for key, value in changes.items() if value]
        await self.run("scontrol", "update", f"NodeName={name}", *arguments)

    async def delete_node(self, name: str) -> None:
        """Remove a node that had registered itself."""
        await self.run("scontrol", "delete", f"NodeName={name}")

    async def requeues(self) -> bool:
        """Return that jobs can be requeued, by `scontrol requeue`."""
        return True

    async def requeue(self, number: str) -> None:
        """Have a job begin again elsewhere."""
        await self.run("scontrol", "requeue", number)

    async def cancel(self, number: str) -> None:
        """End a job."""
        await self.run("scancel", number)

    async def signal(self, number: str, signal_: str) -> None:
        """Send a signal to a job's batch script."""
        await self.run("scancel", f"--signal={signal_}", "--batch", number)

    async def sends_messages(self) -> bool:
        """Return that a job can be sent a message, by `scontrol notify`."""
        return True

    async def send_message(self, number: str, text: str) -> None:
        """Write a line into a job's output."""
        await self.run("scontrol", "notify", number, text)

    async def set_admin_comment(self, number: str, text: str) -> None:
        """Write the comment beside the user's own."""
        await self.run("scontrol", "update", f"JobId={number}", f"AdminComment={text}")

    async def admin_comments(self, node: str) -> Mapping[str, str]:
        """Return the administrators' comments of the jobs on a node, by the jobs' numbers."""
        mark = self._new_mark()
        arguments = ("-ah", "-t", JOB_STATES, "-w", node, "-O", admin_comment_format(mark))
        return read_admin_comments(await self.run("squeue", *arguments), mark)

    async def close(self) -> None:
        """Nothing is held."""

    async def comments(self, node: str) -> Mapping[str, frozenset[str]]:
        """The words of the comments of the jobs that run on a node, by the jobs' numbers."""
        mark = self._new_mark()
        arguments = ("-ah", "-t", "RUNNING", "-w", node, "-o", comment_format(mark))
        return read_comments(await self.run("squeue", *arguments), mark)

    async def run(self, program: str, *arguments: str) -> str:
        """The output of a command that succeeded."""
        async with self._running:
            process = await self._start(program, arguments)
            try:
                async with asyncio.timeout(self._seconds_max):
                    output, errors = await _read(process)
                    await process.wait()
            except TimeoutError as error:
                raise SlurmUnavailableError(
                    f"{program} did not end within {self._seconds_max:g} s; slurmctld may be busy "
                    "or unreachable: try `scontrol ping`"
                ) from error
            finally:
                await _end(process)
        if process.returncode == 0:
            return output.decode(errors="replace")
        raise _failure(program, (errors or output).decode(errors="replace"))

    async def _start(self, program: str, arguments: tuple[str, ...]) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                str(Path(self._folder) / program) if self._folder else program,
                *arguments,
                env=self._environment,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise StepFailure(
                f"{program} cannot be run here: {error.strerror}",
                "INVALID",
                "install Slurm's commands on this host (apt-get install slurm-client), "
                "or set `commands` to the folder that has them",
            ) from error


def _environment(conf: str) -> Mapping[str, str]:
    """Only what the commands need: variables such as SQUEUE_FORMAT change what they print."""
    kept = ("PATH", "HOME", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_JWT")
    found = {each: os.environ[each] for each in kept if each in os.environ}
    return found | {"TZ": "UTC", "LC_ALL": "C"} | ({"SLURM_CONF": conf} if conf else {})


async def _read(process: Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    reads = [asyncio.create_task(_bounded(each)) for each in (process.stdout, process.stderr)]
    try:
        output, errors = await asyncio.gather(*reads)
        return output, errors
    finally:
        for each in reads:
            each.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := await stream.read(65_536):
        size += len(chunk)
        if size > OUTPUT_BYTES_MAX:
            raise StepFailure(f"Slurm printed more than {OUTPUT_BYTES_MAX} bytes", "INVALID")
        chunks.append(chunk)
    return b"".join(chunks)


async def _end(process: Process) -> None:
    """Kill a command that still runs, with whatever it started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(close_killed(process))


def _failure(program: str, text: str) -> Exception:
    message = " ".join(text.split())[:MESSAGE_CHARS_MAX] or "it failed without a message"
    if any(each in text for each in DENIED):
        return StepFailure(
            f"{program}: {message}",
            "INVALID",
            "run Navarch as SlurmUser, or make its user an operator of Slurm: "
            "sacctmgr modify user name=USER set adminlevel=operator",
        )
    if "Unable to contact" in text or "onfiguration source" in text or "ocket timed out" in text:
        return SlurmUnavailableError(f"{program}: {message}")
    return SlurmRefusedError(f"{program}: {message}")
