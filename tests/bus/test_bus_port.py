"""Every bus stores, guards and keeps buckets in the same way."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from schemas import subjects
from schemas.stream_specs import MESSAGE_BYTES_MAX
from schemas.topology import EVENTS, LEASES, NODES, SAGAS
from services.primitives.errors import BusError, Conflict, Refused, Unavailable
from tests.bus.conftest import collect

FAULT = subjects.node_event("training", "training-1", "verdict")
OTHER = subjects.node_event("training", "training-2", "verdict")
TREE = subjects.saga_tree("replace-1")


async def test_a_repeated_publish_stores_once(any_bus):
    """The same message id gives the same sequence, and one message."""
    first = await any_bus.publish(FAULT, b"1", msg_id="a")
    again = await any_bus.publish(FAULT, b"1", msg_id="a")
    assert again == first
    assert [each.data for each in await any_bus.read(EVENTS.name, FAULT)] == [b"1"]


async def test_message_ids_are_the_streams_and_not_the_subjects(any_bus):
    """An id must therefore contain pool, node and fact."""
    await any_bus.publish(FAULT, b"1", msg_id="a")
    await any_bus.publish(OTHER, b"2", msg_id="a")
    assert await any_bus.read(EVENTS.name, OTHER) == []


async def test_what_is_stored_is_read_as_it_was_written(any_bus):
    """Subject, bytes and headers are read unchanged, with the server's own time."""
    before = datetime.now(UTC)
    sequence = await any_bus.publish(FAULT, b"\x00\xff{}", headers={"traceparent": "00-a-b-01"})
    (stored,) = await any_bus.read(EVENTS.name, FAULT)
    assert (stored.subject, stored.data, stored.sequence) == (FAULT, b"\x00\xff{}", sequence)
    assert stored.headers == {"traceparent": "00-a-b-01"}
    assert before - timedelta(seconds=1) < stored.time < before + timedelta(seconds=5)


async def test_of_two_writers_of_a_log_one_is_refused(any_bus):
    """The guard is the whole tree's last sequence, whatever subject under it was written."""
    started = subjects.saga_entry("replace-1", "saga", "started")
    cordon = subjects.saga_entry("replace-1", "cordon", "started")
    first = await any_bus.append(started, b"1", tree=TREE, expected=0)
    with pytest.raises(Conflict):
        await any_bus.append(cordon, b"2", tree=TREE, expected=0)
    second = await any_bus.append(cordon, b"2", tree=TREE, expected=first)
    other = subjects.saga_entry("replace-2", "saga", "started")
    await any_bus.append(other, b"1", tree=subjects.saga_tree("replace-2"), expected=0)
    assert [each.sequence for each in await any_bus.read(SAGAS.name, TREE)] == [first, second]


async def test_of_many_writers_at_once_exactly_one_wins(any_bus):
    """One append succeeds, however the writers race."""

    async def write(number: int) -> bool:
        subject = subjects.saga_entry("replace-1", f"step-{number}", "started")
        try:
            await any_bus.append(subject, b"", tree=TREE, expected=0)
        except Conflict:
            return False
        return True

    assert sum(await asyncio.gather(*(write(number) for number in range(20)))) == 1


async def test_the_last_entry_under_a_tree_is_its_newest(any_bus):
    """The newest is not the oldest of the last ones of each subject."""
    expected = 0
    for step in ("saga", "cordon", "drain", "cordon"):
        subject = subjects.saga_entry("replace-1", step, "started")
        expected = await any_bus.append(subject, step.encode(), tree=TREE, expected=expected)
    last = await any_bus.last(SAGAS.name, TREE)
    assert last is not None
    assert (last.sequence, last.data) == (expected, b"cordon")
    assert await any_bus.last(SAGAS.name, subjects.saga_tree("replace-2")) is None


async def test_reading_spans_pages(any_bus):
    """More than a server's batch comes back whole, in order, and without what was not asked for."""
    count = 2_345
    for start in range(0, count, 500):
        part = range(start, min(start + 500, count))
        await asyncio.gather(
            *(any_bus.publish(FAULT, b"%d" % number, msg_id=f"f-{number}") for number in part),
            any_bus.publish(OTHER, b"other"),
        )
    stored = await any_bus.read(EVENTS.name, FAULT)
    assert sorted(int(each.data) for each in stored) == list(range(count))
    sequences = [each.sequence for each in stored]
    assert sequences == sorted(sequences)
    middle = sequences[1_200]
    rest = await any_bus.read(EVENTS.name, FAULT, after=middle)
    assert [each.sequence for each in rest] == sequences[1_201:]
    assert await any_bus.read(EVENTS.name, FAULT, after=sequences[-1]) == []
    assert await any_bus.last_sequence(EVENTS.name) == max(
        each.sequence for each in await any_bus.read(EVENTS.name, subjects.NODE_EVENTS)
    )


