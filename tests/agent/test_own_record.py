"""An agent keeps a part of its node's record, and registers again when that demands it."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from agent.node_monitor import (
    REFUSED_AGAIN_SECONDS,
    REGISTER_AGAIN_SECONDS,
    must_register_again,
)
from agent.own_record import Admission, MissingEvents, missing_events
from schemas.machine_identity import MachineIdentity, NodeMachines
from schemas.node_records import NodeRecord

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def node(admitted_at: datetime | None = None, sagas: int = 0, boot: str = "") -> NodeRecord:
    """Return the record of the agent's node."""
    return NodeRecord(
        pool="training",
        node="n1",
        admitted_at=admitted_at,
        sagas=sagas,
        boot_id=boot,
        boot_checked_id=boot,
    )


@pytest.mark.parametrize(
    ("before", "record", "after"),
    [
        pytest.param(Admission(), node(), Admission(), id="not admitted"),
        pytest.param(Admission(), node(NOW, 1), Admission(NOW, 1), id="admitted"),
        pytest.param(Admission(NOW, 1), node(NOW, 2), Admission(NOW, 2), id="a saga has ended"),
        pytest.param(Admission(NOW, 2), node(NOW, 1), Admission(NOW, 2), id="set back"),
        pytest.param(Admission(NOW, 2), node(), Admission(NOW, 2), id="set back further"),
        pytest.param(Admission(NOW, 2), None, Admission(NOW, 2), id="the record is lost"),
        pytest.param(Admission(NOW, 2), node(LATER), Admission(LATER, 0), id="adopted"),
    ],
)
def test_what_was_read_is_kept(
    before: Admission, record: NodeRecord | None, after: Admission
) -> None:
    """A backup does not set an agent's memory back; an adoption is another admission."""
    assert before.with_record(record) == after


@pytest.mark.parametrize(
    ("record", "checked", "again"),
    [
        pytest.param(None, True, False, id="no record: another fleet's, or not adopted yet"),
        pytest.param(node(boot="b1"), True, False, id="complete"),
        pytest.param(node(boot="b0"), True, True, id="of an earlier boot"),
        pytest.param(node(), False, True, id="adopted"),
        pytest.param(
            msgspec.structs.replace(node(), state="terminated"), True, False, id="refused, and kept"
        ),
    ],
)
def test_an_agent_registers_again_where_its_record_lacks_it(
    record: NodeRecord | None, *, checked: bool, again: bool
) -> None:
    """Not at once: the record may only be behind."""
    missing = missing_events(record, "b1")
    assert must_register_again(missing, REGISTER_AGAIN_SECONDS, checked=checked) is again
    assert not must_register_again(missing, REGISTER_AGAIN_SECONDS - 1, checked=checked)


def test_boot_checks_that_still_run_are_not_missed() -> None:
    """A boot test may take an hour."""
    missing = MissingEvents(checks=True)
    assert not must_register_again(missing, REGISTER_AGAIN_SECONDS, checked=False)
    assert must_register_again(missing, REGISTER_AGAIN_SECONDS, checked=True)


def test_a_refused_machine_registers_now_and_then_alone() -> None:
    """Operators see by that that it is still there; the node's own machine is not refused."""
    own, other = (
        MachineIdentity(boot_id=boot, since=NOW, heard_at=NOW, registered_at=NOW)
        for boot in ("b0", "b1")
    )
    identity = NodeMachines(machine=own, refused=(other,))
    record = msgspec.structs.replace(node(NOW, boot="b0"), identity=identity)
    missing = missing_events(record, "b1")
    assert missing.refused
    assert not must_register_again(missing, REFUSED_AGAIN_SECONDS - 1, checked=True)
    assert must_register_again(missing, REFUSED_AGAIN_SECONDS, checked=True)
    assert missing_events(record, "b0") == MissingEvents()
