"""Runs Navarch's suite for remediators, and asks after attempts of different ages."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from navarch.schemas.node_records import NodeRecord, RemediationAttempt
from navarch.services.pool_manager.remediator_conformance import RemediatorConformance
from navarch_reboot_once import RebootOnce

NOW = datetime(2030, 1, 7, tzinfo=UTC)
NODE = NodeRecord(node="training-1", pool="training", health="unhealthy", health_action="reboot")


def reboot(days_ago: float) -> RemediationAttempt:
    """Return a reboot after which the node was well for some time."""
    at = NOW - timedelta(days=days_ago)
    return RemediationAttempt(saga="reboot-training-1-1", kind="reboot", at=at, outcome="recovered")


class TestRebootOnce(RemediatorConformance):
    """Asks about nodes in every health, after several attempts."""

    @pytest.fixture
    def make(self) -> Callable[[], RebootOnce]:
        """Return what makes the remediator."""
        return lambda: RebootOnce(options=RebootOnce.Options())


@pytest.mark.parametrize(
    ("attempts", "remedy"),
    [
        ((), "reboot"),
        ((reboot(6.9),), "replace"),
        ((reboot(7.0),), "reboot"),
        ((reboot(30.0), reboot(0.1)), "replace"),
        ((replace(reboot(0.1), outcome="failed"),), "replace"),
        ((replace(reboot(0.1), outcome="cancelled"),), "reboot"),
        ((replace(reboot(0.1), tried=False),), "reboot"),
        ((replace(reboot(0.1), kind="reset-gpu"),), "reboot"),
    ],
    ids=["none", "lately", "a-week-ago", "again", "failed", "cancelled", "not-begun", "reset"],
)
def test_a_reboot_is_tried_once_a_week(
    attempts: tuple[RemediationAttempt, ...], remedy: str
) -> None:
    """A reboot that was made within seven days is followed by a replacement."""
    found = RebootOnce(options=RebootOnce.Options()).choose(NODE, attempts, NOW)
    assert found.remedy == remedy


def test_a_node_that_needs_a_person_is_left_to_one() -> None:
    """The verdict of the health policy is kept where it calls for an inspection."""
    node = replace(NODE, health_action="inspect")
    assert RebootOnce(options=RebootOnce.Options()).choose(node, (), NOW).remedy == "inspect"
