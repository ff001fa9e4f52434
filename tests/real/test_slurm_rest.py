"""Slurm over a real slurmrestd with a JWT: it reads as the commands do, and says what it cannot."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.notifier.workload.slurm_workload import FAILED_STATES
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError, WaitingJobs
from services.pool_manager.autoscaling.sources.slurm_source import SlurmSource
from services.primitives.clock import SystemClock
from services.primitives.free_ports import free_ports
from services.saga.participant import StepFailure
from services.workload_systems.slurm_client import SlurmUnavailableError
from services.workload_systems.slurm_commands import SlurmCommands
from services.workload_systems.slurm_rest import SlurmRest, SlurmRestOptions
from tests.real.slurm_site import SlurmSite, missing, slurm_site
from tests.real.test_slurm import node, order, workload
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real

PLUGIN = "slurm-wlm/auth_jwt.so"
PATH = "/usr/sbin:/usr/local/sbin"
LIFE_SECONDS = 600


@pytest.fixture(autouse=True)
def slurmrestd_here() -> None:
    """Skip without Slurm, slurmrestd or Slurm's JWT plugin."""
    reason = missing()
    if not shutil.which("slurmrestd") and not shutil.which("slurmrestd", path=PATH):
        reason = reason or "no slurmrestd here: apt-get install slurmrestd"
    if not any(Path("/usr/lib").glob(f"*/{PLUGIN}")):
        reason = reason or "no auth/jwt here: apt-get install slurm-wlm-jwt-plugin"
    if reason:
        pytest.skip(reason)


@dataclass
class RestSite:
    """Holds a cluster with a slurmrestd."""

    slurm: SlurmSite
    url: str

    def token(self, seconds: int = LIFE_SECONDS) -> str:
        """A token of root, who is SlurmUser here."""
        said = self.slurm.run("scontrol", "token", "username=root", f"lifespan={seconds}")
        return said.partition("=")[2]

    def options(self, **more: Any) -> SlurmRestOptions:
        known = {"url": self.url, "user": "root"}
        return SlurmRestOptions(**(known | ({"token": self.token()} | more)))

    def client(self, **more: Any) -> SlurmRest:
        return SlurmRest(self.options(**more), self.commands(), 10.0, SystemClock())

    def commands(self, folder: str = "") -> SlurmCommands:
        return SlurmCommands(folder=folder, conf=str(self.slurm.conf), seconds_max=10.0)

    def notifier(self, rest: dict[str, Any] | None = None, **more: Any) -> SlurmNotifier:
        options = SlurmNotifier.Options(
            rest=self.options(**(rest or {})), conf=str(self.slurm.conf), **more
        )
        return SlurmNotifier(options=options, clock=SystemClock())


