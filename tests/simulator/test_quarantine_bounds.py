"""The simulation finds quarantines without bounds, tests that pass broken nodes, and slow waves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.pool_manager.planner.remediation import quarantine, quarantine_recheck
from services.pool_manager.planner.safety import slow_waves
from services.runtime.logs import silenced
from services.saga import definitions as sagas
from services.saga.definitions.recheck_saga import RECHECK_NODE
from services.saga.definitions.saga_steps import UNCORDON
from services.simulator.inputs.scenario.scenario_file import read_file
from services.simulator.inputs.scenario.scenario_runner import run

pytestmark = pytest.mark.slow

SCENARIOS = Path(__file__).resolve().parents[2] / "config" / "scenarios"
Plant = Callable[[pytest.MonkeyPatch], None]


def none_is_quarantined(patch: pytest.MonkeyPatch) -> None:
    """The planner sees no candidate."""
    patch.setattr(quarantine, "_candidates", lambda *_: [])


def the_cap_is_reached_too_soon(patch: pytest.MonkeyPatch) -> None:
    """The planner believes the cap to be reached while no node is quarantined."""
    patch.setattr(quarantine, "_is_full", lambda *_, **__: True)


def the_cap_is_never_reached(patch: pytest.MonkeyPatch) -> None:
    """The planner quarantines every unhealthy node."""
    patch.setattr(quarantine, "_is_full", lambda *_, **__: False)


def none_is_rechecked(patch: pytest.MonkeyPatch) -> None:
    """The planner tests no node."""
    patch.setattr(quarantine_recheck, "testable", lambda *_: [])


def the_test_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """A recheck uncordons at once."""
    untested = replace(RECHECK_NODE, steps=lambda _: (UNCORDON,))
    patch.setitem(sagas.DEFINITIONS, "recheck", untested)


def what_was_replaced_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Only nodes that are unhealthy now are compared."""
    patch.setattr(slow_waves, "with_remediated", lambda record, *_: record)


@pytest.mark.parametrize(
    ("plant", "scenario", "found"),
    [
        (none_is_quarantined, "quarantine-behind-an-open-breaker", "unhealthy and in service for"),
        (
            *(the_cap_is_reached_too_soon, "quarantine-behind-an-open-breaker"),
            "unhealthy and in service for",
        ),
        (the_cap_is_never_reached, "quarantine-cap-in-a-false-wave", "nodes are quarantined where"),
        (none_is_rechecked, "false-wave-is-rechecked", "is quarantined for"),
        (the_test_is_left_out, "false-wave-is-rechecked", "is broken, and passes its recheck"),
        (
            *(what_was_replaced_is_forgotten, "slow-mute-agents"),
            "5 nodes with silence were acted on within 1:00:00",
        ),
    ],
)
def test_what_has_lost_its_bounds_is_found(
    plant: Plant, scenario: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the invariant that it violates."""
    plant(monkeypatch)
    with silenced():
        outcome = run(read_file(SCENARIOS / f"{scenario}.yaml"))
    assert found in str(outcome)
