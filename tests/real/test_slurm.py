"""The Slurm notifier on a real Slurm: what it drains, what it leaves alone, and what restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock
from services.workload_systems.slurm_client import SlurmRefusedError, SlurmUnavailableError
from tests.real.slurm_site import SlurmSite, missing, slurm_site
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real

DRAINED_SECONDS_MAX = 60.0
REASON = "navarch: xid-79 on GPU 3 (replace-1)"


@pytest.fixture(autouse=True)
def slurm_here() -> None:
    """Skip without Slurm; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
async def site() -> AsyncIterator[SlurmSite]:
    """Three idle nodes with eight GPUs each."""
    async with slurm_site() as running:
        yield running


def notifier(site: SlurmSite, **options: Any) -> SlurmNotifier:
    """Return the notifier of this site."""
    chosen = SlurmNotifier.Options(conf=str(site.conf), poll=0.2, **options)
    return SlurmNotifier(options=chosen, clock=SystemClock())


def node(name: str, *, lost: bool = False) -> NodeReference:
    """A node as the pool-manager knows it."""
    return NodeReference(pool="training", node=f"training-{name}", hostname=name, lost=lost)


def order(name: str, step: str = "drain", *, lost: bool = False) -> WorkloadOrder:
    """Return one step of a replacement."""
    about = node(name, lost=lost)
    return WorkloadOrder(node=about, reason="xid-79 on GPU 3", key=f"replace-1/{step}")


async def workload(slurm: SlurmNotifier, name: str) -> NodeWorkload:
    """Return what runs on a node."""
    answer = (await slurm.workloads([node(name)]))[f"training-{name}"]
    assert isinstance(answer, NodeWorkload)
    return answer


async def drained(slurm: SlurmNotifier, about: NodeReference) -> None:
    """Wait until a node is drained, as the notifier's service does."""
    async with asyncio.timeout(DRAINED_SECONDS_MAX):
        await DrainWatch(slurm, SystemClock()).drained(about)


async def test_jobs_are_reported_then_requeued_at_the_deadline(site: SlurmSite) -> None:
    """A two-node job runs until the deadline, and then again on the nodes that are left."""
    slurm = notifier(site)
    job = await site.submit("-N2", "--gres=gpu:8", "--time=10", "--job-name=a\nb|4|root|x")
    await slurm.cordon(order("gpu1", "cordon"))
    await slurm.drain(order("gpu1"))
    await slurm.drain(order("gpu1"))
    assert site.reason("gpu1") == REASON
    before = await workload(slurm, "gpu1")
    running = before.running[0]
    assert (before.drained, before.total) == (False, 1)
    assert (running.id, running.owner, running.gang) == (f"job {job}", "root", job)
    assert running.started_at is not None
    assert running.ends_at is not None
    assert (running.ends_at - running.started_at).total_seconds() == 600
    assert site.job_state(job) == "RUNNING"

    await slurm.evict(order("gpu1"))
    await drained(slurm, node("gpu1"))
    await site.until_job(job, "RUNNING")
    assert site.job_nodes(job) == "gpu[2-3]"


async def test_the_user_of_jobs_hears_once_of_a_drain_that_will_end_them(site: SlurmSite) -> None:
    """One job's output has the message, and the comments of all say it; a site's comment stays."""
    slurm = notifier(site)
    outputs = [site.folder / f"job-{each}.txt" for each in range(2)]
    jobs = [
        await site.submit("-w", "gpu1", "--mem=100", "--comment=mine", "-o", str(each))
        for each in outputs
    ]
    other = await site.submit("-w", "gpu1", "--mem=100")
    site.run("scontrol", "update", f"jobid={other}", "admincomment=billing|12")
    about = msgspec.structs.replace(order("gpu1"), deadline=datetime(2030, 1, 2, 3, 4, tzinfo=UTC))
    [notice] = await slurm.notify_owners(about)
    assert (notice.owner, notice.failure) == ("root", "")
    assert set(notice.work) == {f"job {each}" for each in (*jobs, other)}

    def comments(job: str) -> list[str]:
        shown = site.run("squeue", "-h", "-j", job, "-O", "Comment:20,admin_comment:500")
        return [each.strip() for each in (shown[:20], shown[20:])]

    text = (
        "Navarch drains gpu1: xid-79 on GPU 3. Work that still runs at 2030-01-02 03:04:00 UTC is "
        "requeued, or cancelled where it cannot be. (replace-1)"
    )
    for each in jobs:
        assert comments(each) == ["mine", text]
    assert comments(other)[1] == "billing|12"

    async def heard() -> bool:
        return sum(text in each.read_text() for each in outputs) == 1

    await eventually(heard, within_seconds=DRAINED_SECONDS_MAX, every=0.1)
    assert [site.job_state(each) for each in (*jobs, other)] == ["RUNNING"] * 3


