"""The topology states the same end of each entry as the services' constants."""

import pytest

from schemas.alert_records import TTL_SECONDS as ALERT_SECONDS
from schemas.topology import ALERTS, HARDWARE, INSTANCES, LEASES, NODES, SAGAS
from services.bus.leases import LEASE_TTL_SECONDS
from services.pool_manager.planner.admission.denied_hardware import TTL_SECONDS as DENIED_SECONDS
from services.pool_manager.pool_store import TERMINATED_TTL_SECONDS as NODE_SECONDS
from services.provisioner.instances.instance_store import TERMINATED_TTL_SECONDS as GONE_SECONDS
from services.provisioner.provider_client.rate_limit import RECORD_TTL_SECONDS as PACE_SECONDS
from services.runtime.crash_guard import SET_ASIDE_TTL_SECONDS, SUSPECT_TTL_SECONDS
from services.saga.coordinator import KEPT_SECONDS

DAY = 86_400


@pytest.mark.parametrize(
    ("text", "words", "seconds", "stated_seconds"),
    [
        (NODES.ends, "7 days after the node is terminated", NODE_SECONDS, 7 * DAY),
        (INSTANCES.ends, "7 days after", GONE_SECONDS, 7 * DAY),
        (HARDWARE.ends, "after 180 days", DENIED_SECONDS, 180 * DAY),
        (LEASES.ends, "a lease 3 s after its holder", LEASE_TTL_SECONDS, 3),
        (LEASES.ends, "a pace or suspect after an hour", PACE_SECONDS, 3_600),
        (LEASES.ends, "a pace or suspect after an hour", SUSPECT_TTL_SECONDS, 3_600),
        (LEASES.ends, "a message set aside after 7 days", SET_ASIDE_TTL_SECONDS, 7 * DAY),
        (ALERTS.ends, "8 days after the last news", ALERT_SECONDS, 8 * DAY),
        (SAGAS.description, "one that has ended is removed after 30 days", KEPT_SECONDS, 30 * DAY),
    ],
)
def test_a_stated_end_is_the_constants(
    text: str, words: str, seconds: float, stated_seconds: float
) -> None:
    """A changed constant fails here until the text follows."""
    assert words in text
    assert seconds == stated_seconds
