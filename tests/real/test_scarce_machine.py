"""Replacements on a machine whose disk has become slow, or whose memory has become scarce.

strace delays each fsync of the running nats-server; the kernel limits the address space of running
processes, which have to end when they get no more.
"""

import asyncio
import resource
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.crash.fleet_shape import Moment, Shape
from tests.crash.rig import SERVICES, Rig

pytestmark = pytest.mark.real

DELAY_MS = 300
"""Of each fsync: a disk that others keep busy."""
ATTACHED = "attached"
ATTACHED_SECONDS_MAX = 20.0
STRUCK_SECONDS_MAX = 60.0
ENDS_WITHIN_SECONDS = 20.0
MORE_BYTES = 1_048_576
"""What a process may take beyond what it has when its memory becomes scarce."""
PAGE_BYTES = resource.getpagesize()


@asynccontextmanager
async def slow_disk(pid: int) -> AsyncIterator[None]:
    """Delay what a process has written through to the disk."""
    if not shutil.which("strace"):
        pytest.skip("no strace here: apt-get install strace")
    delays = f"inject=fsync,fdatasync:delay_enter={DELAY_MS}ms"
    tracer = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-p", str(pid), "-e", "trace=fsync,fdatasync", "-e", delays),
        stderr=asyncio.subprocess.PIPE,
    )
    assert tracer.stderr is not None
    async with asyncio.timeout(ATTACHED_SECONDS_MAX):
        first = (await tracer.stderr.readline()).decode()
    if ATTACHED not in first:
        pytest.skip(f"strace cannot attach here: {first}")
    reading = asyncio.create_task(tracer.stderr.read())
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        said = (await reading).decode()
        await tracer.wait()
    assert "DELAYED" in said, "nothing was written through"


async def test_replacements_on_a_disk_that_becomes_slow(tmp_path: Path) -> None:
    """Writes take longer than before, and none is taken for lost and done twice."""
    async with Rig(tmp_path / "fleet", Shape(sync=True)) as rig:
        async with slow_disk(rig.server.pid):
            for _ in range(2):
                await rig.break_a_node()
                found, report = await rig.differences()
                assert not found, report
        assert rig.unexpected_ends == []


def limit_memory(pid: int) -> None:
    """Let a process have little more address space than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    most = pages * PAGE_BYTES + MORE_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (most, most))


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_whose_memory_becomes_scarce_in_a_saga(
    tmp_path: Path, service: str
) -> None:
    """The service repeats what it could not do, or the process started in its place does."""
    async with Rig(tmp_path / "fleet", Shape()) as rig:
        victim = rig.replica(service)
        limited = rig.arm(Moment("saga", "started"), lambda: limit_memory(victim.process.pid))
        await rig.break_a_node()
        async with asyncio.timeout(STRUCK_SECONDS_MAX):
            await limited.wait()
        found, report = await rig.differences()
        assert not found, report
        await rig.break_a_node()
        found, report = await rig.differences()
        assert not found, report


async def test_a_server_whose_memory_becomes_scarce_in_a_saga(tmp_path: Path) -> None:
    """nats-server ends when it gets no memory; started again, it has all that it acknowledged."""
    async with Rig(tmp_path / "fleet", Shape(sync=True)) as rig:
        limited = rig.arm(Moment("provision", "started"), lambda: limit_memory(rig.server.pid))
        await rig.break_a_node()
        async with asyncio.timeout(STRUCK_SECONDS_MAX):
            await limited.wait()
        ending = asyncio.create_task(rig.server.wait())
        ended, _ = await asyncio.wait([ending], timeout=ENDS_WITHIN_SECONDS)
        if ended:
            await rig.server.start()
        else:
            ending.cancel()  # it gets by
        found, report = await rig.differences()
        assert not found, report
        assert rig.unexpected_ends == []
