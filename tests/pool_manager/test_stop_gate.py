"""A stop holds sagas that would begin by themselves, and steps of those that are open."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.pool_records import OpenSaga
from schemas.proposed_removals import RemovalProposal
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec, ProviderChoice
from schemas.stops import FLEET, NOT_STOPPED, UNKNOWN, Stop, StopState, scope_of
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.safety.removal_gates import ProposalFacts, decide_removal
from services.pool_manager.planner.safety.stop_gate import holds, holds_step
from services.saga.definitions import DEFINITIONS
from tests.pool_manager.test_gates import NOW, node, pool, unhealthy

LATER = NOW + timedelta(hours=2)
SPEC = PoolSpec(min_nodes=0, max_nodes=9, provider="aws", providers=(ProviderChoice(name="gcp"),))
KINDS = frozenset(DEFINITIONS)
GIVES_BACK = {"uncordon", "cordon-gpus"}
CALLS_NOTHING = {"uncordon", "cordon", "quarantine", "promote", "recheck", "cordon-gpus"}


def stopped(*stops: Stop) -> StopState:
    """Return the state with these in force."""
    return StopState({each.scope: each for each in stops})


def stop(**about: Any) -> Stop:
    """Return a stop of the fleet, unless it names a part of it."""
    return Stop(reason="a wrong image", by="ada", since=NOW, **about)


@pytest.mark.parametrize(
    ("stops", "held"),
    [
        (NOT_STOPPED, set()),
        (stopped(stop()), KINDS - GIVES_BACK),
        (stopped(stop(running=True)), KINDS - GIVES_BACK),
        (stopped(stop(pool="training")), KINDS - GIVES_BACK),
        (stopped(stop(pool="serving")), set()),
        (stopped(stop(provider="aws")), KINDS - CALLS_NOTHING),
        (stopped(stop(provider="gcp")), KINDS - CALLS_NOTHING),
        (stopped(stop(provider="azure")), set()),
        (stopped(stop(until=LATER)), KINDS - GIVES_BACK),
        (stopped(stop(until=NOW)), set()),
        (StopState(known=False), KINDS - GIVES_BACK),
    ],
)
def test_a_stop_holds_what_would_begin_in_its_scope(stops: StopState, held: set[str]) -> None:
    """A provider's holds what may lead to a call; none holds what gives a node back to work."""
    found = {
        kind
        for kind in DEFINITIONS
        if holds(stops, "training", SPEC, kind, OpenSaga(kind=kind, since=NOW), NOW)
    }
    assert held == found


def test_a_cordon_of_gpus_begins_under_no_stop() -> None:
    """The end of one does, which only lets work onto the GPUs again."""
    cordon = OpenSaga(kind="cordon-gpus", since=NOW, faulty_gpus=(3,))
    assert holds(stopped(stop()), "training", SPEC, "cordon-gpus", cordon, NOW)


FORWARD = ["bootstrap", "admit", "drain", "terminate"]


@pytest.mark.parametrize(
    ("stops", "opened", "held"),
    [
        (stopped(stop()), {}, []),
        (stopped(stop(running=True)), {}, FORWARD),
        (stopped(stop(running=True)), {"cause": "REQUESTS-7"}, []),
        (stopped(stop(running=True, pool="training")), {}, FORWARD),
        (stopped(stop(running=True, pool="serving")), {}, []),
        (stopped(stop(running=True, until=NOW)), {}, []),
        (stopped(stop(provider="aws")), {}, []),
        (stopped(stop(provider="aws", running=True)), {}, ["provision", "terminate"]),
        (stopped(stop(), stop(provider="aws", running=True)), {}, ["provision", "terminate"]),
    ],
)
def test_an_open_saga_waits_before_what_cannot_be_taken_back(
    stops: StopState, opened: dict[str, Any], held: list[str]
) -> None:
    """An operator's own goes on; so does what has an undo, and a wait for the node that comes."""
    saga = OpenSaga(kind="replace", since=NOW, **opened)
    params = SagaParams(
        pool="training", node="a", new_node="b", order="provision_first", restores_service=True
    )
    found = [
        each.name
        for each in DEFINITIONS["replace"].steps(params)
        if holds_step(stops, "training", SPEC, saga, each, NOW)
    ]
    assert held == found


def planned(stops: StopState, *nodes: Any, **changes: Any) -> PoolPlan:
    """Decide about a pool that wants five nodes."""
    record = pool(5, **changes)
    snapshot = PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7, stops=stops)
    return plan(snapshot, NOW)


SOME = (unhealthy("a"), node("b"), node("c", cordoned=True, quarantine=None))


def test_nothing_begins_under_a_stop_and_the_record_stays() -> None:
    """No serial is used and no rate counted, however often it is decided."""
    free, held = planned(NOT_STOPPED, *SOME), planned(stopped(stop()), *SOME)
    assert free.start
    assert {} == held.start
    assert (10, {}, {}) == (held.record.serial, held.record.open, held.record.disruptions)


def test_a_plan_looks_again_when_the_stop_ends() -> None:
    """Nothing else may happen at that moment."""
    assert LATER == planned(stopped(stop(until=LATER)), node("a")).wake_at


def test_a_stop_of_another_pool_changes_nothing() -> None:
    """The record stays as it is decided, too."""
    assert planned(NOT_STOPPED, *SOME) == planned(stopped(stop(pool="serving")), *SOME)


def test_a_pool_in_observe_mode_says_what_would_begin_under_a_stop() -> None:
    """Nothing of it begins, so nothing is held."""
    assert planned(NOT_STOPPED, *SOME, mode="observe").events == (
        planned(stopped(stop()), *SOME, mode="observe").events
    )


@pytest.mark.parametrize(("stopped_by", "gate"), [("", "no-pool"), ("stopped by ada", "stop")])
def test_no_machine_is_removed_under_a_stop(stopped_by: str, gate: str) -> None:
    """The gate is asked before every other."""
    proposal = RemovalProposal(pool="training", node="a", provider="aws", provider_id="i-1")
    facts = ProposalFacts(pool=None, stopped=stopped_by, fleet_began=None, now=NOW)
    assert gate == decide_removal(proposal, facts, {}).gate


def test_the_scopes_are_named_as_operators_read_them() -> None:
    """The metric, the alert's key and the refusals have the same names."""
    found = [each.scope for each in (stop(), stop(pool="web"), stop(provider="aws"))]
    assert ["fleet", "pool.web", "provider.aws"] == found
    assert (FLEET, "pool.web") == (scope_of("", ""), scope_of("web", ""))


def test_what_is_not_known_is_in_force() -> None:
    """A process that has read neither copy begins nothing."""
    assert {FLEET: UNKNOWN} == StopState(known=False).at(datetime.now(UTC))
    assert "not known" in str(UNKNOWN)


def test_a_record_of_stops_is_read_again_as_it_was() -> None:
    """Read a stop with its end and its scope."""
    one = stop(pool="training", until=LATER, running=True)
    assert one == msgspec.json.decode(msgspec.json.encode(one), type=Stop)
