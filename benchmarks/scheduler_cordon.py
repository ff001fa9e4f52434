"""Time from a verdict to the cordon at the scheduler itself, and of 200 simultaneous drains.

The scheduler is a real slurmctld where Slurm is installed and this is root, else a command (`exec`)
that does nothing. The floor is the scheduler's own command alone, run by this process once for each
cordon: the rest is Navarch's, and one `sinfo`. nats-server and the
services are real processes; nodes are instances of the `fake` provider with scripted agents. Slurm
knows their names, and they have no slurmd: they are empty, so a drain ends when Slurm says so.
Faults are published one after another, then 200 at once.
"""

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison import beside_floor, medians
from benchmarks.fault_wave import BUDGET, DEVIATIONS, HEALTH, publish_fault, wave
from benchmarks.machine import percentile
from benchmarks.scripted_fleet import POOL, ScriptedFleet, running_fleet
from schemas import subjects
from schemas.topology import EVENTS, SAGAS
from tests.real.slurm_site import SlurmSite, missing, munge

__all__ = ["DEVIATIONS", "measure"]

ONE_BY_ONE: Final = 40
AT_ONCE: Final = 200
COMMANDS_AT_ONCE: Final = 8
"""As many as the notifier runs at once."""
WAIT_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.05
SETTLE_SECONDS: Final = 2.0
COMMAND: Final = """#!/bin/sh
read -r order
case "$order" in
  *'"order":"status"'*)
    printf '{"nodes":{'
    printf '%s' "$order" | grep -o '"node":"[^"]*"' |
      sed 's/^"node":\\(.*\\)/\\1:{"drained":true}/' | paste -sd,
    printf '}}' ;;
esac
"""
"""A workload system that accepts every order, and where no work runs."""

Cordon = Callable[[str], Sequence[str]]
"""The scheduler's own command that cordons a node."""


async def measure() -> dict[str, Any]:
    """Measure at the scheduler that is here."""
    with tempfile.TemporaryDirectory(prefix="navarch-slurm-") as place:
        folder = Path(place)
        slurm = not missing()
        command = folder / "scheduler"
        command.write_text(COMMAND)
        command.chmod(0o755)
        notifier: dict[str, Any] = (
            {"type": "slurm", "conf": str(folder / "slurm.conf"), "node_name": "{node}"}
            if slurm
            else {"type": "exec", "command": [str(command)]}
        )
        size = ONE_BY_ONE + AT_ONCE
        pool = {"min_nodes": size, "max_nodes": size, "health": HEALTH, "budget": BUDGET}
        fleet = running_fleet(folder, pool, budget=BUDGET, notifier=notifier)
        async with fleet as running:
            await running.wait_for_nodes(size)
            names = sorted(await running.active_nodes())
            async with _scheduler(folder, names, slurm=slurm) as cordon:
                figures = await _measured(running, names, cordon)
    return {"scheduler": "slurm" if slurm else "exec", **figures}


@asynccontextmanager
async def _scheduler(folder: Path, names: Sequence[str], *, slurm: bool) -> AsyncIterator[Cordon]:
    """A slurmctld that knows these nodes; without Slurm, the command that does nothing."""
    if not slurm:
        order = '{"version":1,"order":"cordon","nodes":[]}'
        yield lambda _: ("/bin/sh", "-c", f"echo '{order}' | {folder}/scheduler")
        return
    async with AsyncExitStack() as stack:
        stack.enter_context(munge(folder / "munge"))
        site = SlurmSite(folder, tuple(names), "", 0)
        conf = site.conf.read_text()
        site.conf.write_text(conf.replace("MaxNodeCount=16", "MaxNodeCount=2000"))
        await site.start_controller()
        stack.push_async_callback(site.end)
        await asyncio.sleep(SETTLE_SECONDS)
        scontrol = shutil.which("scontrol") or "scontrol"
        yield lambda name: (
            *("env", f"SLURM_CONF={site.conf}", scontrol, "update"),
            *(f"NodeName={name}", "State=DRAIN", "Reason=navarch: a benchmark"),
        )


async def _measured(fleet: ScriptedFleet, names: Sequence[str], cordon: Cordon) -> dict[str, Any]:
    took = [await _cordoned(fleet, each) for each in names[:ONE_BY_ONE]]
    # Of nodes that are drained already: the same call to slurmctld, which changes nothing.
    alone = [_run(cordon(each)) for each in names[:ONE_BY_ONE]]
    await fleet.wait_for_nodes(len(names))
    at_once = await wave(fleet, AT_ONCE)
    begun = time.monotonic()
    limit = asyncio.Semaphore(COMMANDS_AT_ONCE)

    async def once(name: str) -> None:
        async with limit:
            await asyncio.to_thread(_run, cordon(name))

    await asyncio.gather(*(once(each) for each in names[-AT_ONCE:]))
    floor = {"last_cordon_seconds": time.monotonic() - begun}
    drains = medians([(at_once, floor)])
    found = {f"drains_{AT_ONCE}_{name}": value for name, value in drains.items()}
    for percent in (50, 99):
        cordon_ms, command_ms = _percentile(took, percent), _percentile(alone, percent)
        found |= beside_floor(f"scheduler_cordon_ms_p{percent}", cordon_ms, command_ms)
    return found


async def _cordoned(fleet: ScriptedFleet, node: str) -> float:
    """Break one node; seconds from its stored verdict to the stored success of its cordon."""
    bus = fleet.bus
    record = (await fleet.active_nodes())[node]
    before = await bus.last_sequence(SAGAS.name)
    await publish_fault(bus, record)
    succeeded = subjects.saga_step_wildcard("cordon", "succeeded")
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not (stored := await bus.read(SAGAS.name, succeeded, after=before)):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    verdict = await bus.last(EVENTS.name, subjects.node_event(POOL, node, "verdict"))
    assert verdict is not None
    return (stored[0].time - verdict.time).total_seconds()


def _run(command: Sequence[str]) -> float:
    """Run a command; the seconds that it took."""
    begun = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begun


def _percentile(seconds: list[float], percent: float) -> float:
    return round(1000 * percentile(seconds, percent), 1)