async def test_a_batch_begins_after_a_sequence_or_at_a_time(any_bus):
    """A batch has at most `count` messages under the filter, in order."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    sequences = [await any_bus.publish(FAULT, b"%d" % number) for number in range(4)]
    await any_bus.publish(OTHER, b"other")

    async def batch(after: int | datetime, count: int = 10) -> list[int]:
        found = await any_bus.read_batch(EVENTS.name, FAULT, after=after, count=count)
        return [each.sequence for each in found]

    assert await batch(before) == sequences
    assert await batch(before, 2) == sequences[:2]
    assert await batch(sequences[1]) == sequences[2:]
    assert await batch(sequences[-1]) == []
    assert await batch(datetime.now(UTC) + timedelta(hours=1)) == []


async def test_reading_a_whole_page_exactly(any_bus):
    """The end is found also where the last page is full."""
    for start in range(0, 1_000, 500):
        await asyncio.gather(*(any_bus.publish(FAULT, b"%d" % (start + i)) for i in range(500)))
    assert len(await any_bus.read(EVENTS.name, FAULT)) == 1_000


async def test_a_key_is_created_once(any_bus):
    """Creating needs that there is no value; what was removed may be created again."""
    await any_bus.create(NODES, "training.n", b"1")
    with pytest.raises(Conflict):
        await any_bus.create(NODES, "training.n", b"2")
    await any_bus.delete(NODES, "training.n")
    assert await any_bus.get(NODES, "training.n") is None
    revision = await any_bus.create(NODES, "training.n", b"3")
    entry = await any_bus.get(NODES, "training.n")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision, entry.removed) == (
        "training.n",
        b"3",
        revision,
        "",
    )


async def test_a_key_is_updated_from_its_last_revision_only(any_bus):
    """When two have read the same, the second to write is refused; so is a removal."""
    first = await any_bus.create(NODES, "training.n", b"1")
    second = await any_bus.update(NODES, "training.n", b"2", first)
    with pytest.raises(Conflict):
        await any_bus.update(NODES, "training.n", b"3", first)
    with pytest.raises(Conflict):
        await any_bus.delete(NODES, "training.n", revision=first)
    third = await any_bus.put(NODES, "training.n", b"4")
    assert third > second
    await any_bus.delete(NODES, "training.n", revision=third)
    with pytest.raises(Conflict):
        await any_bus.update(NODES, "training.n", b"5", third)


async def test_entries_are_those_that_have_a_value(any_bus):
    """Entries are found by filter, without what was removed."""
    for key in ("a.1", "a.2", "b.1"):
        await any_bus.put(NODES, key, key.encode())
    await any_bus.delete(NODES, "a.1")
    assert [each.key for each in await any_bus.entries(NODES)] == ["a.2", "b.1"]
    assert [each.key for each in await any_bus.entries(NODES, "b.*")] == ["b.1"]


async def test_a_key_that_expires_leaves_a_marker(any_bus):
    """Silence is an event: watchers see it, the value is gone, the key can be created again."""
    watching = any_bus.watch(LEASES)
    seen = asyncio.create_task(collect(watching, 2))
    await any_bus.put(LEASES, "training.n", b"beat", ttl_seconds=1)
    beat, marker = await seen
    assert (beat.value, beat.removed) == (b"beat", "")
    assert (marker.key, marker.value, marker.removed) == ("training.n", b"", "MaxAge")
    assert (marker.time - beat.time).total_seconds() >= 0.9
    assert await any_bus.get(LEASES, "training.n") is None
    await any_bus.create(LEASES, "training.n", b"again", ttl_seconds=1)


async def test_a_fresh_beat_silences_the_old_one(any_bus):
    """Only the last value's time to live counts."""
    await any_bus.put(LEASES, "training.n", b"1", ttl_seconds=1)
    await any_bus.put(LEASES, "training.n", b"2", ttl_seconds=60)
    await any_bus.put(LEASES, "training.m", b"3", ttl_seconds=1)
    entries = await collect(any_bus.watch(LEASES, "training.*"), 3)
    assert [(each.key, each.removed) for each in entries] == [
        ("training.n", ""),
        ("training.m", ""),
        ("training.m", "MaxAge"),
    ]
    entry = await any_bus.get(LEASES, "training.n")
    assert entry is not None
    assert entry.value == b"2"


async def test_watching_begins_with_what_is_there(any_bus):
    """Each key's present entry once, then every change; of what came before only the last."""
    await any_bus.put(NODES, "a", b"1")
    await any_bus.put(NODES, "a", b"2")
    await any_bus.put(NODES, "b", b"3")
    watching = any_bus.watch(NODES)
    async with aclosing(watching), asyncio.timeout(60):
        first = [await anext(watching) for _ in range(2)]
        await any_bus.put(NODES, "b", b"4")
        await any_bus.delete(NODES, "a")
        rest = [await anext(watching) for _ in range(2)]
    assert [(each.key, each.value) for each in first] == [("a", b"2"), ("b", b"3")]
    assert [(each.key, each.value, each.removed) for each in rest] == [
        ("b", b"4", ""),
        ("a", b"", "DEL"),
    ]


@pytest.mark.parametrize(
    ("subject", "size", "error"),
    [
        ("navarch-unserved.x", 1, Unavailable),
        (FAULT, MESSAGE_BYTES_MAX + 1, Refused),
    ],
)
async def test_what_cannot_be_stored_is_said_at_once(any_bus, subject, size, error):
    """No stream for it, or too large: the publisher learns it, and nothing waits."""
    with pytest.raises(error):
        await any_bus.publish(subject, b"x" * size)


async def test_a_purge_removes_what_it_names(any_bus):
    """The purge removes nothing else."""
    await any_bus.publish(FAULT, b"1")
    await any_bus.publish(OTHER, b"2")
    await any_bus.purge(EVENTS.name, FAULT)
    left = await any_bus.read(EVENTS.name, subjects.NODE_EVENTS)
    assert [each.data for each in left] == [b"2"]


async def test_a_closed_bus_says_so(any_bus):
    """Calls after the end fail as the bus's own errors, and its streams end."""
    following = asyncio.create_task(collect(any_bus.watch(LEASES), 1))
    await any_bus.put(NODES, "a", b"1")
    await any_bus.close()
    async with asyncio.timeout(60):
        assert await following == []
    assert any_bus.connected is False
    with pytest.raises(BusError):
        await any_bus.publish(FAULT, b"")
