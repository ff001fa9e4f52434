"""The Slurm notifier over slurmrestd whose API changes nodes: a strict server, from v0.0.39 on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import ValidationError
from starlette.responses import JSONResponse, PlainTextResponse, Response

from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock
from services.workload_systems.slurm_client import (
    NodeChange,
    SlurmRefusedError,
    SlurmUnavailableError,
)
from services.workload_systems.slurm_commands import SlurmCommands
from services.workload_systems.slurm_rest import SlurmRest, SlurmRestOptions
from tests.workload_systems.slurm_rest_server import (
    TOKEN,
    USER,
    StrictNode,
    StrictSlurm,
    strict_slurm,
)

VERSIONS = (39, 40, 41, 42, 43, 44)
REASON = "navarch: xid-79 on GPU 3 (replace-1)"


def node(name: str, **more: Any) -> NodeReference:
    return NodeReference(pool="training", node=f"training-{name}", hostname=name, **more)


def order(name: str, step: str = "drain", **more: Any) -> WorkloadOrder:
    about = node(name, **more)
    return WorkloadOrder(node=about, reason="xid-79 on GPU 3", key=f"replace-1/{step}")


@asynccontextmanager
async def notifier(number: int, **more: Any) -> AsyncIterator[tuple[SlurmNotifier, StrictSlurm]]:
    async with strict_slurm(number) as (url, slurm):
        slurm.nodes = {"gpu1": StrictNode(), "gpu2": StrictNode()}
        rest = SlurmRestOptions(url=url, user=USER, token=TOKEN)
        options = SlurmNotifier.Options(rest=rest, commands="/nonexistent", **more)
        made = SlurmNotifier(options=options, clock=SystemClock())
        try:
            yield made, slurm
        finally:
            await made.close()


async def workload(slurm: SlurmNotifier, name: str) -> NodeWorkload:
    answer = (await slurm.workloads([node(name)]))[f"training-{name}"]
    assert isinstance(answer, NodeWorkload)
    return answer


@pytest.mark.parametrize("number", VERSIONS)
async def test_a_node_is_drained_waited_for_and_resumed(number: int) -> None:
    """The node's job is reported with its times; an administrator's drain stays."""
    async with notifier(number) as (made, slurm):
        job = {"state": ["RUNNING"], "nodes": "gpu[1-2]", "end": 1_900_000_000}
        slurm.jobs[7] = {**job, "start": 1_899_990_000}
        slurm.nodes["gpu2"] = StrictNode({"IDLE", "DRAIN"}, "ticket 12", "carol")
        await made.cordon(order("gpu1", "cordon"))
        await made.drain(order("gpu1"))
        await made.cordon(order("gpu2", "cordon"))
        assert slurm.calls == [f"gpu1 DRAIN {REASON}"]
        busy = await workload(made, "gpu1")
        assert (busy.drained, busy.total) == (False, 1)
        running = busy.running[0]
        assert (running.id, running.owner, running.gang) == ("job 7", "alice", "7")
        assert running.started_at is not None
        assert running.ends_at is not None
        assert running.started_at.timestamp() == 1_899_990_000
        assert running.ends_at.timestamp() == 1_900_000_000
        slurm.jobs[7]["state"] = ["COMPLETED", "COMPLETING"] if number > 39 else ["COMPLETING"]
        assert not (await workload(made, "gpu1")).drained
        del slurm.jobs[7]
        assert (await workload(made, "gpu1")).drained
        for each in ("gpu1", "gpu2"):
            await made.uncordon(order(each, "uncordon"))
            await made.uncordon(order(each, "uncordon"))
        assert slurm.calls[1:] == ["gpu1 RESUME"]
        assert slurm.nodes["gpu2"].reason == "ticket 12"
        checks = {each.what: each for each in await made.self_check()}
        assert all(each.passed for each in checks.values())
        assert f"UP, over slurmrestd v0.0.{number}" in checks["connect to slurmctld"].detail


@pytest.mark.parametrize("number", VERSIONS)
async def test_at_the_deadline_the_node_is_set_down_which_requeues_its_jobs(number: int) -> None:
    """No API requeues a job; `leave` leaves them until the node ends."""
    async with notifier(number) as (made, slurm):
        slurm.jobs[7] = {"state": ["RUNNING"], "nodes": "gpu1", "end": 1_900_000_000}
        await made.drain(order("gpu1"))
        await made.evict(order("gpu1"))
        assert slurm.calls == [f"gpu1 DRAIN {REASON}", f"gpu1 DOWN {REASON}", "requeued 7"]
        assert (await workload(made, "gpu1")).drained
        await made.uncordon(order("gpu1", "uncordon"))
        assert slurm.nodes["gpu1"].state == {"IDLE"}
    async with notifier(number, not_requeueable="leave") as (made, slurm):
        slurm.jobs[7] = {"state": ["RUNNING"], "nodes": "gpu1", "end": 1_900_000_000}
        await made.drain(order("gpu1"))
        await made.evict(order("gpu1"))
        assert slurm.calls == [f"gpu1 DRAIN {REASON}"]


@pytest.mark.parametrize("number", VERSIONS)
async def test_a_checkpoint_is_a_signal_to_the_batch_script_alone(number: int) -> None:
    """v0.0.39 cannot: the job is not asked, and drains as without it."""
    async with notifier(number) as (made, slurm):
        job = {"state": ["RUNNING"], "nodes": "gpu1", "end": 0, "comment": "navarch-checkpoint"}
        slurm.jobs = {7: job, 8: {**job, "comment": ""}}
        asked = await made.checkpoint(order("gpu1", "drain"))
        if number == 39:
            assert ([*asked], slurm.calls) == ([], [])
        else:
            assert [each.id for each in asked] == ["job 7"]
            assert slurm.calls == ["job 7 USR1 BATCH_JOB"]


@pytest.mark.parametrize("number", VERSIONS)
async def test_users_hear_of_a_drain_by_a_comment_beside_their_own(number: int) -> None:
    """Slurmrestd sends no messages; a comment of the site stays, and jobs elsewhere get none."""
    async with notifier(number) as (slurm, cluster):
        running = {"state": ["RUNNING"], "nodes": "gpu1", "end": 0}
        cluster.jobs = {
            1: {**running, "comment": "mine"},
            2: {**running, "admin_comment": "billing 12"},
            3: {**running, "nodes": "gpu2"},
        }
        [notice] = await slurm.notify_owners(order("gpu1"))
        assert (notice.owner, notice.work, notice.failure) == ("alice", ("job 1", "job 2"), "")
        comments = [each.get("admin_comment", "") for each in cluster.jobs.values()]
        assert comments[0].startswith("Navarch drains gpu1: xid-79 on GPU 3. Work that still runs ")
        assert comments[1:] == ["billing 12", ""]
        assert cluster.jobs[1]["comment"] == "mine"


@pytest.mark.parametrize("number", VERSIONS)
async def test_entries_are_changed_and_deleted(number: int) -> None:
    """A cloud node gets its machine's address, and is powered down; a dynamic one is deleted."""
    async with notifier(number) as (made, slurm):
        slurm.nodes["gpu1"].state = {"IDLE", "CLOUD"}
        slurm.nodes["gpu2"].state = {"DOWN", "DYNAMIC_NORM"}
        await made.node_registered(node("gpu1", address="10.0.0.7"))
        assert (slurm.nodes["gpu1"].address, slurm.nodes["gpu1"].hostname) == ("10.0.0.7", "gpu1")
        await made.node_gone(node("gpu1"))
        await made.node_gone(node("gpu2"))
        assert slurm.calls[1:] == ["gpu1 POWER_DOWN+POWERED_DOWN", "deleted gpu2"]