async def test_what_an_administrator_drained_is_never_resumed(site: SlurmSite) -> None:
    """Navarch resumes its own nodes only, and keeps an administrator's reason and state."""
    slurm = notifier(site)
    site.run("scontrol", "update", "nodename=gpu1", "state=drain", "reason=ticket 12")
    site.run("scontrol", "update", "nodename=gpu2", "state=down", "reason=PSU")
    for each in ("gpu1", "gpu2", "gpu3"):
        await slurm.cordon(order(each, "cordon"))
        await slurm.uncordon(order(each, "uncordon"))
        await slurm.uncordon(order(each, "uncordon"))
    assert [site.reason(each) for each in site.nodes] == ["ticket 12", "PSU", "none"]
    assert [site.state(each) for each in ("gpu1", "gpu2")] == ["idle+drain", "down+drain"]
    assert "drain" not in site.flags("gpu3")


async def test_a_node_that_an_administrator_takes_over_during_its_drain_stays_so(
    site: SlurmSite,
) -> None:
    """A node whose reason an administrator changes is drained to its end, and not resumed."""
    slurm = notifier(site)
    job = await site.submit("-w", "gpu1", "--time=10")
    await slurm.cordon(order("gpu1", "cordon"))
    await slurm.drain(order("gpu1"))
    site.run("scontrol", "update", "nodename=gpu1", "reason=ticket 12: PSU on order")
    await slurm.drain(order("gpu1"))
    assert (await slurm.node_states([node("gpu1")]))["training-gpu1"].cordoned
    await slurm.evict(order("gpu1"))
    await drained(slurm, node("gpu1"))
    await slurm.uncordon(order("gpu1", "uncordon"))
    assert (site.reason("gpu1"), site.state("gpu1")) == ("ticket 12: PSU on order", "idle+drain")
    await site.until_job(job, "PENDING")
    site.run("scontrol", "update", "nodename=gpu1", "state=resume")
    await slurm.cordon(order("gpu1", "cordon"))
    await slurm.uncordon(order("gpu1", "uncordon"))
    assert "drain" not in site.flags("gpu1")


async def test_job_of_a_dead_node_restarts_at_once(site: SlurmSite) -> None:
    """Slurm gives a node up after SlurmdTimeout; Navarch does once both miss it."""
    slurm = notifier(site)
    job = await site.submit("-N2", "--gres=gpu:8")
    await site.kill("gpu1")
    await slurm.drain(order("gpu1", lost=True))
    await drained(slurm, node("gpu1", lost=True))
    assert "down" in site.flags("gpu1")
    await site.until_job(job, "RUNNING")
    assert site.job_nodes(job) == "gpu[2-3]"


async def test_job_of_a_node_that_only_navarch_lost_runs_on(site: SlurmSite) -> None:
    """Where Slurm still hears the node, its job has until the deadline."""
    slurm = notifier(site)
    job = await site.submit("-N1", "-w", "gpu1")
    await slurm.drain(order("gpu1", lost=True))
    for _ in range(5):
        await slurm.workloads([node("gpu1", lost=True)])
    assert (site.flags("gpu1") & {"drain", "down"}, site.job_state(job)) == ({"drain"}, "RUNNING")


@pytest.mark.parametrize("setting", ["cancel", "leave"])
async def test_jobs_that_cannot_be_requeued(site: SlurmSite, setting: str) -> None:
    """Such jobs are cancelled at the deadline, or left if the site says so."""
    slurm = notifier(site, not_requeueable=setting)
    job = await site.submit("-N1", "-w", "gpu1", "--no-requeue")
    await slurm.drain(order("gpu1"))
    await slurm.evict(order("gpu1"))
    left = setting == "leave"
    assert ((await workload(slurm, "gpu1")).total == 1) is left
    assert (site.job_state(job) == "RUNNING") is left


