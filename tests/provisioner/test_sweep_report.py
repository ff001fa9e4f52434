"""The report of a sweep: each action that is due, waits, or is held back."""

from datetime import timedelta
from typing import get_args

import pytest
from msgspec.structs import replace

from schemas.sweeps import SweepLine
from services.provisioner.removal import sweep_decisions
from services.provisioner.removal.sweep_actions import SweepInput, SweepKind
from services.provisioner.removal.sweep_report import KINDS, OBSERVES, TOO_MANY, report
from tests.provisioner.test_instance_decisions import (
    FLEET,
    KEY,
    LONG_AGO,
    NOW,
    instance,
    record,
    sighting,
)

JUST_NOW = NOW - timedelta(seconds=15)


def reported(seen: SweepInput, removals_max: int = 50, **given: object) -> list[SweepLine]:
    """The report of a sweep that is only planned."""
    observes = given.get("observes", lambda _: False)
    differences = sweep_decisions.decide_sweep(seen)
    due = sweep_decisions.due_actions(differences, removals_max)
    return list(report(differences, due, observes, {}, given.get("outcomes", ())))


@pytest.mark.parametrize(
    ("seen", "verb", "because", "waits"),
    [
        (sighting({}, (instance(),)), "terminate", "no record of it", 0),
        (sighting({}, (instance(),), seen=JUST_NOW), "terminate", "no record of it", 45),
        (
            sighting({}, (instance(),), living=frozenset({KEY})),
            *("adopt", "its node is in service, and its record is lost", 0),
        ),
        (
            sighting({KEY: record()}, (instance(),)),
            *("adopt", "it was launched, and the launch was not finished", 0),
        ),
        (
            sighting({KEY: record("running")}, (instance(), instance("i-2"))),
            *("note", "i-1 and i-2 have its name; which is the node is not known", 0),
        ),
        (
            sighting({KEY: record("terminating", provider_id="i-1")}, (instance(),)),
            *("terminate", "it should be gone, and is listed", 0),
        ),
        (
            sighting({KEY: record("leaked", provider_id="i-1", error="AUTH: no")}, (instance(),)),
            *("terminate", "it should be gone, and is listed: AUTH: no", 0),
        ),
        (
            sighting({KEY: record("terminating", provider_id="i-1")}, ()),
            *("forget", "its provider no longer lists it", 0),
        ),
        (
            sighting({KEY: record("terminating", terminating_at=JUST_NOW)}, ()),
            *("forget", "its provider no longer lists it", 45),
        ),
        (
            sighting({KEY: record("running", running_at=JUST_NOW)}, ()),
            *("note", "not listed by its provider", 45),
        ),
        (sighting({KEY: record("terminated")}, (instance(),)), "terminate", "is gone", 0),
    ],
)
def test_each_action_has_its_reason_and_its_wait(
    seen: SweepInput, verb: str, because: str, waits: float
) -> None:
    """One line; an action within the grace is reported too, with its wait."""
    [line] = reported(seen)
    assert (verb, waits, "web", "web-1", "fake") == (
        *(line.verb, line.waits_seconds),
        *(line.pool, line.instance, line.provider),
    )
    assert because in line.reason


def test_every_kind_of_action_has_a_verb() -> None:
    """One without it failed the report of the whole sweep, as of nodes that others made."""
    assert set(get_args(SweepKind)) == set(KINDS)


def test_without_a_difference_nothing_is_reported() -> None:
    """Another fleet's instances, and those that run as recorded."""
    ours, theirs = instance(), instance("i-9", name="web-9", fleet="other")
    assert [] == reported(sighting({KEY: record("running")}, (ours, theirs)))


def test_a_provider_that_could_not_be_listed_is_said_to_leave_it_unknown() -> None:
    """A removal is tried all the same."""
    seen = SweepInput(
        fleet=FLEET,
        records={KEY: record("leaked", error="AUTH: no")},
        listed={},
        first_seen={},
        living=frozenset(),
        now=NOW,
        grace=timedelta(seconds=60),
    )
    [line] = reported(seen)
    assert ("terminate", True) == (line.verb, "so it may still exist" in line.reason)


def test_what_is_held_back_says_why() -> None:
    """A pool that observes, and the bound on what one sweep removes."""
    three = tuple(replace(instance(f"i-{n}"), name=f"web-{n}") for n in range(3))
    seen = sighting({}, three)
    assert [OBSERVES] * 3 == [each.held_back for each in reported(seen, observes=lambda _: True)]
    assert ["", TOO_MANY, TOO_MANY] == [each.held_back for each in reported(seen, 1)]


def test_each_action_has_its_outcome() -> None:
    """Each outcome with its own line, whatever waits between them."""
    gone = record("terminating", instance="web-2", provider_id="i-2", terminating_at=JUST_NOW)
    leaked = record("leaked", instance="web-3", provider_id="i-3")
    records = {KEY: record("leaked", provider_id="i-1"), "web.web-2": gone, "web.web-3": leaked}
    lines = reported(sighting(records, (), seen=LONG_AGO), outcomes=("done", "AUTH: no"))
    assert ["done", "", "AUTH: no"] == [each.outcome for each in lines]
