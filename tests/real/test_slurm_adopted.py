"""docs/existing-slurm.md on a real Slurm of four nodes: from observing it to a drain and back.

One slurmctld and a slurmd for each node, on one machine; two agents, on simulated GPUs.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from services.primitives.free_ports import free_ports
from services.provisioner.providers.local_gpus import kmsg_record, simulated_gpus
from tests.cli.test_first_fleet import GPUS, FirstFleet
from tests.cli.test_serve import READY, serving
from tests.real.slurm_site import SlurmSite, missing, slurm_site
from tests.support.documented_commands import ROOT
from tests.support.inprocess import eventually, navarch

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
NODES: Final = ("gpu1", "gpu2", "gpu3", "gpu4")
PAGE: Final = ROOT / "docs" / "existing-slurm.md"
TICKET, CHECKED = "ticket 12", "NHC: /scratch is full"
STEP_SECONDS_MAX: Final = 90.0


@pytest.fixture(autouse=True)
def slurm_here() -> None:
    """Skip without Slurm; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


def site_scripts(folder: Path) -> str:
    """Write the site's own prolog and health check; return their lines of slurm.conf."""
    scripts = {
        "prolog": f"echo $SLURMD_NODENAME >> {folder}/prologs",
        "nhc": f"[ -e {folder}/full-$SLURMD_NODENAME ] || exit 0\n"
        f"export SLURM_CONF={folder}/slurm.conf PATH=/usr/sbin:/usr/bin:/bin\n"
        f'exec scontrol update NodeName=$SLURMD_NODENAME State=DRAIN Reason="{CHECKED}"',
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return (
        f"Prolog={folder}/prolog\nPrologFlags=Alloc\n"
        f"HealthCheckProgram={folder}/nhc\nHealthCheckInterval=10"
    )


def configuration(conf: Path, data: Path, port: int) -> str:
    """Return the page's configuration, with this site's addresses and paths."""
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    settings = yaml.safe_load(text)
    settings["data_dir"] = str(data)
    settings["agent"]["bus_url"] = f"tls://127.0.0.1:{port}"
    settings["providers"]["cluster"]["conf"] = str(conf)
    settings["notifier"]["slurm"] = {"conf": str(conf), "poll": "500ms"}
    return yaml.safe_dump(settings)


class Cluster(FirstFleet):
    """Serves a fleet of a Slurm partition, beside the machines of its nodes."""

    def __init__(self, place: Path, site: SlurmSite) -> None:
        super().__init__(place)
        self.site = site
        self.process: asyncio.subprocess.Process | None = None

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Run the services."""
        (port,) = free_ports(1)
        self.config.write_text(configuration(self.site.conf, self.place / "data", port))
        async with serving(self.place, self.config) as services:
            self.process = services.process
            await services.says(READY)
            drained = asyncio.create_task(services.rest())
            try:
                yield
            finally:
                drained.cancel()
                await asyncio.wait([drained])

    def act(self) -> None:
        """Change the pool's mode, and have the services read the file again."""
        assert self.process is not None
        text = self.config.read_text()
        assert "mode: observe" in text
        self.config.write_text(text.replace("mode: observe", "mode: act"))
        self.process.send_signal(signal.SIGHUP)

    def machine_of(self, node: str) -> FirstFleet:
        """Return the machine of a node, which has places of its own."""
        (self.place / node).mkdir()
        machine = FirstFleet(self.place / node, node)
        machine.config = self.config
        return machine

    async def refused(self, *arguments: str) -> str:
        """Return what a command says that must not succeed."""
        status, out, err = await navarch(*arguments, "--config", str(self.config))
        assert status, (arguments, out)
        return out + err

    async def shows(self, words: str, *arguments: str) -> str:
        """Wait until a command says this, and return all of it."""

        async def shown() -> str:
            said = await self.says(*arguments)
            return said if words in said else ""

        found: str = await eventually(shown, within_seconds=STEP_SECONDS_MAX, every=0.5)
        return found

    async def until_flag(self, node: str, flag: str, *, present: bool = True) -> None:
        """Wait until a node has a state in Slurm, or has it no more."""

        async def reached() -> bool:
            return (flag in self.site.flags(node)) == present

        await eventually(reached, within_seconds=STEP_SECONDS_MAX, every=0.2)


@pytest.fixture
async def cluster(public_folder: Path, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Four nodes with the site's scripts, of which an administrator has drained one."""
    extra = site_scripts(public_folder)
    async with slurm_site(NODES, folder=public_folder, extra=extra) as site:
        site.run("scontrol", "update", "nodename=gpu3", "state=drain", f"reason={TICKET}")
        fleet = Cluster(tmp_path, site)
        async with fleet.served():
            yield fleet


async def test_from_observing_a_partition_to_a_drain_and_back(cluster: Cluster) -> None:
    """A fault is explained, its drain proposed, made and undone; the drains of others stay."""
    site = cluster.site
    await _are_shown_without_agents(cluster)
    async with AsyncExitStack() as agents:
        machines = {}
        for node in ("gpu1", "gpu2"):
            machines[node] = machine = cluster.machine_of(node)
            line = await cluster.says("join", "--print", node)
            assert f"joined as {node} of pool gpu" in await machine.run_line(line)
            await agents.enter_async_context(machine.agent())
        for node in machines:
            await eventually(lambda node=node: _is(cluster, node, "healthy"))
        assert (await cluster.says("list")).count("its agent has not joined") == 2
        said = await cluster.says("why", "gpu1")
        assert "It was adopted, and its agent runs: Navarch can cordon and drain it" in said
        assert "already" in await cluster.refused("join", "--print", "gpu1")

        # What others drain is shown with their reason, and is theirs.
        (site.folder / "full-gpu4").touch()
        assert "drained by root" in await cluster.shows(TICKET, "why", "gpu3")
        await cluster.shows(CHECKED, "why", "gpu4")

        job = await site.submit("-w", "gpu1", "--gres=gpu:8")
        gpu = simulated_gpus("gpu1", GPUS)[3]
        fault = f"NVRM: Xid (PCI:{gpu.pci}): 79, GPU has fallen off the bus."
        with machines["gpu1"].kmsg.open("ab") as kernel_log:
            kernel_log.write(kmsg_record(1, 1, fault))
        await eventually(lambda: _is(cluster, "gpu1", "unhealthy"))
        assert "observe mode" in await cluster.shows("would begin: drain of gpu1", "why", "gpu1")
        assert "update_node: node gpu1" not in (site.folder / "slurmctld.log").read_text()

        assert "has left pool gpu" in await cluster.says("leave", "gpu2")
        await eventually(lambda: _lacks_agent(cluster, 3), within_seconds=STEP_SECONDS_MAX)

        cluster.act()
        await cluster.until_flag("gpu1", "drain")
        assert re.match(r"navarch: .*79.* \(drain-gpu1-\d+\)", site.reason("gpu1"))
        assert f"job {job}" in await cluster.shows("waits for job", "why", "gpu1")
        assert site.job_state(job) == "RUNNING"
        site.run("scancel", job)
        assert "uncordon" in await cluster.shows("drained", "why", "gpu1")
        assert "nothing makes another machine" in await cluster.refused("replace", "gpu1")

        await cluster.says("uncordon", "gpu1")
        await cluster.until_flag("gpu1", "drain", present=False)
        job = await site.submit("-w", "gpu1", "--gres=gpu:8")
        assert site.job_hosts(job) == {"gpu1"}
        assert {"gpu1"} <= set((site.folder / "prologs").read_text().split())
        await navarch("uncordon", "gpu3", "--config", str(cluster.config))
        said = await cluster.says("list")
        assert TICKET in said
        assert CHECKED in said
        assert {"drain"} <= site.flags("gpu3") & site.flags("gpu4")
        assert [TICKET, CHECKED] == [site.reason(each) for each in ("gpu3", "gpu4")]


async def _are_shown_without_agents(cluster: Cluster) -> None:
    """Check what is said of nodes before their agents join."""
    listed = await cluster.shows("gpu4", "list")
    assert [listed.count(each) for each in NODES] == [1, 1, 1, 1]
    assert listed.count("its agent has not joined") == len(NODES)
    said = await cluster.says("why", "gpu2")
    assert "Its agent has not joined, so none of its faults are seen" in said
    assert "can neither reset its GPUs nor reboot it" in said
    assert "lists no machine gpu9" in await cluster.refused("join", "--print", "gpu9")


async def _lacks_agent(cluster: Cluster, count: int) -> bool:
    return (await cluster.says("list")).count("its agent has not joined") == count


async def _is(cluster: Cluster, node: str, health: str) -> bool:
    return await cluster.health(node) == health
