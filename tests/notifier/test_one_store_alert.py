"""A server that refuses to store is one alert for each cause, whichever streams report it."""

import pytest

from schemas.fleet_queries import CurrentFailure
from services.notifier.alerts.alert_rules import store_key
from services.notifier.alerts.store_alerts import one_a_cause
from services.runtime.failure_register import unwritable

SPACE, FLOOD = "no space left on device", "too many requests"
EVENTS = unwritable(("EVENTS", SPACE))
SAGAS = unwritable(("SAGAS", SPACE))
INTAKE = unwritable(("INTAKE", FLOOD))


@pytest.mark.parametrize(
    ("failing", "begun", "expected"),
    [
        ([], [], []),
        ([EVENTS], [], [EVENTS]),
        ([EVENTS, SAGAS], [], [EVENTS]),
        ([EVENTS, SAGAS], [SAGAS], [SAGAS]),
        ([EVENTS, INTAKE, SAGAS], [], [EVENTS, INTAKE]),
        ([EVENTS, INTAKE], [INTAKE], [INTAKE, EVENTS]),
        ([SAGAS], [EVENTS], [SAGAS]),
    ],
)
def test_each_cause_has_one_alert(
    failing: list[CurrentFailure], begun: list[CurrentFailure], expected: list[CurrentFailure]
) -> None:
    """An alert that has begun goes on, so that none ends while its cause lasts."""
    assert list(one_a_cause(failing, {store_key(each) for each in begun})) == expected
