"""Folding a saga's log: allowed entries, corrupt ones, what is passed over, and no beginning."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.saga_log_entries import (
    SagaDone,
    SagaStarted,
    SagaUnwinding,
    StepExpired,
    StepFailed,
    StepStarted,
    StepSucceeded,
    UndoStarted,
    UndoSucceeded,
)
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.topology import SAGAS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import Reject
from services.runtime.consumer_loop import Received
from services.saga.coordinator import Coordinator
from services.saga.definitions import DEFINITIONS
from services.saga.saga_log import append, decode_entry, fold_stored
from services.saga.saga_state import CorruptLogError, SagaState, fold

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ABOUT: dict[str, Any] = {"time": NOW, "saga": "s"}
STEP: dict[str, Any] = {**ABOUT, "step": "cordon"}
BEGUN = SagaStarted(id="0", kind="cordon", params=SagaParams(pool="p", node="n"), **ABOUT)


def state_of(*entries: Any) -> SagaState:
    """Fold entries that must fit."""
    state: SagaState | None = None
    for i, entry in enumerate((BEGUN, *entries), 1):
        state = fold(state, entry, i, {})
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        ([StepStarted(id="1", **STEP)], "started"),
        ([StepStarted(id="1", **STEP), StepSucceeded(id="2", **STEP)], "succeeded"),
        ([StepStarted(id="1", **STEP), StepFailed(id="2", reason="r", **STEP)], "failed"),
        ([StepStarted(id="1", **STEP), StepExpired(id="2", **STEP)], "expired"),
        (
            [
                StepStarted(id="1", **STEP),
                SagaUnwinding(id="2", step="cordon", reason="r", **ABOUT),
                UndoStarted(id="3", **STEP),
                UndoSucceeded(id="4", **STEP),
            ],
            "undone",
        ),
    ],
)
def test_entries_lead_to_their_status(entries: list[Any], status: str) -> None:
    """Each allowed path ends in the status that the table names."""
    assert status == state_of(*entries).step("cordon").status


@pytest.mark.parametrize(
    "entries",
    [
        [StepSucceeded(id="1", **STEP)],
        [StepStarted(id="1", **STEP), StepStarted(id="2", **STEP)],
        [UndoStarted(id="1", **STEP)],
        [SagaDone(id="1", **ABOUT), StepStarted(id="2", **STEP)],
        [SagaDone(id="1", **ABOUT), SagaDone(id="2", **ABOUT)],
        [BEGUN],
    ],
)
def test_what_does_not_fit_is_a_corrupt_log(entries: list[Any]) -> None:
    """An entry that the log before it does not allow raises, and nothing happens."""
    with pytest.raises(CorruptLogError):
        state_of(*entries)


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b'{"type": "io.navarch.saga.event.v9.strange", "saga": "s"}',
        encode(StepSucceeded(id="9", **STEP)),
        encode(StepStarted(id="9", **{**STEP, "saga": "another"})),
    ],
)
def test_what_was_put_there_by_hand_is_passed_over(data: bytes) -> None:
    """Garbage in a log moves the guard on and nothing else."""
    before = state_of()
    stored = Stored(subjects.saga_entry("s", "cordon", "succeeded"), data, 7, NOW)
    after = fold_stored(before, stored)

    assert after is not None
    assert (7, before.status, before.steps) == (after.sequence, after.status, after.steps)


class CountingBus(MemoryBus):
    """Counts how often a log is read."""

    reads = 0

    async def read(self, *args: Any, **named: Any) -> list[Stored]:
        """Read, and count."""
        self.reads += 1
        return await super().read(*args, **named)


async def _nothing(*_: Any) -> None:
    """Stand-in: no saga waits or has effects."""


async def test_an_entry_of_a_log_without_a_beginning_is_rejected_at_once() -> None:
    """The log was once read ten times for each delivery, which held up sagas of healthy pools."""
    bus = CountingBus(MemoryServer(SystemClock()), PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    entry = StepFailed(id="1", reason="r", **STEP)
    await append(bus, entry, 0, {})
    (stored,) = await bus.read(SAGAS.name, subjects.saga_tree("s"))
    coordinator = Coordinator(bus, SystemClock(), DEFINITIONS, _nothing, _nothing, "pool-manager")
    before = bus.reads

    with pytest.raises(Reject, match="no beginning"):
        await coordinator.handle(Received(entry, stored))
    assert bus.reads - before == 1


async def test_a_log_that_was_set_back_is_read_again() -> None:
    """A cached log ends with a sequence that belongs to another entry since."""
    server = MemoryServer(SystemClock())
    bus, seen = MemoryBus(server, PerfectLink()), []
    await set_up(bus, SystemClock(), replicas=1)
    empty = server.state.back_up(SAGAS.name)

    async def project(state: SagaState, _: Any) -> None:
        seen.append(state.step("cordon").status)

    coordinator = Coordinator(bus, SystemClock(), DEFINITIONS, _nothing, project, "pool-manager")
    for saga in ("t", "s"):  # the last entry of s is the fourth, the start of its cordon
        await coordinator.start(saga, "cordon", BEGUN.params, cause="", headers={})
    server.restore(SAGAS.name, empty)
    await append(bus, BEGUN, 0, {})
    await append(bus, msgspec.structs.replace(BEGUN, id="u", saga="u"), 0, {})
    await append(bus, StepStarted(id="s.cordon.started", **STEP), 1, {})
    await append(bus, StepSucceeded(id="done", cause="s.cordon.started", **STEP), 3, {})
    await append(bus, SagaDone(id="s.done", cause="done", **ABOUT), 4, {})
    *_, stored = await bus.read(SAGAS.name, subjects.saga_tree("s"))

    await coordinator.handle(Received(decode_entry(stored), stored))
    assert seen == ["succeeded"]


async def test_an_entry_stored_again_is_not_one_of_the_log_that_is_gone() -> None:
    """The participant repeats its answer in a log that was set back before it.

    Of what had followed it nothing is known any more, and the records must not say so.
    """
    server = MemoryServer(SystemClock())
    bus, seen = MemoryBus(server, PerfectLink()), []
    await set_up(bus, SystemClock(), replicas=1)

    async def project(state: SagaState, _: Any) -> None:
        seen.append(state.status)

    coordinator = Coordinator(bus, SystemClock(), DEFINITIONS, _nothing, project, "pool-manager")
    await coordinator.start("s", "cordon", BEGUN.params, cause="", headers={})
    begun = server.state.back_up(SAGAS.name)
    answer = StepSucceeded(id="done", cause="s.cordon.started", **STEP)

    async def handle_the_answer() -> None:
        sequence = await append(bus, answer, 2, {})
        *_, stored = await bus.read(SAGAS.name, subjects.saga_tree("s"))
        assert stored.sequence == sequence
        await coordinator.handle(Received(decode_entry(stored), stored))

    await handle_the_answer()
    *_, end = await bus.read(SAGAS.name, subjects.saga_tree("s"))
    await coordinator.handle(Received(decode_entry(end), end))
    server.restore(SAGAS.name, begun)
    await handle_the_answer()
    assert seen == ["running", "done", "running"]
    assert coordinator.shortened


async def test_a_sequence_that_is_given_twice_shows_that_a_log_was_set_back() -> None:
    """Logs that are open are then looked for; from there on sequences count again."""
    server = MemoryServer(SystemClock())
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    empty = server.state.back_up(SAGAS.name)
    coordinator = Coordinator(bus, SystemClock(), DEFINITIONS, _nothing, _nothing, "pool-manager")
    await coordinator.start("s", "cordon", BEGUN.params, cause="", headers={})
    assert not coordinator.shortened
    server.restore(SAGAS.name, empty)
    await coordinator.start("t", "cordon", BEGUN.params, cause="", headers={})
    assert coordinator.shortened
    assert await coordinator.open_logs() == ["t"]
    assert not coordinator.shortened
    await coordinator.start("u", "cordon", BEGUN.params, cause="", headers={})
    assert not coordinator.shortened
    await coordinator.drop("t")
    assert await coordinator.open_logs() == ["u"]


async def test_a_saga_begins_behind_what_was_published_into_its_lost_log() -> None:
    """Otherwise one set-aside message, published again too late, holds a pool's requests up."""
    bus = MemoryBus(MemoryServer(SystemClock()), PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    await append(bus, StepStarted(id="1", **STEP), 0, {})
    coordinator = Coordinator(bus, SystemClock(), DEFINITIONS, _nothing, _nothing, "pool-manager")
    params = SagaParams(pool="p", node="n")

    assert await coordinator.start("s", "cordon", params, cause="", headers={})
    again = Coordinator(bus, SystemClock(), DEFINITIONS, _nothing, _nothing, "pool-manager")
    state = await again.state("s")
    assert state is not None
    assert (state.status, state.step("cordon").status) == ("running", "started")
    assert not await again.start("s", "cordon", params, cause="", headers={})


@pytest.mark.parametrize(("of", "looks"), [("s", 1), ("", 2)])
async def test_a_node_is_looked_at_again_unless_its_events_bring_the_saga_on(
    of: str, looks: int
) -> None:
    """A node's record names the saga: whatever changes it afterwards brings the saga on."""
    bus = MemoryBus(MemoryServer(SystemClock()), PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    looked: list[str] = []

    async def look(state: SagaState, _: NodeRecord | None) -> NodeRecord:
        looked.append(state.last_id)
        return NodeRecord(pool="p", node="n", saga=of)

    coordinator = Coordinator(bus, SystemClock(), DEFINITIONS, look, _nothing, "pool-manager")
    launch = LaunchSpec(fleet="f", provider="fake", instance_type="t")
    params = SagaParams(pool="p", new_node="n", launch=launch)
    await coordinator.start("s", "scale-up", params, cause="", headers={})
    for number, step in enumerate(("provision", "bootstrap"), 2):
        about = {"time": NOW, "saga": "s", "step": step, "cause": f"s.{step}.started"}
        await append(bus, StepSucceeded(id=f"s.{step}.succeeded", **about), 2 * number - 2, {})
        *_, stored = await bus.read(SAGAS.name, subjects.saga_tree("s"))
        await coordinator.handle(Received(decode_entry(stored), stored))
    *_, stored = await bus.read(SAGAS.name, subjects.saga_tree("s"))
    await coordinator.handle(Received(decode_entry(stored), stored))
    assert looked == ["s.register.started"] * looks
