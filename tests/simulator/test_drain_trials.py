"""Drains whose work refuses, leaves late or comes back, while the notifier is away or is killed.

In each saga one cordon and one drain change something, and no work is ended before its deadline:
the invariants of every simulation check that. Here each of these is made to happen.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from services.notifier.workload.workload_notifier import WorkloadOrder
from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import WORKLOAD, FaultKind, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_simulation import FuzzSimulation, SeedResult
from tests.support.fleet_shapes import SMALL

BROKEN = InjectedFault(kind="xid_error", xid_code=79, fixed_by="replace")
HOUR_SECONDS = 3_600.0
BEHAVIOURS: tuple[FaultKind | None, ...] = (None, "endless_drain", "late_work", "returning_work")
"""endless_drain: the work refuses to leave; late_work: it leaves when it is evicted."""
EFFECTS_MIN = 6
"""Of the notifier while it cordons and drains one node."""


@dataclass
class Trial:
    """Hold the result of one node's drain."""

    result: SeedResult
    orders: Counter[str] = field(default_factory=Counter)
    """Verb and saga of each order that changed something -> how often."""


def drained(behaviour: FaultKind | None, *faults: CampaignStep, seconds: float = 240.0) -> Trial:
    """A node breaks at 40 s; its work behaves so, and these faults occur."""
    steps = [CampaignStep(40.0, BROKEN), *faults]
    if behaviour is not None:
        lasting = InjectedFault(kind=behaviour, target=WORKLOAD, seconds=seconds)
        steps.append(CampaignStep(30.0, lasting))
    ordered = tuple(sorted(steps, key=lambda each: each.at))
    orders: Counter[str] = Counter()

    async def simulate() -> SeedResult:
        simulation = FuzzSimulation(f"{behaviour}-{faults}", Campaign(SMALL, ordered, seconds))
        workload = simulation.fleet.workload
        checked = workload.on_order

        def counted(verb: str, order: WorkloadOrder) -> None:
            orders[f"{verb} {order.saga}"] += 1
            checked(verb, order)

        workload.on_order = counted
        return await simulation.run()

    with silenced():
        return Trial(virtual_time.run(simulate), orders)


def assert_sound(trial: Trial) -> None:
    """No invariant was violated, the node was replaced, and no order changed a thing twice."""
    assert (trial.result.violation, trial.result.tail) == ("", ())
    assert trial.result.made > SMALL.nodes
    assert {each for each, count in trial.orders.items() if count > 1} == set()
    assert any(each.startswith("cordon ") for each in trial.orders)
    assert any(each.startswith("drain ") for each in trial.orders)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("after", [0.05, 3.0])
def test_the_notifier_is_away_for_an_hour(behaviour: FaultKind | None, after: float) -> None:
    """A drain ends well while the notifier is away from just after the fault, or from later on."""
    away = InjectedFault(kind="crash", target="notifier", seconds=HOUR_SECONDS)
    trial = drained(behaviour, CampaignStep(40.0 + after, away), seconds=HOUR_SECONDS + 600.0)
    assert_sound(trial)
    assert trial.result.seconds > HOUR_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_the_notifier_is_killed_between_any_two_of_its_calls(behaviour: FaultKind | None) -> None:
    """A kill after any one of the notifier's effects on bus and workload system does no harm."""
    kill = InjectedFault(kind="crash", target="notifier", seconds=2.0)
    for effects in itertools.count(1):
        trial = drained(behaviour, CampaignStep(39.9, replace(kill, after_effects=effects)))
        assert_sound(trial)
        if not trial.result.restarts:
            break  # it has fewer
    assert effects > EFFECTS_MIN


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_what_work_does_decides_how_a_drain_ends(behaviour: FaultKind | None) -> None:
    """Work that leaves only then is ended at the deadline, once; other work is not."""
    trial = drained(behaviour)
    assert_sound(trial)
    evicted = [each for each in trial.orders if each.startswith("evict ")]
    assert len(evicted) == (1 if behaviour == "late_work" else 0)


@pytest.mark.parametrize("at", [12.0, 14.0])
def test_a_drain_has_its_time_by_the_clock_of_a_coordinator_that_is_ahead(at: float) -> None:
    """A slow connection: of the server's time it knows no more than within a round trip."""
    slow = InjectedFault(kind="slow", target="pool-manager", share=10.0, seconds=30.0)
    restart = InjectedFault(kind="crash", target="pool-manager", seconds=1.0)
    trial = drained("endless_drain", CampaignStep(5.0, slow), CampaignStep(at, restart))
    assert_sound(trial)
