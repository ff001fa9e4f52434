"""When an agent renews its credentials, and when it says that they are not renewed."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.enrollment import RETRY_MAX_SECONDS, renewal_seconds
from services.bus.nats.credentials_file import reported_expiry
from services.pool_manager.instance_verifier import RETURN_SECONDS
from tests.support.secured import NOW


@given(
    life_=st.floats(600, 1e7),
    age=st.floats(-1e6, 1e7),
    random=st.floats(0, 1),
)
def test_credentials_are_renewed_in_the_first_half_of_their_life(
    life_: float, age: float, random: float
) -> None:
    """Credentials are renewed in the first half of their life by a right clock.

    Any other clock renews them within half a life from now, and never in the past.
    """
    now = 1e9
    wait = renewal_seconds(now - age, now - age + life_, now, random)

    assert 0 <= wait <= life_ / 2
    if 0 <= age <= life_ / 3:
        assert life_ / 3 - 1e-3 <= age + wait <= life_ / 2 + 1e-3


@pytest.mark.parametrize(
    ("age", "reported"), [(0.0, False), (0.74, False), (0.75, True), (1.5, True)]
)
def test_heartbeats_say_when_credentials_expire_in_their_last_quarter(
    age: float, *, reported: bool
) -> None:
    """A heartbeat has the date from when two renewals should have come.

    Credentials that never expire have none.
    """
    day = timedelta(days=1)
    now = NOW.timestamp()
    issued = now - age * day.total_seconds()
    expires = issued + day.total_seconds()

    assert reported_expiry(issued, expires, now) == (NOW + day - age * day if reported else None)
    assert reported_expiry(0.0, 0.0, now) is None


def test_agents_try_again_sooner_than_the_pool_manager_gives_them_up() -> None:
    """An attempt is late by half at most, and then takes a moment."""
    assert RETRY_MAX_SECONDS * 1.5 + 60 <= RETURN_SECONDS