@asynccontextmanager
async def rest_site(
    folder: Path, nodes: tuple[str, ...] = ("gpu1", "gpu2")
) -> AsyncIterator[RestSite]:
    key = folder / "jwt.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    extra = f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={key}"
    async with slurm_site(nodes, folder=folder, extra=extra) as slurm:
        [port] = free_ports(1)
        program = shutil.which("slurmrestd") or shutil.which("slurmrestd", path=PATH)
        assert program is not None
        command = (program, "-f", str(slurm.conf), "-a", "rest_auth/jwt")
        command += ("-s", "openapi/v0.0.38", f"127.0.0.1:{port}")  # others need slurmdbd
        # It refuses to run as root but for this; another user could not read the key here.
        environment = slurm.environment | {"SLURMRESTD_SECURITY": "disable_user_check"}
        environment |= {"SLURM_JWT": "daemon"}
        with (folder / "slurmrestd.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            site = RestSite(slurm, f"http://127.0.0.1:{port}")
            client = site.client()

            async def answers() -> bool:
                try:
                    return "UP" in await client.ping()
                except SlurmUnavailableError:
                    return False

            await eventually(answers, within_seconds=30, every=0.1)
            await client.close()
            yield site
        finally:
            process.kill()
            process.wait()


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    """A folder that every user may enter, as munge must."""
    with TemporaryDirectory(prefix="navarch-slurm-") as name:
        yield Path(name)


async def test_it_reads_what_the_commands_read(folder: Path) -> None:
    """Nodes and jobs in every state that occurs, compared with `sinfo` and `squeue`."""
    async with rest_site(folder, ("gpu1", "gpu2", "gpu3", "gpu4")) as site:
        rest, commands = site.client(), site.commands()
        slurm = site.slurm
        small = ("-c1", "--mem=50", "-o/dev/null")
        await slurm.submit("-N2", "-w", "gpu1,gpu2", "--time=10", "--job-name=a b|c", *small)
        await slurm.submit("-w", "gpu1", "--comment=navarch-checkpoint two", *small)
        slurm.run("sbatch", *small, "--array=3-4", "-w", "gpu2", "--wrap", "sleep 300")
        slurm.run("sbatch", *small, "-w", "gpu1", "--wrap", "exit 3")
        (folder / "het.sh").write_text("#!/bin/sh\nsleep 300\n")
        parts = ("-w", "gpu1", *small, ":", "-w", "gpu2", *small)
        slurm.run("sbatch", *parts, str(folder / "het.sh"))

        async def running() -> bool:
            shown = slurm.run("squeue", "-hr", "-t", "RUNNING", "-o", "%i").split()
            return len(shown) == 6 and bool(slurm.run("squeue", "-h", "-t", "FAILED"))

        await eventually(running, within_seconds=90, every=0.3)
        slurm.run("sbatch", *small, "-w", "gpu1", "--hold", "--wrap", "sleep 300")
        slurm.run("scontrol", "update", "nodename=gpu2", "state=drain", 'reason=navarch: "b" (c)')
        slurm.run("scontrol", "update", "nodename=gpu3", "state=down", "reason=PSU 2")
        await slurm.start_dynamic_node("dyn1")
        await slurm.until_state("dyn1", "idle+dynamic_norm")
        await slurm.kill("gpu4")

        async def silent() -> bool:
            return "not_responding" in slurm.flags("gpu4")

        await eventually(silent, within_seconds=90, every=0.1)
        nodes = await commands.nodes()
        assert await rest.nodes() == nodes
        assert (nodes["gpu2"].cordoned, nodes["gpu2"].busy, nodes["gpu3"].down) == (True,) * 3
        assert nodes["dyn1"].dynamic
        assert nodes["gpu4"].silent
        assert by_number(await rest.jobs()) == by_number(await commands.jobs())
        failed = await commands.jobs(FAILED_STATES)
        assert len(failed) == 1
        assert await rest.jobs(FAILED_STATES) == failed
        comments = await rest.comments("gpu1")
        assert comments == await commands.comments("gpu1")
        assert frozenset({"navarch-checkpoint", "two"}) in comments.values()
        await rest.close()


def by_number(jobs: Any) -> dict[str, Any]:
    return {each.number: each for each in jobs}


def by_size(load: Load) -> list[WaitingJobs]:
    """The jobs that wait, the smallest first."""
    return sorted(load.waiting or (), key=lambda each: (each.nodes, each.gpus))


async def test_its_queue_is_that_of_the_commands(folder: Path) -> None:
    """A gang, an array and jobs that wait for something else; an unknown partition is none."""
    async with rest_site(folder) as site:
        slurm = site.slurm
        running = await slurm.submit("-N2", "--exclusive", "--gres=gpu:8")
        small = ("sbatch", "--parsable", "-o/dev/null", "-N1", "--gres=gpu:2")
        slurm.run("sbatch", "-o/dev/null", "-N2", "--exclusive", "--gres=gpu:h100:8", "--wrap", "x")
        slurm.run(*small, "--array=1-5,9%2", "--wrap", "sleep 9")
        slurm.run(*small, "--hold", "--wrap", "sleep 9")
        slurm.run(*small, f"--dependency=afterok:{running}", "--wrap", "sleep 9")
        for node, feature in (("gpu1", "h100"), ("gpu2", "a100")):
            slurm.run("scontrol", "update", f"NodeName={node}", f"AvailableFeatures={feature}")
        for gpus, constraint in ((4, "a100"), (3, "[h100|a100]")):
            one = ("sbatch", "-o/dev/null", "-N1", f"--gres=gpu:{gpus}", "-C", constraint)
            slurm.run(*one, "--wrap", "sleep 9")
        rest = SlurmSource(options=SlurmSource.Options(partition="gpu", rest=site.options()))
        by_commands = SlurmSource(
            options=SlurmSource.Options(partition="gpu", conf=str(slurm.conf))
        )

        async def load() -> Load | None:
            found = await rest.load("training")
            return found if found.not_for_nodes == 2 else None

        found = await eventually(load, within_seconds=60, every=0.3)
        assert found == await by_commands.load("training")
        waiting = [
            WaitingJobs(gpus=2, count=6),
            WaitingJobs(gpus=3),
            WaitingJobs(nodes=2, gpus=8),
        ]
        assert by_size(found) == [*waiting[:2], WaitingJobs(gpus=4), *waiting[2:]]
        assert (found.busy_nodes, found.not_for_pool) == (2, 0)
        h100 = {"partition": "gpu", "features": ("h100",)}
        for options in ({"rest": site.options()}, {"conf": str(slurm.conf)}):
            of_h100 = SlurmSource(options=SlurmSource.Options(**h100, **options))
            fitting = await of_h100.load("training")
            assert (by_size(fitting), fitting.not_for_pool) == (waiting, 1)
            await of_h100.close()
        other = SlurmSource(options=SlurmSource.Options(rest=site.options()))
        with pytest.raises(SourceError, match=r"partition research: .* not found \(known: gpu"):
            await other.load("research")
        await other.close()
        await slurm.kill("slurmctld")
        with pytest.raises(SourceError, match="partition gpu: "):
            await rest.load("training")
        await rest.close()


async def test_orders_are_commands_where_the_api_has_none(folder: Path) -> None:
    """v0.0.38: it drains, requeues at the deadline and resumes, and reads over REST meanwhile."""
    async with rest_site(folder) as site:
        slurm = site.notifier()
        job = await site.slurm.submit("-N1", "-w", "gpu1", "--time=10")
        await slurm.cordon(order("gpu1", "cordon"))
        await slurm.drain(order("gpu1"))
        assert site.slurm.reason("gpu1") == "navarch: xid-79 on GPU 3 (replace-1)"
        before = await workload(slurm, "gpu1")
        assert (before.drained, before.running[0].id) == (False, f"job {job}")
        await slurm.evict(order("gpu1"))

        async def left() -> bool:
            return (await workload(slurm, "gpu1")).drained

        await eventually(left, within_seconds=60, every=0.2)
        await slurm.uncordon(order("gpu1", "uncordon"))
        assert "drain" not in site.slurm.flags("gpu1")
        checks = {each.what: each for each in await slurm.self_check()}
        assert all(each.passed for each in checks.values())
        assert "over slurmrestd v0.0.38" in checks["connect to slurmctld"].detail
        assert "orders are given by scontrol" in checks["change nodes over slurmrestd"].detail
        assert "valid until" in checks["token of root"].detail
        await slurm.close()


async def test_a_version_that_cannot_change_nodes_is_named_with_the_remedy(folder: Path) -> None:
    """Where Slurm's commands are not here either, a cordon fails and says the same."""
    async with rest_site(folder, ("gpu1",)) as site:
        slurm = site.notifier(commands="/nonexistent")
        checks = {each.what: each for each in await slurm.self_check()}
        orders = checks["change nodes over slurmrestd"]
        assert not orders.passed
        assert "v0.0.38 cannot" in orders.detail
        assert "upgrade to Slurm 23.02" in orders.remedy
        assert checks["list nodes"].passed
        with pytest.raises(StepFailure, match=r"v0\.0\.38 cannot change nodes") as failed:
            await slurm.cordon(order("gpu1", "cordon"))
        assert "upgrade to Slurm 23.02" in failed.value.remedy
        await slurm.close()
        other = site.client(version="v0.0.41")
        with pytest.raises(StepFailure, match=r"does not serve v0\.0\.41 .* serves v0\.0\.38"):
            await other.nodes()
        await other.close()


async def test_without_token_or_controller_nothing_counts_as_drained(folder: Path) -> None:
    """An expired token and a slurmctld that is away are outages; a renewed token is taken."""
    async with rest_site(folder, ("gpu1",)) as site:
        file = folder / "token"
        file.write_text("SLURM_JWT=" + site.token(1) + "\n")
        slurm = site.notifier({"token": "", "token_file": str(file)})
        await slurm.cordon(order("gpu1", "cordon"))

        async def expired() -> bool:
            try:
                await slurm.workloads([node("gpu1")])
            except SlurmUnavailableError as error:
                return "token may have expired" in str(error)
            return False

        await eventually(expired, within_seconds=60, every=0.3)
        rest = site.client(token="", token_file=str(file))
        await rest.api()
        [_, token] = await rest.checks()
        assert not token.passed
        assert "scontrol token" in token.remedy
        await rest.close()
        file.write_text(site.token())
        assert (await workload(slurm, "gpu1")).drained
        await site.slurm.kill("slurmctld")
        with pytest.raises(SlurmUnavailableError):
            await slurm.workloads([node("gpu1")])
        file.unlink()
        with pytest.raises(SlurmUnavailableError, match="cannot be read"):
            await slurm.workloads([node("gpu1")])
        await slurm.close()
