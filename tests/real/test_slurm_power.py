"""Slurm's ResumeProgram and SuspendProgram, served by Navarch, on a real slurmctld."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.saga_params import WORKLOAD_NAME
from schemas.topology import NODES
from services.primitives.free_ports import free_ports
from services.provisioner.provider_client.provider import Environment
from services.provisioner.providers.fake import FakeFault, FakeProvider
from tests.crash.fleet_shape import Shape
from tests.crash.rig import Rig
from tests.crash.scripted_agents import GONE
from tests.real.slurm_site import SlurmSite, missing, slurm_site
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("training-001", "training-002")
DRAIN_SECONDS = 15
STEP_SECONDS_MAX = 90.0
"""A job whose nodes have come may wait half a minute for Slurm to look at it."""
_nodes = decoder(NodeRecord)


@pytest.fixture(autouse=True)
def slurm_here() -> None:
    """Skip without Slurm; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


def shape(folder: Path) -> Shape:
    """A pool without nodes, sized by Slurm."""
    options: dict[str, Any] = {"type": "slurm", "conf": str(folder / "slurm.conf")}
    options |= {"node_name": "{label.workload-name}", "poll": "500ms", "timeout": "5s"}
    pool = {"workload_names": "training-[001-002]", "max_nodes": 2}
    return Shape(
        nodes=0,
        notifier=options,
        pool=pool,
        drain_timeout=f"{DRAIN_SECONDS}s",
    )


def power_saving(folder: Path, rig: Rig) -> str:
    """Return the lines that slurm.conf needs, with the programs of deploy/slurm."""
    navarch = folder / "navarch"
    navarch.write_text(
        f"#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m services.cli "
        f'"$@" --nats-url {rig.server.url}\n'
    )
    navarch.chmod(0o755)
    lines = []
    for setting, script in (
        ("ResumeProgram", "resume.sh"),
        ("SuspendProgram", "suspend.sh"),
        ("ResumeFailProgram", "suspend.sh"),
    ):
        program = folder / f"run-{setting}"
        program.write_text(
            f"#!/bin/sh\necho {setting} $1 >> {folder}/calls\n"
            f"export NAVARCH={navarch} NAVARCH_SLURM_LOG={folder}/navarch.log\n"
            f"export SLURM_CONF={folder}/slurm.conf PATH=/usr/sbin:/usr/bin:/bin\n"
            f'exec {ROOT}/deploy/slurm/{script} "$1"\n'
        )
        program.chmod(0o755)
        lines.append(f"{setting}={program}")
    lines += ["SuspendTimeout=3", "ResumeTimeout=120", "SuspendExcNodes=head1"]
    lines += ["SuspendTime=600", "SlurmctldParameters=idle_on_node_suspend", "PrivateData=cloud"]
    for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
        about = f"Port={port} CPUs=4 RealMemory=1000 Gres=gpu:h100:8"
        lines.append(f"NodeName={name} {about} State=CLOUD")
    lines.append(f"PartitionName=cloud Nodes={','.join(NAMES)} MaxTime=INFINITE State=UP")
    return "\n".join(lines)


class Machines:
    """Starts the slurmd of each instance, under the name that Slurm resumed; ends it with it."""

    def __init__(self, rig: Rig, site: SlurmSite) -> None:
        self._rig = rig
        self._site = site
        self.names: dict[str, str] = {}
        """Instance -> the node's name in Slurm."""
        self.late = False
        """Whether slurmd starts only after Slurm has resumed the node."""

    async def run(self) -> None:
        """Follow the provider, for ever."""
        while True:
            there = set(self._rig.provider.names())
            for instance in set(self.names) - there:
                await self._site.kill(self.names.pop(instance))
            for instance in there - set(self.names):
                self.names[instance] = name = await self._name(instance)
                if self.late:
                    await self._resumed(name)
                await self._site.start_node(name, rebooted=True)
            await asyncio.sleep(0.05)

    async def _resumed(self, name: str) -> None:
        """Wait for it, and for the next second: Slurm counts the times of boots in seconds."""

        async def resumed() -> bool:
            return "drain" not in self._site.flags(name)

        await eventually(resumed, within_seconds=STEP_SECONDS_MAX, every=0.1)
        since = int(time.time())

        async def later() -> bool:
            return int(time.time()) > since + 1

        await eventually(later, every=0.1)

    async def _name(self, instance: str) -> str:
        entry = await self._rig.bus.get(NODES, node_key("training", instance))
        assert entry is not None
        record = _nodes.decode(entry.value)
        assert record.launch is not None
        return str(record.launch.labels[WORKLOAD_NAME])


@asynccontextmanager
async def cluster(folder: Path, directory: Path) -> AsyncIterator[tuple[Rig, SlurmSite, Machines]]:
    """A fleet without nodes, and a Slurm whose nodes it has to launch."""
    async with Rig(directory, shape(folder)) as rig:
        assert rig.agents is not None
        rig.agents.hostname, rig.agents.address = socket.gethostname(), "127.0.0.1"
        extra = power_saving(folder, rig)
        async with slurm_site(("head1",), folder=folder, extra=extra, any_address=True) as site:
            machines = Machines(rig, site)
            following = asyncio.create_task(machines.run())
            try:
                yield rig, site, machines
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
                (directory / "slurmctld.log").write_bytes((folder / "slurmctld.log").read_bytes())
        assert rig.unexpected_ends == []


