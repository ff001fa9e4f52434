"""The Ray notifier's decisions, against a dashboard of a few lines; tests/real has the real one."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas.duration import Duration
from schemas.settings import PluginSettings
from services.notifier.conformance.notifier_suite import order as suite_order
from services.notifier.workload.ray.ray_state import find_raylets, node_workload
from services.notifier.workload.ray_notifier import RayNotifier
from services.notifier.workload.workload_notifier import NodeReference, NodeWorkload, StepFailure
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import load_plugin
from services.workload_systems.ray_answers import RayActor, RayJob, Raylet, RayTask, RunningState
from services.workload_systems.ray_client import RayUnavailableError
from tests.notifier.workload_sites import NODES, RaySite


def order(node: str, step: str = "drain", **about: Any) -> Any:
    """Return the order of one step of a replacement."""
    made = suite_order(node, step)
    return msgspec.structs.replace(made, node=msgspec.structs.replace(made.node, **about))


@pytest.fixture
async def site() -> AsyncIterator[RaySite]:
    """Yield a running dashboard."""
    async with RaySite().running() as made:
        assert isinstance(made, RaySite)
        yield made


@pytest.fixture
async def ray(site: RaySite) -> AsyncIterator[RayNotifier]:
    """Yield the notifier of the dashboard."""
    options = RayNotifier.Options(dashboard=site.url, node_name="{node}", timeout=Duration(5))
    made = RayNotifier(options=options, clock=SystemClock())
    yield made
    await made.close()


async def answer(ray: RayNotifier, node: str, **about: Any) -> Any:
    """Return what the notifier says of a node."""
    reference = NodeReference(pool="training", node=node, **about)
    return (await ray.workloads([reference]))[node]


async def test_two_hundred_drains_are_few_jobs(site: RaySite, ray: RayNotifier) -> None:
    """Each job costs the head seconds; what waits for one shares the next."""
    site.job_takes_long = True
    await asyncio.gather(*(ray.drain(order(each)) for each in NODES for _ in range(10)))
    assert set(site.cordons) == set(NODES)
    assert len(site.orders) <= 3


async def test_a_node_that_comes_back_during_its_drain_is_drained_again(
    site: RaySite, ray: RayNotifier
) -> None:
    """A raylet that was started again is another one to Ray; a new head knows no drains."""
    site.place("n1")
    await ray.drain(order("n1"))
    assert not (await answer(ray, "n1")).drained
    assert len(site.orders) == 1
    site.head_started_ms += 1
    assert not (await answer(ray, "n1")).drained
    assert len(site.orders) == 2
    site.names = {
        **{key: each for key, each in site.names.items() if each != "n1"},
        "abcdef01": "n1",
    }
    assert not (await answer(ray, "n1")).drained
    assert [each["raylet"] for each in site.orders[-1]] == ["abcdef01"]
    site.leave("n1")
    assert (await answer(ray, "n1")).drained


async def test_an_uncordon_waits_for_a_raylet_that_is_not_draining(
    site: RaySite, ray: RayNotifier
) -> None:
    """Ray cannot undo a drain, so the step says what to do until it was done."""
    await ray.uncordon(order("n1", "uncordon"))
    site.place("n1")
    await ray.cordon(order("n1", "cordon"))
    with pytest.raises(RayUnavailableError, match=r"draining, which Ray cannot undo: start it"):
        await ray.uncordon(order("n1", "uncordon"))
    site.leave("n1")
    with pytest.raises(RayUnavailableError, match="has ended: start it again"):
        await ray.uncordon(order("n1", "uncordon"))
    site.cordons.clear()
    site.dead.clear()
    await ray.uncordon(order("n1", "uncordon"))


async def test_a_new_node_is_not_drained(site: RaySite, ray: RayNotifier) -> None:
    """The raylet of a new node is idle, so a drain would end it before the node was ever used."""
    for step in ("reserve", "open", "promote"):
        await ray.cordon(order("n1", step))
        await ray.uncordon(order("n1", step))
    assert site.orders == []


async def test_the_head_and_unknown_nodes_are_refused(site: RaySite, ray: RayNotifier) -> None:
    """One would end the cluster; the other may have work under another name."""
    with pytest.raises(StepFailure, match="runs Ray's head"):
        await ray.drain(order("head"))
    with pytest.raises(StepFailure, match="Ray knows no node 'typo'") as failure:
        await ray.drain(order("typo"))
    assert "navarch-node=typo" in failure.value.remedy
    assert isinstance(await answer(ray, "typo"), StepFailure)
    assert (await answer(ray, "typo", lost=True)).drained
    assert site.orders == []


async def test_a_young_head_may_not_know_its_nodes_yet(site: RaySite, ray: RayNotifier) -> None:
    """Raylets outlive it for a minute, with their work."""
    assert not (await answer(ray, "n1")).drained
    site.head_started_ms = int(SystemClock().now().timestamp() * 1000)
    site.names = {"00000000": "head"}
    known: NodeWorkload = await answer(ray, "n1")
    assert not known.drained
    with pytest.raises(RayUnavailableError, match="has just started"):
        await ray.drain(order("n1"))
    site.head_started_ms = 1
    assert (await answer(ray, "n1")).drained


async def test_a_machine_that_is_gone_is_removed_at_once(site: RaySite, ray: RayNotifier) -> None:
    """Ray restarts its work without waiting for its own health check."""
    site.place("n1")
    await ray.drain(order("n1", gone=True))
    assert "n1" in site.dead


async def test_the_check_names_what_is_missing(site: RaySite, ray: RayNotifier) -> None:
    """Connection, nodes and orders; a named node is only looked for."""
    assert [each.what for each in await ray.self_check()] == [
        "connect to the dashboard",
        "list nodes",
        "give orders",
    ]
    [found] = await ray.check_order(order("n1", "cordon"))
    assert "cannot undo" in found.detail
    assert not site.cordons


HERE = NodeReference(pool="training", node="n1", hostname="gpu1", address="10.0.0.1")


@pytest.mark.parametrize(
    ("raylets", "found"),
    [
        ([("aaaaaaaa", "x", "10.0.0.9", "n1"), ("bbbbbbbb", "gpu1", "10.0.0.1", "")], "aaaaaaaa"),
        ([("aaaaaaaa", "gpu1", "10.0.0.9", ""), ("bbbbbbbb", "y", "10.0.0.1", "")], "aaaaaaaa"),
        ([("aaaaaaaa", "y", "10.0.0.1", "")], "aaaaaaaa"),
        ([("aaaaaaaa", "y", "10.0.0.1", "n2")], ""),
        (
            [("aaaaaaaa", "DEAD", "10.0.0.1", "n1"), ("bbbbbbbb", "y", "10.0.0.1", "")],
            "aaaaaaaa bbbbbbbb",
        ),
    ],
)
def test_which_raylets_a_node_has(raylets: list[tuple[str, ...]], found: str) -> None:
    """Raylets are found by label, name or address.

    Beside dead ones, what was started again without a label is found too.
    """
    listed = [
        Raylet(
            node_id=identity,
            node_name=name,
            state="DEAD" if name == "DEAD" else "ALIVE",
            node_ip=address,
            labels={"navarch-node": label} if label else {},
        )
        for identity, name, address, label in raylets
    ]
    ids = [each.node_id for each in find_raylets("gpu1", HERE, listed)]
    assert [
        each[: len(part)] for each, part in zip(ids, found.split(), strict=True)
    ] == found.split()


def test_what_runs_is_listed_by_job() -> None:
    """Each job has its owner and gang.

    Drivers, Navarch's own orders and what ended do not count as more.
    """
    state = RunningState(
        actors=(
            RayActor("ALIVE", "02", "Trainer", "t", "a"),
            RayActor("DEAD", "02", "Trainer", "t", "a"),
            RayActor("ALIVE", "02", "Trainer", "t", "b"),
            RayActor("ALIVE", "01", "JobSupervisor", "_ray_internal_job_actor_navarch-1", "a"),
            RayActor("ALIVE", "01", "JobSupervisor", "_ray_internal_job_actor_train\x1b[2J", "a"),
        ),
        tasks=(
            RayTask("RUNNING", "NORMAL_TASK", "03", "step", "a"),
            RayTask("RUNNING", "ACTOR_TASK", "02", "fit", "a"),
        ),
        jobs=(RayJob("02", "train-1", "RUNNING", "python t.py", {"user": "alice"}, 1.8e12),),
    )
    found = node_workload({"a"}, state)
    assert [(each.id, each.owner, each.gang) for each in found.running] == [
        ("job 03", "", ""),
        ("job train\\u001b[2J", "", ""),
        ("job train-1", "alice", "train-1"),
    ]
    assert [each.started_at for each in found.running] == [
        *(None, None),
        datetime.fromtimestamp(1_800_000_000, UTC),
    ]
    assert found.total == 3
    assert not found.drained


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dashboard": "head:8265"}, "dashboard is not a URL"),
        ({}, "dashboard"),
        ({"dashboard": "http://h:8265", "node_name": "{name}"}, "write a template of"),
        ({"dashboard": "http://h:8265", "poll": "0s"}, "poll must be more than 0"),
        ({"dashboard": "http://h:8265", "at_deadline": "kill"}, "at_deadline"),
        ({"dashboard": "http://h:8265", "python": ""}, "python is empty"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    """The refusal names the setting and what to write instead."""
    settings = PluginSettings(type="ray", options=options, path="notifiers.research")
    with pytest.raises(ConfigurationError, match=problem):
        load_plugin("navarch.notifiers", settings, None, {"ray": RayNotifier})
