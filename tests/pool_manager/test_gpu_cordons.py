"""A faulty GPU alone is cordoned while its node stays in service; else the node leaves it."""

from datetime import timedelta

import msgspec
import pytest

from schemas.breaker_state import Breaker
from schemas.duration import Duration
from schemas.enums import SagaKind
from schemas.node_events import GpuIdentity, Verdict
from schemas.node_records import NodeRecord, RemediationAttempt, WorkloadView
from schemas.pool_events import QuarantineFull
from schemas.pool_records import OpenSaga
from schemas.saga_params import SagaParams
from schemas.settings import HealthSpec, PluginSettings, WindowSpec
from services.pool_manager.planner.node_projection import apply_event
from services.pool_manager.planner.remediation.gpu_cordons import AGAIN_SECONDS
from services.pool_manager.planner.remediator import Ladder
from services.pool_manager.planner.saga_projection import leaving_node
from services.pool_manager.planner.sizing.open_sagas import begin
from services.saga.definitions.saga_steps import admitted
from services.saga.saga_state import SagaState, StepState
from tests.pool_manager.test_quarantine import NOW, OUT, decided, node, pool, unhealthy
from tests.support.saga_states import saga_state

CALM = Breaker()
FAILED = {"gpu_cordon_failed_at": NOW - timedelta(seconds=1)}
REPAIRED = {
    "sagas": 1,
    "attempts": (
        RemediationAttempt(saga="reset-gpu-a-1", kind="reset-gpu", at=NOW, outcome="failed"),
    ),
}
SERVICE = (WindowSpec(name="s", kind="service", start="0 0 * * *", duration=Duration(86_400)),)


def faulty(name: str = "a", **changes: object) -> NodeRecord:
    """A node of whose GPUs the last verdict names one."""
    usual = {"health": "degraded", "health_action": "reset_gpu", "faulty_gpus": (3,)}
    return node(name, **(usual | {"health_fault": name, "health_gpu": 3} | changes))


def cordoned(name: str = "a", **changes: object) -> NodeRecord:
    """One that gets no new work on that GPU."""
    return faulty(name, **({"cordoned_gpus": (3,)} | changes))


BEGUN = [("cordon-gpus-a-1", (3,))]
LIFTED = [("cordon-gpus-a-1", ())]


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (faulty(), BEGUN),
        (cordoned(), []),
        (cordoned(faulty_gpus=(5,)), [("cordon-gpus-a-1", (5,))]),
        (faulty(cordoned=True), []),
        (faulty(lost=True, lost_at=NOW, provider_state="gone"), [("replace-a-1", ())]),
        (faulty(held_until=NOW + timedelta(hours=1)), []),
        (faulty(workload=WorkloadView(system="s", cordoned=True)), []),
        (faulty(health="unhealthy"), [("quarantine-a-1", ())]),
        (cordoned(health="unhealthy"), [("quarantine-a-1", ())]),
        # No GPU is faulty any more.
        (node("a", cordoned_gpus=(3,)), LIFTED),
        (node("a", health="degraded", cordoned_gpus=(3,)), LIFTED),
        (node("a", health="unknown", cordoned_gpus=(3,)), []),
        (unhealthy("a", cordoned_gpus=(3,), cordoned=True), []),
        (node("a", cordoned_gpus=(3,), lost=True, lost_at=NOW), []),
        (node("a", cordoned_gpus=(3,), **FAILED), []),
        (
            node("a", cordoned_gpus=(3,), gpu_cordon_failed_at=NOW - timedelta(seconds=60)),
            LIFTED,
        ),
        # Its quarantine is ended first.
        (node("a", cordoned_gpus=(3,), **OUT), [("uncordon-a-1", ())]),
    ],
)
def test_what_is_ordered_depends_on_the_node_alone(
    about: NodeRecord, expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    """An open breaker delays no cordon of a GPU and no end of one."""
    begun = decided(pool(), about).start
    assert [(name, opened.faulty_gpus) for name, opened in begun.items()] == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1),
        ({"mode": "observe"}, 0),
        ({"health": HealthSpec(auto_replace=False)}, 0),
        ({"most": 0}, 0),
        ({"breaker": Breaker(state="open", forced=True, cause="restored", since=NOW)}, 0),
        ({"open": {"x": OpenSaga(kind="drain", node="a", since=NOW)}}, 0),
    ],
)
def test_a_pool_may_forbid_it(settings: dict[str, object], expected: int) -> None:
    """A pool may forbid cordoned GPUs as it may forbid a quarantine."""
    assert len(decided(pool(**settings), faulty()).start) == expected


