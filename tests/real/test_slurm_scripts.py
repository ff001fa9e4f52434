"""The scripts of deploy/slurm as Slurm runs them: prolog and health check."""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.real.slurm_site import SlurmSite, missing, slurm_site
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
REASON = "navarch: health check: unhealthy: xid-79 on GPU 3"
NODES = ("gpu1", "gpu2")


@pytest.fixture(autouse=True)
def slurm_here() -> None:
    """Skip without Slurm; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


def install(folder: Path, script: str) -> Path:
    """A script whose agent is of this checkout, with a state of its own for each node."""
    agent = folder / "navarch-agent"
    agent.write_text(
        f"#!/bin/sh\ncd {ROOT} && NAVARCH_STATE_DIR={folder}/$SLURMD_NODENAME "
        f'exec {sys.executable} -m agent.command_line "$@"\n'
    )
    wrapper = folder / f"run-{script}"
    # Slurm gives its scripts a minimal environment.
    settings = (
        f"export NAVARCH_AGENT={agent} SLURM_CONF={folder}/slurm.conf PATH=/usr/sbin:/usr/bin:/bin"
    )
    wrapper.write_text(f'#!/bin/sh\n{settings}\nexec {ROOT}/deploy/slurm/{script} "$@"\n')
    for each in (agent, wrapper):
        each.chmod(0o755)
    return wrapper


def judge(folder: Path, node: str, health: str) -> None:
    """Write the record that a node's agent has read."""
    (folder / node).mkdir(exist_ok=True)
    found = {"health": health, "reason": "xid-79 on GPU 3", "read_at": time.time()}
    (folder / node / "health.json").write_text(json.dumps(found))


async def has_reason(site: SlurmSite, node: str, reason: str) -> None:
    """Wait until a node has this reason."""

    async def shown() -> bool:
        return site.reason(node) == reason

    await eventually(shown, within_seconds=30, every=0.2)


async def test_prolog_keeps_jobs_off_an_unhealthy_node(public_folder: Path) -> None:
    """The job is requeued and runs elsewhere; the node is drained with Navarch's reason."""
    prolog = install(public_folder, "prolog.sh")
    judge(public_folder, "gpu1", "unhealthy")
    judge(public_folder, "gpu2", "healthy")
    extra = f"Prolog={prolog}\nPrologFlags=Alloc"
    async with slurm_site(NODES, folder=public_folder, extra=extra) as site:
        site.run("scontrol", "update", "nodename=gpu2", "state=drain", "reason=wait")
        job = site.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 300")
        await has_reason(site, "gpu1", REASON)
        site.run("scontrol", "update", "nodename=gpu2", "state=resume")
        await site.until_job(job, "RUNNING", within_seconds=60)
        assert site.job_nodes(job) == "gpu2"
        assert site.reason("gpu1") == REASON


async def test_health_check_drains_and_resumes_its_own(public_folder: Path) -> None:
    """Healthy again, the node returns by itself; an administrator's drain stays."""
    check = install(public_folder, "health-check.sh")
    for each in NODES:
        judge(public_folder, each, "healthy")
    extra = f"HealthCheckProgram={check}\nHealthCheckInterval=1"
    async with slurm_site(NODES, folder=public_folder, extra=extra) as site:
        site.run("scontrol", "update", "nodename=gpu2", "state=drain", "reason=ticket 12")
        for each in NODES:
            judge(public_folder, each, "unhealthy")
        await has_reason(site, "gpu1", REASON)
        for each in NODES:
            judge(public_folder, each, "healthy")
        await has_reason(site, "gpu1", "none")
        assert site.reason("gpu2") == "ticket 12"
