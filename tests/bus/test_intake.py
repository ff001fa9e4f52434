"""INTAKE takes a share of each node's facts, and EVENTS has all that INTAKE took."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from schemas import subjects
from schemas.headers import MSG_ID
from schemas.node_events import FACTS_OF_AGENTS, FACTS_OF_SERVICES
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, FACTS_WAITING_MAX, INTAKE
from services.bus.fact_copies import Copied
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Bus
from services.bus.topology_setup import set_up
from services.health_monitor.fact_intake import FactIntake
from services.primitives.clock import SystemClock
from services.primitives.errors import Refused, TooMany
from tests.support.settling import arriving

LOUD = subjects.node_event("training", "loud", "fault")


async def test_the_server_refuses_what_is_beyond_a_nodes_share(any_bus: Bus) -> None:
    """The share is of each kind by itself, and of no other node; a refusal shows no full disk."""
    for number in range(FACTS_WAITING_MAX):
        await any_bus.publish(LOUD, b"%d" % number)
    for _ in range(4):
        with pytest.raises(TooMany):
            await any_bus.publish(LOUD, b"beyond")
    for fact in FACTS_OF_AGENTS[1:]:
        await any_bus.publish(subjects.node_event("training", "loud", fact), b"{}")
    await any_bus.publish(subjects.node_event("training", "quiet", "fault"), b"{}")
    await arriving(any_bus)
    assert len(await any_bus.read(EVENTS.name, LOUD)) == FACTS_WAITING_MAX
    assert any_bus.unwritable_streams() == {}


async def test_what_has_arrived_makes_room(any_bus: Bus) -> None:
    """Only that: facts behind the last one that was seen in EVENTS stay."""
    intake = FactIntake(any_bus, SystemClock())
    for number in range(FACTS_WAITING_MAX):
        await any_bus.publish(LOUD, b"%d" % number)
    await arriving(any_bus)
    stored = await any_bus.read(EVENTS.name, LOUD)
    intake.decode(stored[9])
    running = asyncio.create_task(intake.run())
    left = FACTS_WAITING_MAX
    async with asyncio.timeout(30):
        while left == FACTS_WAITING_MAX:
            await asyncio.sleep(0.01)
            left = int((await any_bus.admin(f"STREAM.INFO.{INTAKE.name}", {}))["state"]["messages"])
    assert left == FACTS_WAITING_MAX - 10
    await any_bus.publish(LOUD, b"next")
    running.cancel()


async def test_what_an_ended_process_left_makes_room(any_bus: Bus) -> None:
    """A node with a full share could not report anything until another node's fact arrived."""
    for number in range(FACTS_WAITING_MAX):
        await any_bus.publish(LOUD, b"%d" % number)
    await arriving(any_bus)
    await FactIntake(any_bus, SystemClock()).make_room()
    await any_bus.publish(LOUD, b"next")
    info = await any_bus.admin(f"STREAM.INFO.{INTAKE.name}", {})
    assert info["state"]["messages"] == 1


@pytest.mark.parametrize(
    ("sequence", "seconds", "expected"),
    [(7, 1, True), (7, 0, True), (7, -1, False), (8, 1, False)],
)
def test_a_copy_of_an_earlier_stream_makes_no_room(
    sequence: int, seconds: int, expected: bool
) -> None:
    """Neither one that was stored before INTAKE was created, nor one that INTAKE has not had."""
    created = datetime(2026, 11, 29, tzinfo=UTC)
    info = {"created": created.isoformat(), "state": {"last_seq": 7}}
    assert Copied(sequence, created + timedelta(seconds=seconds)).is_of(info) is expected


async def test_a_new_stream_of_the_name_is_copied_from_its_beginning(any_bus: Bus) -> None:
    """The sequences begin below those that EVENTS has; a fact that is sent again is dropped there.

    Of what has made room INTAKE forgets the message IDs; EVENTS has them.
    """
    for number in range(9):
        await any_bus.publish(LOUD, b"%d" % number, msg_id=f"f-{number}")
    await arriving(any_bus)
    await any_bus.admin(f"STREAM.DELETE.{INTAKE.name}", {})
    await set_up(any_bus, SystemClock(), replicas=1)
    await any_bus.publish(LOUD, b"0", msg_id="f-0")
    await any_bus.publish(LOUD, b"9", msg_id="f-9")
    await arriving(any_bus)
    stored = await any_bus.read(EVENTS.name, LOUD)
    assert [each.data for each in stored] == [b"%d" % number for number in range(10)]
    assert [each.headers[MSG_ID] for each in stored] == [f"f-{number}" for number in range(10)]


async def test_a_stream_of_the_release_before_gives_its_facts_to_the_new_one(
    server: EmbeddedServer,
) -> None:
    """The stream is changed in place: nothing that is stored before or after is missing."""
    bus = await NatsBus.connect(
        ConnectOptions(settings=NatsSettings(url=server.url), name="upgrade")
    )
    former = (subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS)
    config = EVENTS.config(1) | {"subjects": list(former)}
    del config["sources"]
    for stream in (EVENTS.name, INTAKE.name):
        try:
            await bus.admin(f"STREAM.DELETE.{stream}", {})
        except Refused:
            continue
    await bus.admin(f"STREAM.CREATE.{EVENTS.name}", config)
    await bus.publish(LOUD, b"before")
    await set_up(bus, SystemClock(), replicas=1)
    await bus.publish(LOUD, b"after")
    await arriving(bus)
    stored = await bus.read(EVENTS.name, LOUD)
    await bus.close()
    assert [each.data for each in stored] == [b"before", b"after"]


async def test_the_largest_fact_is_copied_and_what_comes_after_it(any_bus: Bus) -> None:
    """A message that EVENTS could not take would hold up all that are behind it, of any node."""
    with pytest.raises(Refused):
        await any_bus.publish(LOUD, b"x" * (INTAKE.message_bytes_max + 1))
    await any_bus.publish(LOUD, b"x" * INTAKE.message_bytes_max)
    await any_bus.publish(subjects.node_event("training", "quiet", "fault"), b"{}")
    await arriving(any_bus)
    assert len(await any_bus.read(EVENTS.name, subjects.NODE_EVENTS)) == 2


def test_every_fact_has_one_stream() -> None:
    """Agents' own pass through INTAKE, those of services do not."""
    assert {*FACTS_OF_AGENTS} == {"fault", "registered", "boot-checked", "provider-notice"}
    assert not {*FACTS_OF_AGENTS} & {*FACTS_OF_SERVICES}
