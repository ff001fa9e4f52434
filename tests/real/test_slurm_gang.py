"""Two unhealthy nodes of one job on a real Slurm: the job is interrupted once."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.topology import NODES
from services.bus.bucket_mirror import readable
from tests.crash.fleet_shape import REPLACED
from tests.crash.rig import Rig, Shape
from tests.crash.scripted_agents import GONE
from tests.real.slurm_site import missing, slurm_site
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real

DRAIN_SECONDS = 30
STEP_SECONDS_MAX = 60.0

_nodes = decoder(NodeRecord)


@pytest.fixture(autouse=True)
def slurm_here() -> None:
    """Skip without Slurm; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


async def test_two_unhealthy_nodes_of_one_job_are_replaced_together(tmp_path: Path) -> None:
    """Though one node may be out of service: the job is requeued once, and runs again."""
    with TemporaryDirectory(prefix="navarch-slurm-") as name:
        folder = Path(name)
        options = {"type": "slurm", "conf": str(folder / "slurm.conf"), "node_name": "{node}"}
        shape = Shape(
            nodes=3,
            notifier=options | {"poll": "500ms", "timeout": "5s"},
            drain_timeout=f"{DRAIN_SECONDS}s",
        )
        async with Rig(tmp_path, shape) as rig:
            names = tuple(sorted(rig.provider.names()))
            async with slurm_site(names, folder=folder) as site:
                job = await site.submit("-N2", script="sleep 1000")
                nodes = sorted(site.job_hosts(job))
                for each in nodes:
                    rig.broken.append(each)
                    rig.expect_saga("replace", each)
                    await rig.fault(each, GONE)

                async def both_begin() -> bool:
                    found = dict(readable(await rig.bus.entries(NODES), _nodes))
                    sagas = {each.node: each.saga for each in found.values() if each.cordoned}
                    return all(sagas.get(each) for each in nodes)

                await eventually(both_begin, within_seconds=20, every=0.1)
                assert site.job_state(job) == "RUNNING"
                spared = next(each for each in names if each not in nodes)

                def replaced() -> bool:
                    ended = {node for _, moment, node in rig.signs if moment == REPLACED}
                    return ended >= set(nodes)

                await rig.until(replaced)
                for each in set(rig.provider.names()) - {spared}:
                    await site.start_dynamic_node(each)
                await site.until_job(job, "RUNNING", within_seconds=STEP_SECONDS_MAX)
                assert "Restarts=1" in site.run("scontrol", "show", "job", job, "-o")
            assert rig.unexpected_ends == []
