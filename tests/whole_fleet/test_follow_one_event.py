"""XID 79 on node 7 is followed, from its kernel log to the first heartbeat of its replacement.

Runs the example of docs/follow-one-event.md on real processes, and compares the page with it.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from schemas import subjects
from schemas.node_records import HeartbeatRecord
from schemas.topology import EVENTS, HEARTBEATS, SAGAS, TIMERS
from services.bus.port import Stored
from tests.whole_fleet.fleet import WAIT_SECONDS, Fleet, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "follow-one-event.md").read_text(encoding="utf-8")
POOLS = """
  training:
    min_nodes: 7
    max_nodes: 8
"""
OLD, NEW, SAGA = "training-7-0000", "training-8-0000", "replace-training-7-0000-1"
"""What the story calls the two nodes and the saga; a run has digits of its own in the names."""
DIGITS = re.compile(r"training-([78])-[0-9a-f]{4}")
BOOT = re.compile(r"\.[0-9a-f]{8}\.")

EXPECTED_EVENTS = [
    (f"node.training.{OLD}.event.fault", "agent.event.v1.fault"),
    (f"node.training.{OLD}.event.verdict", "health_monitor.event.v1.verdict"),
    ("pool.training.event.saga-opened", "pool_manager.event.v1.saga_opened"),
    (f"node.training.{OLD}.event.cordoned", "pool_manager.event.v1.cordoned"),
    (f"node.training.{OLD}.event.drained", "pool_manager.event.v1.drained"),
    (f"node.training.{OLD}.event.terminated", "pool_manager.event.v1.terminated"),
    (f"node.training.{NEW}.event.registered", "agent.event.v1.registered"),
    (f"node.training.{NEW}.event.boot-checked", "agent.event.v1.boot_checked"),
    (f"node.training.{NEW}.event.admitted", "pool_manager.event.v1.admitted"),
    ("pool.training.event.node-replaced", "pool_manager.event.v1.node_replaced"),
    (f"node.training.{OLD}.event.repaired", "metrics.event.v1.repaired"),
]
WELCOME = (f"node.training.{NEW}.event.verdict", "health_monitor.event.v1.verdict")
"""The health-monitor's answer to `registered`; it races with the agent's boot checks."""
STEPS = ("cordon", "drain", "terminate", "provision", "bootstrap", "register", "admit")
EXPECTED_SAGAS = [
    (f"saga.{SAGA}.saga.started", "saga.event.v1.started"),
    *(
        (f"saga.{SAGA}.{step}.{status}", f"saga.event.v1.step_{status}")
        for step in STEPS
        for status in ("started", "succeeded")
    ),
    (f"saga.{SAGA}.saga.done", "saga.event.v1.done"),
]


@dataclass(frozen=True, slots=True)
class Example:
    """Holds what a run has stored, with the names of the page."""

    line: str
    begun: datetime
    stored: dict[str, list[Stored]]
    """Stream -> messages in order."""
    heartbeat: Stored

    def messages(self, stream: str) -> list[tuple[str, str]]:
        """Subject and type of every message of a stream that belongs to the example."""
        found = []
        for each in self.stored[stream]:
            subject, kind = renamed(each.subject), msgspec.json.decode(each.data)["type"]
            # The last messages about the other nodes' arrival may come late.
            if any(name in subject for name in (OLD, NEW, ".pool.")):
                found.append(
                    (subject.removeprefix("navarch.v1."), kind.removeprefix("io.navarch."))
                )
        return found

    def subjects(self) -> set[str]:
        """Return every subject of the run."""
        found = {renamed(each.subject) for all_ in self.stored.values() for each in all_}
        return found | {renamed(self.heartbeat.subject)}


def renamed(text: str) -> str:
    """Replace the run's names by those of the page."""
    return BOOT.sub(".00000000.", DIGITS.sub(r"training-\1-0000", text))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def example(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Example]:
    """Run the example."""
    async with serving_fleet(tmp_path_factory.mktemp("example"), POOLS) as fleet:
        old = next(
            node
            for node in await fleet.active("training", 7)
            if node.node.startswith("training-7-")
        )
        sequences = await fleet.last_sequences()
        sequences[TIMERS.name] = await fleet.bus.last_sequence(TIMERS.name)
        beating = asyncio.create_task(first_heartbeat(fleet))
        begun = datetime.now().astimezone()
        line = fleet.break_gpu(old)
        await fleet.replaced(old.node, sequences[EVENTS.name])
        await fleet.first(
            EVENTS.name,
            subjects.node_event("training", old.node, "repaired"),
            sequences[EVENTS.name],
            lambda _: True,
        )
        heartbeat = await beating
        await fleet.active("training", 7)
        stored = {name: await fleet.bus.read(name, ">", after=at) for name, at in sequences.items()}
        yield Example(line, begun, stored, heartbeat)