def submit(site: SlurmSite, *options: str) -> str:
    """A job that has to wait for nodes."""
    job = ("sbatch", "--parsable", "-p", "cloud", "-o", "/dev/null", *options)
    return site.run(*job, "--wrap", "sleep 1000")


def fail_a_launch(rig: Rig) -> None:
    """The provider refuses the next one."""
    options = FakeProvider.Options(file=str(rig.directory / "provider.db"))
    here = Environment(name="fake", fleet="crash", nats_url="", data_dir=rig.directory)
    FakeProvider(options=options, environment=here).inject_fault(
        FakeFault(call="provision", kind="INVALID")
    )


async def navarch(folder: Path, *arguments: str) -> str:
    """Return the exit code and both outputs of a command."""
    process = await asyncio.create_subprocess_exec(
        str(folder / "navarch"),
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return f"{process.returncode} {output.decode()}"


async def has(site: SlurmSite, node: str, flag: str) -> None:
    """Wait until a node's state has a part."""

    async def reached() -> bool:
        return flag in site.flags(node)

    await eventually(reached, within_seconds=STEP_SECONDS_MAX, every=0.2)


async def test_nodes_come_and_go_as_slurm_says(public_folder: Path, tmp_path: Path) -> None:
    """Launched for a job under Slurm's names, with their addresses; terminated when idle.

    What is requested twice is launched once. A node whose job still runs is not terminated.
    """
    async with cluster(public_folder, tmp_path) as (rig, site, machines):
        job = submit(site, "-N2", "--gres=gpu:8")
        await site.until_job(job, "RUNNING", within_seconds=STEP_SECONDS_MAX)
        assert site.job_hosts(job) == set(NAMES)
        assert sorted(machines.names.values()) == list(NAMES)
        shown = site.run("sinfo", "-hNn", NAMES[0], "-O", "NodeAddr:20,NodeHost:20")
        assert shown.split()[:2] == ["127.0.0.1", socket.gethostname()]

        assert "0 of 2 names changed" in await navarch(
            public_folder, "slurm", "resume", "training-[001-002]"
        )
        refused = await navarch(public_folder, "slurm", "resume", "training-001,login-1")
        assert refused.startswith("1 ")
        assert refused.endswith("\nlogin-1\n")
        assert "in no pool's workload_names" in refused

        await navarch(public_folder, "slurm", "suspend", NAMES[0])
        await has(site, NAMES[0], "drain")
        assert (site.job_state(job), len(rig.provider.names())) == ("RUNNING", 2)
        site.run("scancel", job)
        await has(site, NAMES[0], "powered_down")
        assert sorted(machines.names.values()) == [NAMES[1]]

        site.run("scontrol", "update", f"nodename={NAMES[1]}", "state=power_down")
        await has(site, NAMES[1], "powered_down")

        async def all_gone() -> bool:
            return not rig.provider.names()

        await eventually(all_gone, within_seconds=STEP_SECONDS_MAX, every=0.1)
        assert "drain" not in site.flags(NAMES[0]) | site.flags(NAMES[1])
        assert rig.most == len(NAMES)


async def test_failed_launch_gives_the_job_back(public_folder: Path, tmp_path: Path) -> None:
    """The node is set DOWN with the reason and powered down; the job waits for another."""
    async with cluster(public_folder, tmp_path) as (rig, site, _):
        fail_a_launch(rig)
        job = submit(site, "-w", NAMES[0])
        requeued = f"requeue job JobId={job} due to failure of node {NAMES[0]}"

        async def failed() -> bool:
            return requeued in (public_folder / "slurmctld.log").read_text()

        await eventually(failed, within_seconds=STEP_SECONDS_MAX, every=0.2)
        assert site.reason(NAMES[0]).startswith("navarch: fake simulated (INVALID")
        assert "Restarts=1" in site.run("scontrol", "show", "job", job, "-o")
        site.run("scancel", job)
        await has(site, NAMES[0], "powered_down")
        assert not site.flags(NAMES[0]) & {"drain", "down"}


async def test_successor_of_a_broken_node_has_its_name(public_folder: Path, tmp_path: Path) -> None:
    """Drained with the fault, its job requeued; the new machine is in service without a drain.

    Also where slurmd starts long after the agent: slurmctld then takes the new machine for a node
    that rebooted unexpectedly, and sets it DOWN.
    """
    async with cluster(public_folder, tmp_path) as (rig, site, machines):
        job = submit(site, "-w", NAMES[0])
        await site.until_job(job, "RUNNING", within_seconds=STEP_SECONDS_MAX)
        for machines.late in (True, False):
            (broken,) = machines.names
            await rig.fault(broken, GONE)
            await has(site, NAMES[0], "drain")
            assert site.reason(NAMES[0]).startswith("navarch: ")

            async def replaced(broken: str = broken) -> bool:
                there = set(machines.names)
                return there not in (set(), {broken}) and site.job_state(job) == "RUNNING"

            await eventually(replaced, within_seconds=2 * STEP_SECONDS_MAX, every=0.2)
            assert not site.flags(NAMES[0]) & {"drain", "down"}
            assert list(machines.names.values()) == [NAMES[0]]
        controller = (public_folder / "slurmctld.log").read_text()
        assert f"Node {NAMES[0]} unexpectedly rebooted" in controller