def test_the_cap_of_quarantined_nodes_bounds_it() -> None:
    """Two of three nodes are quarantined or with a cordoned GPU; the cap is published once."""
    found = decided(pool(most=2), cordoned("a"), faulty("b"), faulty("c"))
    assert list(found.start) == ["cordon-gpus-b-1"]
    (full,) = (each for each in found.events if isinstance(each, QuarantineFull))
    assert (full.status, full.waiting) == ("opened", ("c",))
    # A node that counts already may leave service as a whole.
    found = decided(pool(most=1), cordoned("a", health="unhealthy"), unhealthy("b"))
    assert list(found.start) == ["quarantine-a-1"]


def test_a_lift_that_failed_is_repeated_in_time() -> None:
    """The planner wakes for it."""
    found = decided(pool(), node("a", cordoned_gpus=(3,), gpu_cordon_failed_at=NOW))
    assert (found.start, found.wake_at) == ({}, NOW + timedelta(seconds=AGAIN_SECONDS))


@pytest.mark.parametrize(
    ("windows", "remediation", "expected"),
    [
        ((), "replace", []),
        (SERVICE, "replace", ["replace-a-1"]),
        (SERVICE, "ladder", ["reset-gpu-a-1"]),
    ],
)
def test_its_repair_waits_for_a_service_window(
    windows: tuple[WindowSpec, ...], remediation: str, expected: list[str]
) -> None:
    """The remedy is an unhealthy node's, and it is that GPU which is reset."""
    health = HealthSpec(remediation=PluginSettings(type=remediation))
    record = pool(breaker=CALM, windows=windows, health=health)
    more = {"remediator": Ladder(options=Ladder.Options())} if remediation == "ladder" else {}
    about = cordoned(gpus=())
    assert list(decided(record, about, **more).start) == expected


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (cordoned(), ("u3",)),
        (cordoned(health="unhealthy", health_gpu=5), ("u3", "u5")),
        # A fault of the node as a whole: all GPUs are reset.
        (cordoned(health="unhealthy", health_gpu=-1), ()),
    ],
)
def test_a_reset_is_of_the_cordoned_gpu_as_well(
    about: NodeRecord, expected: tuple[str, ...]
) -> None:
    """The reset names the GPUs by their UUIDs."""
    gpus = tuple(GpuIdentity(index=each, uuid=f"u{each}") for each in range(8))
    about = msgspec.structs.replace(about, gpus=gpus)
    _, opened, _ = begin("f", pool(), "reset-gpu", NOW, node=about)
    assert opened.gpus == expected


def ended(gpus: tuple[int, ...], *, done: bool) -> SagaState:
    """Return the log of a cordon of GPUs."""
    step = StepState(status="succeeded" if done else "failed", sequence=9, ended_at=NOW)
    return saga_state(
        saga="cordon-gpus-a-1",
        kind="cordon-gpus",
        status="done" if done else "unwound",
        params=SagaParams(pool="training", node="a", faulty_gpus=gpus),
        started_at=NOW,
        unwinding_at=None if done else NOW,
        reason="" if done else "this Kubernetes has no DeviceTaintRule",
        steps={"cordon-gpus": step},
    )


@pytest.mark.parametrize("done", [True, False])
def test_an_order_about_gpus_leaves_the_nodes_own_cordon_as_it_is(*, done: bool) -> None:
    """One that is out of service for a notice of the cloud comes back after it all the same."""
    out = node("a", cordoned=True, drained=True, sole_notice="x", cordoned_gpus=(3,))
    after = leaving_node(out, ended((), done=done))
    assert after is not None
    assert (after.cordoned, after.drained, after.sole_notice) == (True, True, "x")


