"""The Kubernetes notifier against a server that answers as the API does."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from services.notifier.workload.kubernetes.missing_rights import TRIED_SECONDS, RefusedOrders
from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock
from services.workload_systems.kubernetes_client import MissingRightError
from tests.notifier.kubernetes_site import KubernetesSite, kubeconfig, status
from tests.notifier.workload_sites import NODES
from tests.support.inprocess import eventually

NODE = NODES[0]
HOUR = timedelta(hours=1)
NO_PATCH = 'nodes "n1" is forbidden: User "navarch" cannot patch resource "nodes"'


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[KubernetesSite]:
    """Serve a cluster with nodes."""
    async with KubernetesSite(tmp_path).running() as made:
        assert isinstance(made, KubernetesSite)
        yield made


@pytest.fixture
async def notifier(site: KubernetesSite) -> AsyncIterator[KubernetesNotifier]:
    """A notifier of that cluster."""
    made = site.make()
    assert isinstance(made, KubernetesNotifier)
    yield made
    await made.close()


def order(step: str = "cordon", ends: timedelta = HOUR, **known: str) -> WorkloadOrder:
    """An order about a node, of which this is known, and when the drain ends."""
    about = replace(NodeReference(pool="gpu", node=NODE, hostname=NODE), **known)
    return WorkloadOrder(node=about, key=f"replace-1/{step}", deadline=datetime.now(UTC) + ends)


async def test_an_adopted_node_without_a_provider_id_is_found_by_its_uid(
    site: KubernetesSite, notifier: KubernetesNotifier
) -> None:
    """The UID leads to it where its agent reported the name of its pod as the host name."""
    await notifier.cordon(
        order(hostname="navarch-agent-x7k2p", provider_id=f"kubernetes://uid-{NODE}")
    )
    assert site.is_cordoned(NODE)


async def test_a_new_login_resumes_the_watches_at_once(
    site: KubernetesSite, notifier: KubernetesNotifier
) -> None:
    """A drain that begins then would see no pods until the old watches' silence is noticed."""
    await notifier.drain(order("drain"))
    (site.folder / "kubeconfig").write_text(kubeconfig(site.url, "new"))

    def expired(request: Request) -> Response | None:
        valid = request.headers["Authorization"] == "Bearer new"
        return None if valid else status(401, "Unauthorized")

    site.refuses = expired
    await notifier.cordon(order())
    site.place(NODE, owner="ReplicaSet")
    async with asyncio.timeout(20):
        await eventually(lambda: answered(site.evicted == [f"pod-{NODE}"]), every=0.05)


async def answered(what: bool) -> bool:
    """Return a condition, for `eventually`."""
    return what


async def test_a_pod_is_asked_to_leave_before_it_is_deleted(
    site: KubernetesSite, notifier: KubernetesNotifier
) -> None:
    """Nothing is deleted at the deadline where the API answers no eviction."""
    site.place(NODE, owner="ReplicaSet")
    deleted = list[str]()

    def no_evictions(request: Request) -> Response | None:
        if request.method == "DELETE":
            deleted.append(request.url.path)
        away = request.url.path.endswith("/eviction")
        return Response("", status_code=200, headers={"Content-Length": "9"}) if away else None

    site.refuses = no_evictions
    with pytest.raises(ConnectionError, match="no eviction of 1 pods was answered"):
        await notifier.evict(order("drain"))
    assert not deleted

    def budget(request: Request) -> Response | None:
        return status(429, "budget") if no_evictions(request) else None

    site.refuses = budget
    await notifier.evict(order("drain"))
    assert deleted == [f"/api/v1/namespaces/default/pods/pod-{NODE}"]


async def test_a_drain_whose_time_is_up_evicts_no_more(
    site: KubernetesSite, notifier: KubernetesNotifier
) -> None:
    """Evictions begin again once the drain is ordered with another deadline."""
    await notifier.drain(order("drain", timedelta(seconds=-1)))
    site.place(NODE, owner="ReplicaSet")
    found = (await notifier.workloads([order().node]))[NODE]
    assert not isinstance(found, StepFailure)
    assert (found.total, found.drained, found.detail) == (1, False, "")
    await asyncio.gather(*(notifier.workloads([order().node]) for _ in range(20)))
    assert not site.evicted
    await notifier.drain(order("drain"))
    async with asyncio.timeout(20):
        await eventually(lambda: answered(site.evicted == [f"pod-{NODE}"]), every=0.05)


class MovedClock(SystemClock):
    """A clock that the test moves."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_an_order_without_a_right_is_repeated_for_a_minute() -> None:
    """Then it is refused; what undoes another order is repeated until the right is there."""
    clock = MovedClock()
    rights, refused = RefusedOrders(clock), MissingRightError("PATCH", 403, NO_PATCH)

    def tried(*, always: bool = False) -> type[BaseException]:
        with (
            pytest.raises((PermissionError, StepFailure), match="cannot patch") as raised,
            rights.needed(order(), "kubectl apply", always=always),
        ):
            raise refused
        return raised.type

    assert tried() is PermissionError
    clock.seconds += TRIED_SECONDS
    assert tried() is StepFailure
    assert tried(always=True) is PermissionError
    with rights.needed(order(), "kubectl apply"):
        pass
    assert tried() is PermissionError


@pytest.mark.parametrize(("code", "is_informed"), [(201, True), (409, True), (403, False)])
async def test_an_event_that_exists_already_informs_its_owner(
    site: KubernetesSite, notifier: KubernetesNotifier, code: int, *, is_informed: bool
) -> None:
    """A drain that is delivered again writes the event of a pod again, and that is no failure."""
    site.place(NODE)

    def answer(request: Request) -> Response | None:
        is_event = request.method == "POST" and request.url.path.endswith("/events")
        return status(code, "events") if is_event else None

    site.refuses = answer
    [notice] = await notifier.notify_owners(order("drain"))
    assert notice.work == (f"default/pod-{NODE}",)
    assert is_informed == (not notice.failure)