async def test_node_that_comes_back_is_drained_again(site: SlurmSite) -> None:
    """A node that is about to be terminated gets no new jobs, even when resumed."""
    slurm = notifier(site)
    await site.submit("-N1", "-w", "gpu1", script="sleep 4")
    await slurm.drain(order("gpu1"))
    watch = asyncio.create_task(drained(slurm, node("gpu1")))
    site.run("scontrol", "update", "nodename=gpu1", "state=resume")
    await watch
    assert "drain" in site.flags("gpu1")
    assert site.reason("gpu1") == REASON


async def test_drain_outlasts_slurmctld(site: SlurmSite) -> None:
    """While slurmctld is away nothing counts as drained; when it is back the drain ends."""
    slurm = notifier(site, timeout=2)
    job = await site.submit("-N1", "-w", "gpu1", script="sleep 12")
    await slurm.drain(order("gpu1"))
    watch = asyncio.create_task(drained(slurm, node("gpu1")))
    await site.stop("slurmctld")
    with pytest.raises(SlurmUnavailableError, match="slurmctld"):
        await slurm.cordon(order("gpu2", "cordon"))
    assert not watch.done()
    await site.start_controller()
    await watch
    assert site.job_state(job) in ("COMPLETED", "")
    assert site.reason("gpu1") == REASON


async def test_drain_that_a_killed_slurmctld_forgot_is_repeated(site: SlurmSite) -> None:
    """Slurmctld stores what it accepted seconds later: killed before, it knows no drain."""
    slurm = notifier(site, timeout=2)
    await site.submit("-N1", "-w", "gpu1")
    watch = asyncio.create_task(drained(slurm, node("gpu1")))
    await slurm.drain(order("gpu1"))
    await site.kill("slurmctld")
    await site.start_controller()
    await watch
    assert site.reason("gpu1") == REASON


async def test_replacement_registers_itself_and_is_removed(site: SlurmSite) -> None:
    """A dynamic node can be reserved, which waits for it, drained and resumed like any other."""
    slurm = notifier(site)
    with pytest.raises(SlurmUnavailableError, match="has not registered"):
        await slurm.cordon(order("dyn1", "reserve"))
    await site.start_dynamic_node("dyn1")
    await site.until_state("dyn1", "idle+dynamic_norm")
    await slurm.cordon(order("dyn1", "reserve"))
    assert "drain" in site.flags("dyn1")
    await slurm.uncordon(order("dyn1", "open"))
    job = await site.submit("-p", "training", "-N1", "--gres=gpu:8")
    assert site.job_nodes(job) == "dyn1"

    # Another machine may have the name: a node that responds stays, and so does one with a job.
    with pytest.raises(SlurmUnavailableError, match="still responds"):
        await slurm.node_gone(node("dyn1"))
    await slurm.drain(order("dyn1"))
    await slurm.evict(order("dyn1"))
    await site.kill("dyn1")

    async def deleted() -> bool:
        with suppress(SlurmUnavailableError, SlurmRefusedError):
            await slurm.node_gone(node("dyn1"))
            return "dyn1" not in site.run("sinfo", "-haN", "-o", "%N")
        return False

    await eventually(deleted, within_seconds=DRAINED_SECONDS_MAX, every=0.5)
    await slurm.node_gone(node("dyn1"))
    for name in ("gpu1", "gpu2"):
        await slurm.node_gone(node(name))
    assert [site.state(each) for each in site.nodes] == ["idle", "idle", "idle"]


async def test_unknown_nodes_and_dangerous_names_fail_with_a_remedy(site: SlurmSite) -> None:
    """A node under another name may have work; one hostname must not drain the cluster."""
    slurm = notifier(site)
    for name, problem in (("gpu9", "knows no node"), ("gpu[1-3]", "no name"), ("ALL", "no name")):
        with pytest.raises(StepFailure, match=problem) as failure:
            await slurm.drain(order(name))
        assert "node_name" in failure.value.remedy
    await slurm.drain(order("gpu9", lost=True))
    await notifier(site, unknown_nodes="ignore").drain(order("gpu9"))
    assert [site.state(each) for each in site.nodes] == ["idle", "idle", "idle"]


