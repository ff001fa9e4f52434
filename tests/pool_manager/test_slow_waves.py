"""Nodes with one fault one after the other: a pool remembers what it remediated for it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas.messages import encode
from schemas.pool_events import Incident
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.safety import slow_waves
from tests.pool_manager.test_incidents import NOW, confirmed, decide, node, pool, released, silent


def rolled_out(
    count: int, *, size: int = 40, by: float = 20, quiet: bool = False, proven: Sequence[int] = ()
) -> tuple[PoolRecord, list[int]]:
    """Break a node every `by` seconds; return the record, and when each remediation began."""
    record, begun = pool(size), list[int]()
    waits = 300 if quiet else 0
    for number in range(count):
        at = number * by
        broken = silent(number, after=at) if quiet else node(number, 79, after=at)
        others = [node(100 + i) for i in range(size - 1)]
        health = {broken.node: confirmed(broken)} if number in proven else {}
        found = decide(record, [broken, *others], after=at + waits, health=health)
        record = msgspec.structs.replace(found.record, open={})  # and it went well
        begun += [number] * len(found.start)
    return record, begun


@pytest.mark.parametrize(
    ("count", "more", "begun"),
    [
        (4, {}, [0, 1, 2, 3]),
        (9, {}, [0, 1, 2, 3]),
        (9, {"quiet": True}, [0, 1, 2, 3]),
        (9, {"by": 800}, [0, 1, 2, 3]),
        (9, {"by": 900}, list(range(9))),
        (9, {"size": 1000}, list(range(9))),
        (30, {"size": 1000}, list(range(19))),
        (60, {"size": 3000, "by": 15}, list(range(49))),
        (9, {"size": 3}, [0, 1, 2, 3]),
        (9, {"proven": range(9)}, list(range(9))),
        (7, {"proven": (0, 1)}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_slow_wave_is_an_incident_by_what_was_remediated(
    count: int, more: dict[str, Any], begun: list[int]
) -> None:
    """An incident needs so many within the budget's window that only one fault accuses."""
    assert rolled_out(count, **more)[1] == begun


def test_slow_wave_says_what_was_repaired_already() -> None:
    """The incident holds from now on; closing the breaker ends that, and the memory."""
    record, _ = rolled_out(4)
    late = [node(number, 79, after=100 + number) for number in range(50, 52)]
    fleet = [*late, *(node(100 + i) for i in range(38))]
    found = decide(record, fleet, after=200)
    (event,) = [each for each in found.events if isinstance(each, Incident)]
    assert event.named == ("n050", "n051")
    assert (
        "6 nodes with XID 79 within 1h, 4 of them repaired already, have one cause" in event.reason
    )
    assert event.first == NOW + timedelta(seconds=200)
    assert not found.start
    let_go = released(found.record, 300)
    again = decide(let_go, fleet, after=301)
    assert [each.node for each in again.start.values()] == ["n050"]
    assert not again.record.recent_remediations


def test_record_keeps_few_of_what_was_remediated() -> None:
    """The record stays small whatever faults a pool shows, for however long."""
    record = pool(100_000)
    for number in range(3000):
        broken = node(number, 1 + number % 19 if number < 1000 else number, after=number)
        at = NOW + timedelta(seconds=number)
        record = slow_waves.with_remediated(record, broken, None, at)
    kept = record.recent_remediations
    assert len(kept) == slow_waves.SIGNATURES_MAX
    assert max(map(len, kept.values())) == slow_waves.NODES_MAX
    assert len(encode(record)) < 100_000
