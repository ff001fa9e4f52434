"""Tables say which events about nodes an open incident covers."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas.breaker_state import OpenIncident
from schemas.messages import Message
from schemas.node_events import Cordoned, Lost, Verdict
from schemas.node_records import NodeRecord
from schemas.pool_events import OperatorNeeded
from services.notifier.alerts.alert_dedup import matching_incident

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
ABOUT = {"id": "e", "time": NOW, "pool": "training", "node": "n1"}
NODE = NodeRecord(
    pool="training", node="n1", state="active", rack="r12", health="unhealthy", health_kind="xid",
    health_code=79,
)  # fmt: skip
WAVE = OpenIncident(kind="xid", code=79, nodes=20, since=NOW, last=NOW)
RACK = msgspec.structs.replace(WAVE, scope="rack", within="r12")
XID_79 = Verdict(**ABOUT, status="unhealthy", kind="xid", code=79)
XID_95 = Verdict(**ABOUT, status="unhealthy", kind="xid", code=95)
LATER = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("event", "node", "incidents", "found"),
    [
        pytest.param(XID_79, NODE, {"xid-79": WAVE}, "xid-79", id="its XID"),
        pytest.param(XID_79, None, {"xid-79": WAVE}, "xid-79", id="its XID, no record yet"),
        pytest.param(XID_95, NODE, {"xid-79": WAVE}, "", id="another XID"),
        pytest.param(XID_95, NODE, {"rack-r12": RACK}, "rack-r12", id="another XID in its rack"),
        pytest.param(XID_95, None, {"rack-r12": RACK}, "", id="its rack is unknown"),
        pytest.param(
            Verdict(**ABOUT, status="healthy"), NODE, {"rack-r12": RACK}, "", id="healthy again"
        ),
        pytest.param(Cordoned(**ABOUT), NODE, {"xid-79": WAVE}, "", id="not a fault"),
        pytest.param(
            Lost(**ABOUT), NODE, {"silence": msgspec.structs.replace(WAVE, kind="silence")},
            "silence", id="silent with others",
        ),
        pytest.param(
            OperatorNeeded(**ABOUT, remedy="r"), NODE, {"xid-79": WAVE}, "xid-79", id="manual"
        ),
        pytest.param(
            XID_79, NODE, {"xid-79": msgspec.structs.replace(WAVE, released=True)}, "",
            id="released",
        ),
        pytest.param(
            XID_79, NODE, {"xid-79": msgspec.structs.replace(WAVE, hold_ended_at=NOW - LATER)}, "",
            id="after its hold",
        ),
        pytest.param(
            XID_79,
            NODE,
            {"xid-79": msgspec.structs.replace(WAVE, hold_ended_at=NOW + LATER)},
            "xid-79",
            id="before its hold had passed",
        ),
        pytest.param(XID_79, NODE, {}, "", id="no incident"),
    ],
)  # fmt: skip
def test_which_events_an_incident_covers(
    event: Message, node: NodeRecord | None, incidents: dict[str, OpenIncident], found: str
) -> None:
    """The same signature, rack, driver, zone, job or provider, while the incident is open."""
    assert found == matching_incident(event, node, incidents, NOW)
