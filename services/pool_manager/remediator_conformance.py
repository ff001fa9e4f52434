"""Tests the contract of a remediator: the author of a plugin runs them with pytest.

    import pytest
    from navarch.services.pool_manager.remediator_conformance import RemediatorConformance

    class TestRebootFirst(RemediatorConformance):
        @pytest.fixture
        def make(self):
            return lambda: RebootFirst(options=RebootFirst.Options(reboots=1))

They need pytest (`navarch[conformance]`).
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Final, get_args

import pytest

from schemas.enums import Action, HealthStatus, Remediation
from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.settings import Setting
from services.pool_manager.planner.remediator import Remediator, RemedyChoice

Make = Callable[[], Remediator]
NOW: Final = datetime(2030, 1, 7, tzinfo=UTC)
REMEDIES: Final = get_args(Remediation)
Question = tuple[NodeRecord, tuple[RemediationAttempt, ...]]


def questions() -> Iterator[Question]:
    """Yield nodes in every health, with every action, silent and not, after several attempts."""
    reboot = RemediationAttempt(saga="reboot-1", kind="reboot", at=NOW - timedelta(hours=2))
    reset = RemediationAttempt(saga="reset-1", kind="reset-gpu", at=NOW - timedelta(days=40))
    tried = ((), (reboot,), (reset, reboot, reboot))
    lost = (None, NOW - timedelta(minutes=5))
    actions, healths = get_args(Action), get_args(HealthStatus)
    for health, action, at, attempts in product(healths, actions, lost, tried):
        node = NodeRecord(
            node="training-1",
            pool="training",
            state="active",
            health=health,
            health_action=action,
            health_at=NOW,
            lost=at is not None,
            lost_at=at,
        )
        yield node, attempts


class RemediatorConformance:
    """Inherit, name the class `Test…`, and write the fixture `make`."""

    @pytest.fixture
    def make(self) -> Make:
        """Return what makes the remediator."""
        raise NotImplementedError("write the fixture `make`: see the module's first lines")

    def test_its_options_are_a_struct(self, make: Make) -> None:
        """An error in the configuration names file, line and key."""
        options = getattr(type(make()), "Options", None)
        assert options is not None, "it has no inner struct `Options`"
        assert issubclass(options, Setting), "Options is no schemas.settings.Setting"

    def test_each_node_has_a_remedy_that_is_known(self, make: Make) -> None:
        """The remedy is one of Navarch's, and its reason is a text."""
        for node, attempts in questions():
            found = make().choose(node, attempts, NOW)
            assert isinstance(found, RemedyChoice), f"{found!r} is no RemedyChoice: {node}"
            assert found.remedy in REMEDIES, f"{found.remedy!r} is none of {REMEDIES}: {node}"
            assert isinstance(found.reason, str), f"{found.reason!r} is no text: {node}"
            assert found.attempt <= found.attempts_max, f"attempt {found.attempt}: {node}"

    def test_the_same_question_has_the_same_answer(self, make: Make) -> None:
        """Decisions are repeated, by other replicas too: nothing is remembered."""
        asked, one = list(questions()), make()
        first = [one.choose(node, attempts, NOW) for node, attempts in asked]
        again = [one.choose(node, attempts, NOW) for node, attempts in reversed(asked)][::-1]
        assert first == again, "it remembers what it was asked before"
        assert first == [make().choose(node, attempts, NOW) for node, attempts in asked]

    def test_attempts_come_to_an_end(self, make: Make) -> None:
        """The same remedy in place, which does not help, is not chosen for ever."""
        for node, _ in questions():
            attempts: tuple[RemediationAttempt, ...] = ()
            for number in range(50):
                kind = make().choose(node, attempts, NOW).remedy
                if kind not in ("reset-gpu", "reboot"):
                    break
                tried = RemediationAttempt(
                    saga=f"s-{number}", kind=kind, at=NOW, outcome="recovered"
                )
                attempts = (*attempts, tried)
            else:
                raise AssertionError(f"50 attempts in place, and another one: {node}")
