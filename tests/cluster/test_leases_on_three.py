"""Leases fail over: the holder is killed, then the server that leads them as well."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from schemas.topology import LEASES
from services.bus.leases import Lease
from services.primitives.clock import SystemClock
from tests.support.busyness import allowed
from tests.support.cluster import Cluster, connected, leader_of

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).resolve().parents[2]
OVER_SECONDS_MAX = 5.0
LEADER_SECONDS_MAX = 60.0
HOLDER = """
import asyncio, sys
from tests.support.busyness import allowed
from tests.support.cluster import connected
from services.primitives.clock import SystemClock
from services.bus.leases import Lease

async def main():
    async with connected(sys.argv[1]) as bus:
        lease = Lease(bus, SystemClock(), sys.argv[2], "the holder")
        keeping = asyncio.create_task(lease.keep())
        while not lease.held:
            await asyncio.sleep(0.01)
        print("held", flush=True)
        await keeping

asyncio.run(main())
"""


async def holding(url: str, name: str) -> asyncio.subprocess.Process:
    """A process that holds a lease."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, url, name), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    assert b"held\n" == await process.stdout.readline()
    return process


async def held(lease: Lease) -> float:
    """Return when the lease was ours, by the monotonic clock."""
    while not lease.held:
        await asyncio.sleep(0.01)  # a lease has no events
    return time.monotonic()


async def test_a_lease_goes_over_within_five_seconds_of_its_holders_death(
    cluster: Cluster,
) -> None:
    """`kill -9`: its time runs out at the server, and a contender gets it."""
    holder = await holding(cluster.url, "lease-1")
    async with connected(cluster.url) as bus:
        lease = Lease(bus, SystemClock(), "lease-1", "the successor")
        keeping = asyncio.create_task(lease.keep())
        holder.kill()
        await holder.wait()
        died = time.monotonic()
        async with asyncio.timeout(LEADER_SECONDS_MAX):
            over = await held(lease) - died
        keeping.cancel()
        await asyncio.wait([keeping])
    assert over <= allowed(OVER_SECONDS_MAX)


async def test_a_lease_goes_over_within_five_seconds_of_a_new_leader(cluster: Cluster) -> None:
    """Holder and leading server killed at once: the rest is counted from the election."""
    holder = await holding(cluster.url, "lease-2")
    async with connected(cluster.url) as bus:
        lease = Lease(bus, SystemClock(), "lease-2", "the successor")
        keeping = asyncio.create_task(lease.keep())
        leader = await cluster.leader(bus, f"KV_{LEASES.name}")
        holder.kill()
        os.kill(leader.pid, signal.SIGKILL)
        await asyncio.gather(holder.wait(), leader.wait())
        async with asyncio.timeout(LEADER_SECONDS_MAX):
            watching = asyncio.create_task(held(lease))
            await leader_of(bus, f"KV_{LEASES.name}", besides=leader)
            elected = time.monotonic()
            over = await watching - elected
        await leader.start()
        keeping.cancel()
        await asyncio.wait([keeping])
    assert over <= allowed(OVER_SECONDS_MAX)
