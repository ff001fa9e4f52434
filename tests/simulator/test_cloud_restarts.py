"""Restarts and pauses that a simulated cloud announces: nodes are drained, kept, and given back."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest

from schemas.pool_records import PoolRecord
from services.pool_manager.planner import announced_restarts, pool_planner
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing import restart_drains
from services.simulator.engine.fault_kinds import ANNOUNCED, BROKER, FaultKind, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_simulation import SeedResult
from tests.simulator.test_refused_writes import SHAPE
from tests.support.campaigns import run_campaign, saga_entries

AHEAD_SECONDS = 120.0
PAUSE: tuple[FaultKind, ...] = ("announced_pause",)


def simulated(*kinds: Any, withdrawal: Any = "") -> tuple[SeedResult, list[str]]:
    """Announce these for a node each; return the result and the kinds of sagas that began."""
    steps = tuple(
        CampaignStep(10.0 + at, InjectedFault(kind=kind, seconds=AHEAD_SECONDS), withdrawal)
        for at, kind in enumerate(kinds)
    )
    found, simulation = run_campaign("announced", Campaign(SHAPE, steps, 10.0))
    begun = [saga for saga, *entry in saga_entries(simulation) if entry == ["saga", "started"]]
    return found, [saga.split("-training")[0] for saga in begun]


@pytest.mark.parametrize("kind", sorted(ANNOUNCED))
@pytest.mark.parametrize("withdrawal", ["", "withdrawn"])
def test_what_is_announced_replaces_no_node(kind: FaultKind, withdrawal: str) -> None:
    """Ahead of a restart it is drained, and uncordoned in the end; a pause changes nothing."""
    found, sagas = simulated(kind, withdrawal=withdrawal)
    assert (found.violation, found.tail) == ("", ())
    assert found.made == SHAPE.nodes
    assert sagas[SHAPE.nodes :] == ([] if kind in PAUSE else ["drain", "uncordon"])


@pytest.mark.parametrize("seconds", [50.0, 76.0, 106.0])
def test_a_withdrawal_that_is_not_recorded_yet_is_heeded(seconds: float) -> None:
    """NODES took nothing: what is recorded first, its deadline past, is the notice itself."""
    refused = InjectedFault(
        kind="refused_writes", target=BROKER, stream="KV_NODES", seconds=seconds
    )
    announced = InjectedFault(kind="announced_redeploy", seconds=40.0)
    steps = (CampaignStep(10.0, refused), CampaignStep(12.0, announced, "withdrawn"))
    found, _ = run_campaign("withdrawn", Campaign(SHAPE, steps, seconds + 15.0))
    assert (found.violation, found.tail) == ("", ())


def never_drained(patch: pytest.MonkeyPatch) -> None:
    """Restarts are awaited in service."""
    patch.setattr(pool_planner, "drain_ahead", lambda _snapshot, begun, _now: begun)


def drained_at_once(patch: pytest.MonkeyPatch) -> None:
    """A restart that is announced days ahead takes the node out of service for days."""
    patch.setattr(announced_restarts, "CORDON_AHEAD_SECONDS", 3_600.0)
    patch.setattr("services.simulator.engine.restart_invariants.restarts", RESTARTS)


def never_given_back(patch: pytest.MonkeyPatch) -> None:
    """The node stays cordoned after its restart."""
    patch.setattr(pool_planner, "give_back", lambda _snapshot, begun, _now: begun)


def silence_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    """A node that is away for its restart is replaced."""
    patch.setattr(announced_restarts, "silent_until", lambda _: None)


def drained_over_and_over(patch: pytest.MonkeyPatch) -> None:
    """A node that is drained ahead of a restart is drained again."""
    due = restart_drains._due

    def regardless(record: PoolRecord, snapshot: PoolSnapshot, now: datetime) -> Any:
        nodes = Nodes(msgspec.structs.replace(each, cordoned=False) for each in snapshot.nodes)
        return due(record, replace(snapshot, nodes=nodes), now)

    patch.setattr(restart_drains, "_due", regardless)


class RESTARTS:
    """Keep the product's own values, which the invariants read, for the run with a planted bug."""

    SILENCING = announced_restarts.SILENCING
    RESTARTING = announced_restarts.RESTARTING
    EARLY_SECONDS = announced_restarts.EARLY_SECONDS
    CORDON_AHEAD_SECONDS = announced_restarts.CORDON_AHEAD_SECONDS
    FREEZE_SECONDS_MAX = announced_restarts.FREEZE_SECONDS_MAX
    RETURN_SECONDS_MAX = announced_restarts.RETURN_SECONDS_MAX


@pytest.mark.parametrize(
    ("plant", "violation"),
    [
        (never_drained, "is in service for"),
        (drained_at_once, "s early"),
        (never_given_back, "is out of service for"),
        (silence_is_a_loss, "begins for a silence that was announced"),
        (drained_over_and_over, "is drained again for one restart"),
    ],
)
def test_planted_bugs_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: Any, violation: str
) -> None:
    """Each breaks one promise about restarts."""
    plant(monkeypatch)
    found, _ = simulated("announced_redeploy", "announced_reboot", "announced_redeploy")
    assert violation in found.violation