async def test_missing_right_is_named(site: SlurmSite, tmp_path: Path) -> None:
    """A notifier that may not change nodes fails its steps, and says which right it lacks."""
    for each in ("sinfo", "squeue", "scontrol"):
        script = tmp_path / each
        script.write_text(f'#!/bin/sh\nexec setpriv --reuid=65534 --clear-groups {each} "$@"\n')
        script.chmod(0o755)
    with pytest.raises(StepFailure, match="Invalid user id") as failure:
        await notifier(site, commands=str(tmp_path)).cordon(order("gpu1"))
    assert "operator of Slurm" in failure.value.remedy


async def test_many_drains_cost_one_question(site: SlurmSite) -> None:
    """Slurm answers about all nodes in one sinfo and one squeue."""
    slurm = notifier(site)
    await asyncio.gather(*(slurm.drain(order(each)) for each in site.nodes))
    answers = await slurm.workloads([node(each) for each in site.nodes])
    assert all(isinstance(each, NodeWorkload) and each.drained for each in answers.values())


async def test_what_others_did_and_what_failed_is_reported(site: SlurmSite) -> None:
    """An administrator's drain and DOWN, and a job that failed; nothing about our own drain."""
    slurm = notifier(site)
    failed = site.run("sbatch", "--parsable", "-w", "gpu3", "-o", "/dev/null", "--wrap", "exit 3")
    await site.until_job(failed, "FAILED")
    site.run("scontrol", "update", "nodename=gpu1", "state=drain", "reason=ticket 12")
    site.run("scontrol", "update", "nodename=gpu2", "state=down", "reason=PSU")
    await slurm.cordon(order("gpu3", "cordon"))
    states = await slurm.node_states([node(each) for each in site.nodes])
    found = {name: (each.ready, each.cordoned, each.reason) for name, each in states.items()}
    assert found == {
        "training-gpu1": (True, True, "drained by root: ticket 12"),
        "training-gpu2": (False, False, "DOWN: PSU"),
        "training-gpu3": (True, False, ""),
    }
    (job,) = states["training-gpu3"].failed
    assert (job.id, job.owner, job.reason) == (f"job {failed}", "root", "FAILED (wrap)")


async def test_a_job_that_says_so_is_asked_for_a_checkpoint_and_others_are_left_alone(
    site: SlurmSite,
) -> None:
    """SIGUSR1 ends a script that does not catch it, so only a job with the comment gets it.

    One that announces its next checkpoint is reported, and not signalled.
    """
    slurm = notifier(site)
    saved = site.folder / "saved"
    script = f"trap 'echo saved >> {saved}; sleep 3; exit 0' USR1; sleep 300 & wait"
    catches = await site.submit(
        "-N2", "-n2", "-c1", "--mem=100", "--comment=navarch-checkpoint", "--time=10", script=script
    )
    silent = await site.submit("-w", "gpu1", "-c1", "--mem=100", "--time=10")
    await asyncio.sleep(1.0)  # until the batch script has set its trap
    until = SystemClock().now() + timedelta(seconds=60)
    for name in site.job_hosts(catches):
        about = msgspec.structs.replace(order(name, "checkpoint"), deadline=until)
        asked = await slurm.checkpoint(about)
        assert [each.id for each in asked] == [f"job {catches}"]
    await site.until_job(catches, "COMPLETED", "")
    assert saved.read_text() == "saved\n"
    assert site.job_state(silent) == "RUNNING"
    at = until.replace(microsecond=0)
    comment = f"Comment=epoch 7 navarch-checkpoint-at={at.isoformat()}"
    site.run("scontrol", "update", f"JobId={silent}", comment)
    [work] = await slurm.checkpoint(order("gpu1", "checkpoint"))
    assert (work.id, work.checkpoint_at) == (f"job {silent}", at)
    assert site.job_state(silent) == "RUNNING"
    site.run("scancel", silent)
    await site.until_job(silent, "CANCELLED", "")