@pytest.mark.parametrize("kind", ["reboot", "reset-gpu"])
def test_a_remedy_that_fails_leaves_a_node_out_for_its_notice(kind: SagaKind) -> None:
    """The cloud's next action may bring the node back, and then it is uncordoned."""
    out = node("a", cordoned=True, drained=True, sole_notice="x", lost=True)
    state = msgspec.structs.replace(ended((), done=False), kind=kind, steps={})
    after = leaving_node(out, state)
    assert after is not None
    assert (after.cordoned, after.sole_notice) == (True, "x")


def verdict(*gpus: int) -> Verdict:
    """Return a verdict that the node is degraded, and those GPUs are to get no new work."""
    at = NOW + timedelta(seconds=1)
    about = {"pool": "training", "node": "a"}
    return Verdict(id="v", time=at, status="degraded", cordon_gpus=gpus, **about)


@pytest.mark.parametrize(
    ("before", "gpus", "done", "expected"),
    [
        (faulty(), (3,), True, ("degraded", (3,))),
        (faulty(), (3,), False, ("unhealthy", (3,))),
        # It was repaired meanwhile: what may have been done is to be lifted.
        (node("a"), (3,), False, ("healthy", (3,))),
        # A worse verdict came meanwhile.
        (faulty(health="unhealthy"), (3,), True, ("unhealthy", (3,))),
        (node("a", cordoned_gpus=(3,), **FAILED), (), True, ("healthy", ())),
        (node("a", cordoned_gpus=(3,)), (), False, ("healthy", (3,))),
    ],
)
def test_an_order_that_fails_leaves_the_node_unhealthy(
    before: NodeRecord, gpus: tuple[int, ...], *, done: bool, expected: tuple[str, tuple[int, ...]]
) -> None:
    """The node is unhealthy so that no work gets onto the GPU without anyone's notice."""
    after = leaving_node(before, ended(gpus, done=done))
    assert after is not None
    assert (after.health, after.cordoned_gpus) == expected
    assert (after.gpu_cordon_failed_at is None) is done
    assert leaving_node(after, ended(gpus, done=done)) == after
    if expected[0] == "unhealthy" and before.health == "degraded":
        assert "no DeviceTaintRule" in after.health_reason
        again = apply_event(after, verdict(3), NOW)
        assert again is not None
        assert again.health == "unhealthy"
        over = apply_event(after, verdict(), NOW)
        assert over is not None
        assert (over.health, over.faulty_gpus) == ("degraded", ())


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (node("a"), "degraded"),
        (node("a", spare=True, cordoned=True), "unhealthy"),
        (node("a", state="registered"), "unhealthy"),
        (node("a", state="launching"), "unhealthy"),
        (node("a", cordoned_gpus=(3,), **FAILED), "unhealthy"),
        (node("a", cordoned_gpus=(5,), **FAILED), "degraded"),
        (node("a", cordoned=True, **REPAIRED), "unhealthy"),
        (node("a", **REPAIRED), "degraded"),
        (node("a", cordoned=True, **(REPAIRED | {"sagas": 2})), "degraded"),
    ],
)
def test_a_node_that_takes_no_work_is_unhealthy_as_a_whole(
    about: NodeRecord, expected: str
) -> None:
    """A node whose repair failed, a spare or a new one gets an unhealthy node's remedy."""
    after = apply_event(about, verdict(3), NOW)
    assert after is not None
    assert (after.health, after.faulty_gpus) == (expected, (3,))


def test_a_new_node_with_a_faulty_gpu_is_not_admitted() -> None:
    """A new node is refused whatever the pool does with those in service."""
    new = node("a", state="registered", boot_checked=True, boot_checked_id="b", boot_id="b")
    after = apply_event(new, verdict(3), NOW)
    refused = admitted(SagaParams(pool="training"), after)
    assert refused is not None
    assert "unhealthy on arrival" in getattr(refused, "reason", "")
