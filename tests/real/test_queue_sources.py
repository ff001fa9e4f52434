"""Sources of queues on the real Slurm, Ray and Prometheus, with work that really waits."""

import os
import subprocess
from pathlib import Path

import pytest

from services.pool_manager.autoscaling.metrics_sources import Load, SourceError, WaitingJobs
from services.pool_manager.autoscaling.sources.ray_source import RaySource
from services.pool_manager.autoscaling.sources.slurm_source import SlurmSource
from tests.real import ray_cluster, slurm_site
from tests.support.inprocess import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]

RAY_WORK = """
import time
import ray
from ray.util.placement_group import placement_group
ray.init(address="auto", namespace="ml", log_to_driver=False)

@ray.remote(num_gpus=4)
def train(): pass

@ray.remote(num_cpus=4)
def prepare(): pass

@ray.remote(num_cpus=0, num_gpus=2)
class Server:
    def ping(self): return 1

server = Server.remote()
ray.get(server.ping.remote())
late = [train.remote() for _ in range(3)] + [prepare.remote()]
gang = placement_group([{"GPU": 8}] * 4, strategy="STRICT_SPREAD")
time.sleep(600)
"""


async def test_slurm_jobs_count_by_what_they_wait_for() -> None:
    """A gang, single GPUs and an array wait for nodes; a held and a dependent job do not."""
    if reason := slurm_site.missing():
        pytest.skip(reason)
    async with slurm_site.slurm_site() as site:
        running = await site.submit("-N3", "--exclusive", "--gres=gpu:8")

        def queue(*options: str) -> str:
            return site.run(
                "sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", "sleep 9"
            )

        queue("-N2", "--exclusive", "--gres=gpu:h100:8")
        queue("-N1", "--gres=gpu:2", "--array=1-5")
        queue("-N1", "--gres=gpu:1", "--hold")
        queue("-N1", "--gres=gpu:1", f"--dependency=afterok:{running}")
        queue("-N1", "--gres=gpu:1", "--begin=now+1hour")
        source = SlurmSource(options=SlurmSource.Options(conf=str(site.conf), partition="gpu"))

        async def load() -> Load | None:
            found = await source.load("training")
            return found if found.not_for_nodes == 3 else None

        found = await eventually(load, within_seconds=30, every=0.2)
        assert found == Load(
            pending_jobs=6,
            waiting=(WaitingJobs(nodes=2, gpus=8), WaitingJobs(gpus=2, count=5)),
            busy_nodes=3,
            not_for_nodes=3,
        )
        with pytest.raises(SourceError, match=r"partition research: .*not found"):
            await SlurmSource(options=SlurmSource.Options(conf=str(site.conf))).load("research")
        await site.kill("slurmctld")
        with pytest.raises(SourceError, match="partition gpu: "):
            await source.load("training")


async def test_ray_demand_counts_by_the_gpus_it_needs(tmp_path: Path) -> None:
    """Tasks, and a placement group that is one gang; work without GPUs waits for other nodes."""
    if reason := ray_cluster.missing():
        pytest.skip(reason)
    script = tmp_path / "work.py"
    script.write_text(RAY_WORK)
    with ray_cluster.ray_cluster() as cluster:
        cluster.add("node-1", gpus=2)
        address = f"127.0.0.1:{cluster.gcs_port}"
        work = subprocess.Popen(
            [cluster.python, str(script)], env={**os.environ, "RAY_ADDRESS": address}
        )
        source = RaySource(options=RaySource.Options(dashboard=cluster.url))
        try:

            async def load() -> Load | None:
                found = await source.load("training")
                return found if found.pending_jobs == 4 and found.not_for_nodes == 1 else None

            found = await eventually(load, within_seconds=90, every=0.5)
        finally:
            work.kill()
            work.wait()
        assert found.busy_nodes == 1
        assert set(found.waiting or ()) == {
            WaitingJobs(gpus=4, count=3),
            WaitingJobs(nodes=4, gpus=8),
        }
        cluster.kill("head")
        with pytest.raises(SourceError, match="metrics of pool training"):
            await source.load("training")
        await source.close()