FAILURES: list[Any] = [
    pytest.param(PlainTextResponse("x", 503), SlurmUnavailableError, "503", id="busy"),
    pytest.param(PlainTextResponse("x", 401), SlurmUnavailableError, "scontrol token", id="token"),
    pytest.param(
        JSONResponse({"errors": [{"description": "Unable to contact slurm controller"}]}, 500),
        *(SlurmUnavailableError, "Unable to contact"),
        id="no controller",
    ),
    pytest.param(
        JSONResponse({"errors": [{"error": "Access/permission denied"}]}, 500),
        *(StepFailure, "denied"),
        id="no right",
    ),
    pytest.param(
        JSONResponse({"errors": [{"error": "Invalid node state specified"}]}, 500),
        *(SlurmRefusedError, "Invalid node state"),
        id="refused",
    ),
    pytest.param(
        JSONResponse({"errors": [{"error": "Invalid node name specified"}]}, 200),
        *(SlurmRefusedError, "Invalid node name"),
        id="refused with 200",
    ),
    pytest.param(
        PlainTextResponse("<html>", 200), SlurmUnavailableError, "not an answer", id="html"
    ),
    pytest.param(JSONResponse({"meta": {}}, 500), SlurmUnavailableError, "500", id="no words"),
    pytest.param(PlainTextResponse("x", 404), SlurmUnavailableError, "port 6820", id="elsewhere"),
]


