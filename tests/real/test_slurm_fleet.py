"""A whole fleet on a real Slurm: a node of a two-node job breaks, and the job runs again."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from schemas import subjects
from schemas.node_events import FACTS, WorkRemains, node_codec
from schemas.topology import EVENTS
from tests.crash.fleet_shape import REPLACED, Moment
from tests.crash.rig import Rig, Shape
from tests.real.slurm_site import SlurmSite, missing, slurm_site
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real

DRAIN_SECONDS = 30
STEP_SECONDS_MAX = 60.0


@pytest.fixture(autouse=True)
def slurm_here() -> None:
    """Skip without Slurm; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, as munge must."""
    with TemporaryDirectory(prefix="navarch-slurm-") as name:
        yield Path(name)


def shape(folder: Path) -> Shape:
    """Two nodes, whose names are also Slurm's."""
    options: dict[str, Any] = {"type": "slurm", "conf": str(folder / "slurm.conf")}
    options |= {"node_name": "{node}", "poll": "500ms", "timeout": "5s"}
    return Shape(notifier=options, drain_timeout=f"{DRAIN_SECONDS}s")


async def replacement_of(rig: Rig, before: Sequence[str]) -> str:
    """The name of the instance that was not there before, also if it was launched by now."""

    async def launched() -> str:
        return next(iter(set(rig.provider.names()) - set(before)), "")

    found: str = await eventually(launched, within_seconds=STEP_SECONDS_MAX, every=0.1)
    return found


async def reported_work(rig: Rig, node: str) -> WorkRemains:
    """Return what the notifier reports about a node's drain."""
    subject = subjects.node_event("training", node, FACTS[WorkRemains])

    async def reported() -> Any:
        return await rig.bus.last(EVENTS.name, subject)

    stored = await eventually(reported, within_seconds=STEP_SECONDS_MAX, every=0.1)
    event = node_codec.decode(stored.data)
    assert isinstance(event, WorkRemains)
    return event


async def navarch(rig: Rig, *arguments: str) -> str:
    """Return the output of a command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *arguments, "--nats-url", rig.server.url),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return output.decode()


async def kill_and_restart(rig: Rig) -> None:
    """The notifier's supervisor starts it again."""
    notifier = rig.replica("notifier")
    await notifier.gone()
    await notifier.start()


async def test_job_of_a_broken_node_runs_again_with_the_replacement(
    folder: Path, tmp_path: Path
) -> None:
    """XID 79: drained with its reason, requeued at the deadline, and running on the new node.

    The notifier is killed as it begins to cordon, and again while it waits for the drain.
    """
    async with Rig(tmp_path, shape(folder)) as rig:
        names = tuple(sorted(rig.provider.names()))
        async with slurm_site(names, folder=folder) as site:
            job = await site.submit("-N2", "--gres=gpu:8", "--time=30", script="sleep 1000")
            checked = await navarch(rig, "workload", "check", "training", "--node", names[0])
            assert f"ok    cordon and uncordon {names[0]}" in checked, checked
            assert "FAIL" not in checked
            killed = [
                rig.arm(Moment(step, "started"), rig.replica("notifier").kill)
                for step in ("cordon", "drain")
            ]
            broken = await rig.break_a_node()
            for each in killed:
                async with asyncio.timeout(STEP_SECONDS_MAX):
                    await each.wait()
                await kill_and_restart(rig)
            await _is_drained_with_a_reason(site, broken, job)
            report = await reported_work(rig, broken)
            assert [each.id for each in report.work] == [f"job {job}"]
            assert site.job_state(job) == "RUNNING"
            said = rf"waits for job {job} of root \(has run for \d+ min\), until .* at the latest"
            # Both at once: the drain lasts for half a minute.
            commands = (("why", broken), ("status",))
            for shown in await asyncio.gather(*(navarch(rig, *each) for each in commands)):
                assert re.search(said, shown), shown

            new = await replacement_of(rig, names)
            await site.start_dynamic_node(new)
            await rig.until(lambda: any((m, n) == (REPLACED, broken) for _, m, n in rig.signs))
            await site.until_job(job, "RUNNING", within_seconds=STEP_SECONDS_MAX)
            kept = next(each for each in names if each != broken)
            assert site.job_hosts(job) == {kept, new}
            listed = json.loads(await navarch(rig, "list", "--job", job, "-o", "json"))
            assert {each["id"] for each in listed} == {kept, new}
            assert all(each["last_heartbeat"] for each in listed)
        assert rig.unexpected_ends == []


async def _is_drained_with_a_reason(site: SlurmSite, node: str, job: str) -> None:
    async def drained() -> bool:
        return "drain" in site.flags(node)

    await eventually(drained, within_seconds=STEP_SECONDS_MAX, every=0.1)
    shown = site.run("sinfo", "-hR", "-o", "%E|%N")
    reason, _, where = shown.partition("|")
    assert where == node
    assert reason.startswith("navarch: ")
    assert f"(replace-{node}" in reason
    assert job


async def test_killed_at_each_step_it_orders_everything_once(folder: Path, tmp_path: Path) -> None:
    """One drain in Slurm however often the notifier is killed; no job ends before the deadline.

    One job leaves late, and one ignores every signal but SIGKILL and is requeued at the deadline.
    """
    async with Rig(tmp_path, shape(folder)) as rig:
        names = tuple(sorted(rig.provider.names()))
        async with slurm_site(names, folder=folder) as site:
            broken = await rig.oldest()
            late = await site.submit("-w", broken, "-n1", "--mem=10", script="sleep 12")
            refusing = await site.submit(
                *("-w", broken, "-n1", "--mem=10"), script="trap '' TERM; sleep 1000"
            )
            killed = [
                rig.arm(Moment(step, "started"), rig.replica("notifier").kill)
                for step in ("cordon", "drain")
            ]
            await rig.break_a_node()
            for each in killed:
                async with asyncio.timeout(STEP_SECONDS_MAX):
                    await each.wait()
                began = asyncio.get_running_loop().time()
                await kill_and_restart(rig)
            await reported_work(rig, broken)
            rig.replica("notifier").kill()
            await kill_and_restart(rig)
            await site.until_job(late, "COMPLETED", "")
            assert site.job_state(refusing) == "RUNNING"

            async def requeued() -> bool:
                return site.job_state(refusing) != "RUNNING"

            await eventually(requeued, within_seconds=STEP_SECONDS_MAX, every=0.05)
            waited = asyncio.get_running_loop().time() - began
            rig.replica("notifier").kill()
            await kill_and_restart(rig)
            await rig.until(lambda: any((m, n) == (REPLACED, broken) for _, m, n in rig.signs))
            assert waited >= DRAIN_SECONDS * 0.8
            assert "Restarts=1" in site.run("scontrol", "show", "job", refusing, "-o")
            log = (folder / "slurmctld.log").read_text()
            assert log.count(f"update_node: node {broken} state set to DRAIN") == 1
        assert rig.unexpected_ends == []
