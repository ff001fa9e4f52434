"""Registrations of a second machine under a node's ID are refused."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.node_events import BootChecked, GpuIdentity, Registered
from schemas.node_records import NodeRecord
from services.pool_manager.planner.node_identity import refusal
from services.pool_manager.planner.node_projection import apply_event

START = datetime(2026, 11, 28, 4, 30, tzinfo=UTC)
NODE = NodeRecord(pool="p", node="n", state="active", admitted_at=START)


def registered(word: str, at: datetime) -> Registered:
    """A registration as `boot:gpus:instance`, by a clock that is right."""
    boot, gpus, instance = (*word.split(":"), "", "")[:3]
    return Registered(
        id=f"{word}-{at:%H%M%S}",
        time=at,
        pool="p",
        node="n",
        instance="n",
        boot_id=boot,
        hostname=f"host-of-{boot}",
        gpus=tuple(
            GpuIdentity(index=number, uuid=each, serial=f"s-{each}")
            for number, each in enumerate(gpus)
        ),
        provider_id=instance,
    )


def after(words: str, record: NodeRecord = NODE, gap: float = 20.0) -> NodeRecord:
    """Return the record after these registrations, one each `gap` seconds."""
    for number, word in enumerate(words.split(), 1):
        at = START + timedelta(seconds=gap * number)
        found = apply_event(record, registered(word, at), at)
        assert found is not None
        record = found
    return record


def seen(record: NodeRecord) -> tuple[str, list[str]]:
    """The boot that the node is in, and those that are refused."""
    assert record.identity is not None
    assert record.identity.machine.boot_id == record.boot_id
    return record.boot_id, [each.boot_id for each in record.identity.refused]


@pytest.mark.parametrize(
    ("words", "boot", "refused"),
    [
        ("a1:gh a2:gh a3:gh", "a3", []),  # reboots
        ("a1:gh a2:g a3:h", "a3", []),  # a GPU fell off the bus, and then the other
        ("a1:gh a1:gh a2:gh a2:gh", "a2", []),  # its agent restarts
        ("a1:gh b1:xy b2:xy", "b2", []),  # a successor of the same name
        ("a1:gh b1:xy a2:gh", "a2", []),  # the first machine, made again: it has not come back
        ("a1:gh:i1 a2:xy:i1 a3:gh:i1", "a3", []),  # the cloud moves an instance between hosts
        ("a1 a2 a3", "a3", []),  # without GPUs that can be read
        ("a1:gh b1:xy a1:gh", "a1", ["b1"]),  # it comes back: by the second change
        ("a1:gh b1:xy a1:gh b1:xy a1:gh", "a1", ["b1"]),
        ("a1 b1 a1", "a1", ["b1"]),  # by the boot alone
        ("a1::i1 b1::i2 a1::i1", "a1", ["b1"]),
        ("a1:gh:i1 b1:gh:i2 a1:gh:i1", "a1", ["b1"]),  # copied GPU IDs of simulated machines
        ("a1:gh a1:xy a1:gh", "a1", ["a1"]),  # a copied boot ID
        ("a1:gh b1:xy a2:gh b2:xy", "a2", ["b2"]),  # both reboot each time
        ("a1:gh b1:xy a1:gh b2:xy", "a1", ["b2", "b1"]),  # the refused one reboots
        ("a1:gh b1:xy a1:gh a2:gh a3:gh", "a3", ["b1"]),  # the own one reboots
        ("a1:gh b1:xy a1:gh c1:z a1:gh", "a1", ["c1", "b1"]),  # a third one
    ],
)
def test_a_machine_is_known_by_its_boots_gpus_and_instance(
    words: str, boot: str, refused: list[str]
) -> None:
    """A second machine is refused by the second change; a reboot or a successor never is."""
    assert seen(after(words)) == (boot, refused)


def test_gpus_that_alternate_slowly_are_machines_that_follow_each_other() -> None:
    """A host may get the same name again after days."""
    assert seen(after("a1:gh b1:xy a2:gh b2:xy", gap=7_200)) == ("b2", [])


@given(st.permutations(range(4)), st.sampled_from(["gh", "", "g"]))
def test_registrations_of_reboots_may_be_taken_in_in_any_order(order: list[int], gpus: str) -> None:
    """Replicas share the work, and what was delivered before is delivered again."""
    record = NODE
    events = []
    for number in range(4):
        at = START + timedelta(seconds=number)
        events.append((registered(f"a{number}:{gpus}", at), at))
    for number in (*order, *order):
        event, at = events[number]
        found = apply_event(record, event, at)
        assert found is not None
        record = found
    assert seen(record) == ("a3", [])


def test_an_operators_replay_is_no_second_machine() -> None:
    """The registration is stored later, with the time at which its machine had registered."""
    record = after("a1 a2")
    old = registered("a1", START + timedelta(seconds=20))
    assert apply_event(record, old, START + timedelta(hours=2)) == record


def test_what_a_refused_machine_reports_changes_nothing() -> None:
    """Neither its registration nor its boot checks."""
    record = after("a1:gh b1:xy a1:gh")
    later = START + timedelta(minutes=9)
    checked = BootChecked(id="c", time=later, pool="p", node="n", ok=False, boot_id="b1")
    assert apply_event(record, checked, later) == record
    changed = apply_event(record, registered("b1:xy", later), later)
    assert changed is not None
    assert (changed.boot_id, changed.gpus, changed.hostname) == (
        record.boot_id,
        record.gpus,
        record.hostname,
    )


def test_the_refusal_names_both_machines_once_an_hour() -> None:
    """While either of the two registers; of a machine that is alone there is none."""
    record, at = after("a1:gh:i1 b1:xy:i2 a1:gh:i1"), START + timedelta(minutes=1)
    event = refusal(record, registered("a1:gh:i1", at), at)
    assert event is not None
    assert (event.machine.boot_id, event.refused.boot_id) == ("a1", "b1")
    for word in ("host-of-a1", "i1", "s-g", "host-of-b1", "i2", "s-x"):
        assert word in event.reason
    other = refusal(record, registered("b1:xy:i2", at), at)
    assert other is not None
    assert other.id == event.id
    alone = after("a1:gh b1:xy")
    assert refusal(alone, registered("b1:xy", at), at) is None
    late = at + timedelta(hours=2)
    assert refusal(record, registered("a1:gh:i1", late), late) is None
    again = refusal(record, registered("b1:xy:i2", late), late)
    assert again is not None
    assert again.id != event.id