@pytest.mark.parametrize(("answer", "kind", "says"), FAILURES)
async def test_kinds_of_failure_are_distinguished(
    answer: Response, kind: type[Exception], says: str
) -> None:
    """An outage is retried; a missing right fails the step; the rest is Slurm's refusal.

    A read that fails is never an empty list: that would be a drained node.
    """
    async with strict_slurm(41) as (url, slurm):
        options = SlurmRestOptions(url=url, user=USER, token=TOKEN)
        commands = SlurmCommands(folder="/nonexistent", conf="", seconds_max=5)
        rest = SlurmRest(options, commands, 5.0, SystemClock())
        await rest.api()
        slurm.fails = answer
        with pytest.raises(kind, match=says) as failed:
            await rest.change_node("gpu1", NodeChange(state="DRAIN", reason="x"))
        assert TOKEN not in str(failed.value)
        for read in (rest.nodes, rest.jobs, rest.ping):
            with pytest.raises((SlurmUnavailableError, StepFailure)):
                await read()
        await rest.close()


@pytest.mark.parametrize("answer", [{}, {"nodes": None}, {"errors": [], "meta": {}}])
async def test_an_answer_without_its_list_is_an_outage(answer: dict[str, Any]) -> None:
    """A missing list of jobs is an outage; taken as empty it would drain every node."""
    async with notifier(41) as (made, slurm):
        await made.drain(order("gpu1"))
        slurm.fails = JSONResponse(answer)
        with pytest.raises(SlurmUnavailableError, match="no list of jobs"):
            await made.workloads([node("gpu1")])


async def test_the_newest_version_that_is_known_is_used() -> None:
    """One that is configured in its place; after an upgrade the one that is there then."""
    async with notifier(44) as (made, slurm):
        assert "v0.0.44" in (await made.self_check())[0].detail
        slurm.fails = PlainTextResponse("gone", 404)
        with pytest.raises(SlurmUnavailableError):
            await made.cordon(order("gpu1", "cordon"))
        slurm.fails = None
        await made.cordon(order("gpu1", "cordon"))
        assert slurm.calls == [f"gpu1 DRAIN {REASON}"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"token": "t", "token_file": "f"}, "either"),
        ({}, "either"),
        ({"token": "t", "url": "slurmctld:6820"}, "not a URL"),
        ({"token": "t", "user": ""}, "user"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, Any], says: str) -> None:
    """Options that cannot work are refused with what to write."""
    with pytest.raises((ValueError, ValidationError), match=says):
        SlurmRestOptions(**({"url": "http://slurmctld:6820", "user": USER} | given))


@pytest.mark.parametrize("number", VERSIONS)
async def test_jobs_that_wait_are_read_with_their_tasks(number: int) -> None:
    """Each task of an array, the types of GPUs, and jobs of several partitions."""
    async with strict_slurm(number) as (url, slurm):
        array = {"array_task_string": "1-3,9%2", "tres_per_node": "gres/gpu:h100:2"}
        slurm.jobs = {
            7: waiting(partition="gpu,spot", tres_per_node="gres:gpu:8"),
            8: waiting(partition="gpu", state_reason="Dependency", **array),
            9: waiting(partition="cpu"),
            10: {"state": ["RUNNING"], "end": 0, "nodes": "gpu1", "partition": "gpu"},
        }
        options = SlurmRestOptions(url=url, user=USER, token=TOKEN)
        commands = SlurmCommands(folder="/nowhere", conf="", seconds_max=1.0)
        rest = SlurmRest(options, commands, 10.0, SystemClock())
        found = await rest.queue("gpu")
        await rest.close()
    first, *tasks = found
    assert (first.node_count, first.gpus, first.reason, len(tasks)) == (2, 8, "Resources", 4)
    assert {(each.gpus, each.gpu_types, each.reason) for each in tasks} == {
        (2, frozenset({"h100"}), "Dependency")
    }


def waiting(**more: str) -> dict[str, Any]:
    return {"state": ["PENDING"], "end": 0, "nodes": "", "state_reason": "Resources", **more}