async def first_heartbeat(fleet: Fleet) -> Stored:
    """Wait for the first heartbeat of the eighth node."""
    async with (
        asyncio.timeout(WAIT_SECONDS),
        aclosing(fleet.bus.watch(HEARTBEATS, "training.*")) as watching,
    ):
        async for entry in watching:
            if "training-8-" in entry.key:
                name = f"$KV.{HEARTBEATS.name}.{entry.key}"
                return Stored(name, entry.value, entry.revision, entry.time)
    raise AssertionError("the bus stopped")


async def test_messages_are_stored_in_this_order(example: Example) -> None:
    """Each message follows from the one before it, and there is no other about either node."""
    events = example.messages(EVENTS.name)
    assert events.count(WELCOME) == 1
    assert events.index(WELCOME) > events.index(EXPECTED_EVENTS[6])
    assert [each for each in events if each != WELCOME] == EXPECTED_EVENTS
    assert example.messages(SAGAS.name) == EXPECTED_SAGAS


async def test_each_message_names_its_cause(example: Example) -> None:
    """The last event leads back, from `cause` to `cause`, to the line in the kernel log."""
    messages = {
        message["id"]: message
        for stream in (EVENTS.name, SAGAS.name)
        for each in example.stored[stream]
        for message in [msgspec.json.decode(each.data)]
    }
    (replaced,) = (m for m in messages.values() if m["type"].endswith(".node_replaced"))
    chain = [replaced]
    while chain[-1]["cause"]:
        chain.append(messages[chain[-1]["cause"]])
    assert chain[-1]["type"] == "io.navarch.agent.event.v1.fault"
    assert chain[-1]["message"] == example.line.partition(";")[2]
    assert len(chain) == len(EXPECTED_SAGAS) + 2


async def test_replacement_sends_heartbeats(example: Example) -> None:
    """The first heartbeat is the new node's, of its own boot, after the old node is gone."""
    beat = msgspec.json.decode(example.heartbeat.data, type=HeartbeatRecord)
    assert renamed(f"{beat.pool}.{beat.node}") == f"training.{NEW}"
    (gone,) = (e for e in example.stored[EVENTS.name] if e.subject.endswith(".terminated"))
    assert example.begun < gone.time < example.heartbeat.time
    (registered,) = (e for e in example.stored[EVENTS.name] if e.subject.endswith(".registered"))
    assert msgspec.json.decode(registered.data)["boot_id"] == beat.boot_id


# --- the page ------------------------------------------------------------------------------------

SUBJECT = re.compile(r"(?:navarch\.v1|\$KV)\.[\w.$-]*\w")
JSON = re.compile(r"```json\n(.*?)```", re.DOTALL)
VARYING = frozenset(
    {"time", "deadline", "duration_seconds", "gpu_uuid", "gpu_serial", "uuid", "serial", "fleet"}
    | {"boot_id", "policy", "hostname", "timestamp", "agent_version", "address"}
)
"""Fields that no two runs have in common."""


async def test_page_names_only_subjects_of_the_run(example: Example) -> None:
    """Each subject on the page occurs in this run, and all of the example's are on the page."""
    named = {renamed(each) for each in SUBJECT.findall(PAGE)}
    assert named - example.subjects() == set()
    expected = {
        f"{subjects.ROOT}.{each}" for each, _ in (*EXPECTED_EVENTS, WELCOME, *EXPECTED_SAGAS)
    }
    assert expected - named == set()


async def test_page_excerpts_match_the_run(example: Example) -> None:
    """Each JSON excerpt on the page is part of a message of this run."""
    messages = [
        msgspec.json.decode(renamed(each.data.decode()))
        for each in (*(m for all_ in example.stored.values() for m in all_), example.heartbeat)
    ]
    excerpts = [msgspec.json.decode(renamed(each)) for each in JSON.findall(PAGE)]
    assert len(excerpts) >= 8
    assert [each for each in excerpts if not any(within(each, m) for m in messages)] == []


def within(excerpt: Any, message: Any) -> bool:
    """Return whether a message contains all fields of an excerpt."""
    match excerpt, message:
        case dict(), dict():
            return all(
                key in message and (key in VARYING or within(value, message[key]))
                for key, value in excerpt.items()
            )
        case list(), list():
            return all(any(within(one, other) for other in message) for one in excerpt)
        case _:
            return bool(excerpt == message)
