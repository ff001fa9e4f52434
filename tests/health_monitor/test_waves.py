"""The same on many nodes where none is unhealthy for it: one incident, told once."""

from dataclasses import replace

import msgspec
import pytest

from schemas import subjects
from schemas.duration import Duration
from schemas.settings import IncidentSpec
from schemas.topology import EVENTS
from services.health_monitor.waves import Crash, Wave, Waves, What, is_wave, reason

SPEC = IncidentSpec(nodes=3, percent=10, window=Duration(60))
WHAT = What("training", "xid", 45)
CRASH = Crash(node="n9", kind="xid", code=79, fault="f9", at=5)


def fed(*seen: tuple[float, str], crash: Crash | None = None) -> list[Wave]:
    """Feed faults, (second, node); every wave that is found is opened."""
    waves, found = Waves(), []
    if crash is not None:
        waves.crashed("training", crash)
    for at, node in seen:
        wave = waves.take(WHAT, node, at, SPEC)
        if wave is not None:
            waves.open(wave)
            found.append(wave)
    return found


@pytest.mark.parametrize(
    ("seen", "waves"),
    [
        ([(0, "a"), (1, "b")], 0),
        ([(0, "a"), (1, "b"), (2, "c")], 1),
        ([(0, "a"), (1, "a"), (2, "a"), (3, "b")], 0),
        ([(0, "a"), (59, "b"), (61, "c")], 0),
        ([(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "f")], 1),
    ],
)
def test_a_wave_is_distinct_nodes_within_the_window(
    seen: list[tuple[float, str]], waves: int
) -> None:
    """One node's repetition is none, and what comes after belongs to the same one."""
    assert waves == len(fed(*seen))


def test_a_wave_knows_what_came_before_it() -> None:
    """A crash in the same pool shortly before; not one long ago, and not itself."""
    nodes = [(10.0, "a"), (11.0, "b"), (12.0, "c")]
    [wave] = fed(*nodes, crash=CRASH)
    assert reason(wave) == (
        "3 nodes with XID 45 at once; none of them is unhealthy for it; it came after XID 79 on n9"
    )
    for other in (
        replace(CRASH, at=-100.0),
        replace(CRASH, code=45),
    ):
        assert [None] == [each.after for each in fed(*nodes, crash=other)]


def test_a_large_pool_asks_for_its_share() -> None:
    """Three of a hundred are three; ten are one trouble."""
    few = Wave(WHAT, tuple("abc"), 0, 1)
    assert [True, True, False] == [is_wave(few, SPEC, size) for size in (0, 30, 100)]


def test_a_wave_ends_when_it_is_quiet_and_may_begin_anew() -> None:
    """Over once, with all its nodes; the next three are a new one."""
    waves = Waves()
    for at, node in enumerate("abcd"):
        if (wave := waves.take(WHAT, node, at, SPEC)) is not None:
            waves.open(wave)
    assert [] == waves.over(60, 60)
    [ended] = waves.over(64, 60)
    assert (("a", "b", "c", "d"), 3) == (ended.nodes, ended.last)
    assert [] == waves.over(64, 60)
    found = [waves.take(WHAT, node, 100, SPEC) for node in "abc"]
    assert found[2] is not None


async def test_xid_45_after_anothers_crash_is_one_incident(world, start, fault, bus) -> None:
    """Two replicas, one leaves: told once, with its cause; three nodes are none, nor fatal ones."""
    first = await start()
    await start()
    for number in range(9):
        await world.register(f"training-{number}")
    await world.publish(fault("crash", node="training-8", code=79))
    for number in range(8):
        await world.publish(fault(f"f45-{number}", node=f"training-{number}", code=45))
        await world.publish(fault(f"f79-{number}", node=f"training-{number}", code=94))
    for number in range(3):
        await world.publish(fault(f"f13-{number}", node=f"training-{number}", code=13))

    async def incidents() -> list[dict]:
        stored = await bus.read(EVENTS.name, subjects.pool_event_wildcard("incident"))
        return [msgspec.json.decode(each.data) for each in stored]

    async def told() -> bool:
        return bool(await incidents())

    await world.until(told)
    await first.stop()
    await world.publish(fault("f45-late", node="training-8", code=45))
    await world.settled()
    [incident] = await incidents()
    assert ("xid", 45, "opened") == (incident["kind"], incident["code"], incident["status"])
    assert incident["nodes"] >= 5
    assert "it came after XID" in incident["reason"]
    assert incident["cause"].startswith(("crash", "f79"))
