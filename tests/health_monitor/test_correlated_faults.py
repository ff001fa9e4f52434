"""The same fault on many nodes, none unhealthy because of it: one incident, published once."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.duration import Duration
from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.settings import IncidentSpec
from schemas.topology import EVENTS, NODES
from services.health_monitor.rules.correlated_faults import (
    CorrelatedFaults,
    Crash,
    FaultCorrelator,
    Group,
    Launch,
    NodePlacement,
    PoolPlacement,
    SharedFault,
    reason,
)

SPEC = IncidentSpec(nodes=3, percent=10, window=Duration(60))
FIVE = IncidentSpec(nodes=5, percent=10, window=Duration(60))
SHARED_FAULT = SharedFault("training", "xid", 45)
CRASH = Crash(node="n9", kind="xid", code=79, fault="f9", at=5)
POOL = [Group("pool", "", 0)]


def detect(
    *seen: tuple[float, str], crash: Crash | None = None, size: int = 0
) -> list[CorrelatedFaults]:
    """Detect waves in faults given as (second, node); every wave found is opened."""
    waves, found = FaultCorrelator(), []
    if crash is not None:
        waves.crashed("training", crash)
    for at, node in seen:
        wave = waves.take(SHARED_FAULT, node, at, [Group("pool", "", size)], SPEC)
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
def test_wave_counts_distinct_nodes_within_window(
    seen: list[tuple[float, str]], waves: int
) -> None:
    """Repeats on one node do not count, and later nodes join the open wave."""
    assert waves == len(detect(*seen))


def test_wave_names_the_crash_before_it() -> None:
    """A recent crash in the same pool is named; an old one or the wave's own fault is not."""
    nodes = [(10.0, "a"), (11.0, "b"), (12.0, "c")]
    [wave] = detect(*nodes, crash=CRASH)
    assert reason(wave) == (
        "3 nodes with XID 45 at once; none of them is unhealthy for it; it came after XID 79 on n9"
    )
    for other in (
        replace(CRASH, at=-100.0),
        replace(CRASH, code=45),
    ):
        assert [None] == [each.after for each in detect(*nodes, crash=other)]


def test_large_pool_needs_a_percentage_of_its_nodes() -> None:
    """Three nodes of a hundred are no wave; ten are."""
    nodes = [(float(number), f"n{number}") for number in range(12)]
    few = [len(detect(*nodes[:3], size=size)) for size in (0, 30, 100)]
    assert [1, 1, 0] == few
    [wave] = detect(*nodes, size=100)
    assert 10 == len(wave.nodes)


def test_wave_ends_after_a_quiet_window_and_can_start_again() -> None:
    """A wave ends once, with all its nodes; the next three nodes start another wave."""
    waves = FaultCorrelator()
    for at, node in enumerate("abcd"):
        if (wave := waves.take(SHARED_FAULT, node, at, POOL, SPEC)) is not None:
            waves.open(wave)
    assert [] == waves.over(60, 60)
    [ended] = waves.over(64, 60)
    assert (("a", "b", "c", "d"), 3) == (ended.nodes, ended.last)
    assert [] == waves.over(64, 60)
    found = [waves.take(SHARED_FAULT, node, 100, POOL, SPEC) for node in "abc"]
    assert found[2] is not None


def make_placement(number: int, **fields: Any) -> NodePlacement:
    """Place four nodes in each rack, ten racks in each zone, two zones in each pool."""
    where = {"rack": f"r{number // 4}", "zone": "ab"[number // 40], "launch": Launch("aws")}
    return NodePlacement(node=f"n{number}", **where | fields)


PLACEMENT = PoolPlacement.of(make_placement(number) for number in range(80))


def waves_of(
    *numbers: int, jobs: dict[int, str] | None = None, crash: Crash | None = None, code: int = 45
) -> list[tuple[str, str, int]]:
    """Scope, group and size of each wave that faults of these nodes make, one per second."""
    waves, found = FaultCorrelator(), []
    if crash is not None:
        waves.crashed("training", crash)
    for at, number in enumerate(numbers, 10):
        groups = PLACEMENT.groups(f"n{number}", (jobs or {}).get(number, ""))
        what = SharedFault("training", "xid", code)
        wave = waves.take(what, f"n{number}", float(at), groups, FIVE)
        if wave is not None:
            waves.open(wave)
            found.append((wave.what.scope, wave.what.within, len(wave.nodes)))
    return found


def test_groups_of_a_node_follow_its_record() -> None:
    """Narrow before wide; a group equal to the pool is left out; terminated nodes do not count."""
    known = PoolPlacement.of(
        [*(make_placement(number) for number in range(79)), make_placement(79, state="terminated")]
    )
    assert [
        Group("job", "slurm-7", 0),
        Group("rack", "r10", 4),
        Group("zone", "b", 39),
        Group("pool", "", 79),
    ] == known.groups("n41", "slurm-7")
    assert [Group("pool", "", 79)] == known.groups("n79", "")
    clouds = PoolPlacement.of(
        [make_placement(0), make_placement(1, launch=Launch("gcp"), rack="", zone="")]
    )
    assert [Group("provider", "gcp", 1), Group("pool", "", 2)] == clouds.groups("n1", "")
    assert [Group("pool", "", 0)] == PoolPlacement().groups("n1", "")


JOB = dict.fromkeys((1, 9, 17, 33, 70), "slurm-7")
OTHER_JOB = dict.fromkeys((2, 10, 18), "slurm-8")


@pytest.mark.parametrize(
    ("numbers", "fields", "waves"),
    [
        # A job: three of its nodes anywhere, or two after another node's crash; later ones join it.
        ([1, 9], {"jobs": JOB}, []),
        ([1, 9, 17, 33, 70], {"jobs": JOB}, [("job", "slurm-7", 3)]),
        ([1, 9], {"jobs": JOB, "crash": replace(CRASH, job="slurm-7")}, [("job", "slurm-7", 2)]),
        ([1, 9], {"jobs": JOB, "crash": replace(CRASH, job="slurm-8")}, []),
        (
            [1, 2, 9, 10, 17, 18],
            {"jobs": JOB | OTHER_JOB},
            [("job", "slurm-7", 3), ("job", "slurm-8", 3)],
        ),
        # A rack: all four nodes; not three of four, and not if other racks show the fault too.
        ([4, 5, 6], {}, []),
        ([4, 5, 6, 7], {}, [("rack", "r1", 4)]),
        ([0, 4, 8, 12, 5, 6, 7], {}, [("zone", "a", 5)]),
        # A zone: a tenth of it and at least five nodes, if the other zone has almost none.
        ([0, 5, 10, 15, 20], {}, [("zone", "a", 5)]),
        ([0, 41, 10, 46, 20, 51, 30, 56], {}, [("pool", "", 8)]),
    ],
)
def test_wave_has_the_narrowest_scope_that_explains_it(
    numbers: list[int], fields: dict[str, Any], waves: list[tuple[str, str, int]]
) -> None:
    """A wave is published once, with no wider wave for the same nodes."""
    assert waves == waves_of(*numbers, **fields)


def test_program_faults_of_one_job_are_one_wave() -> None:
    """XID 13, 43 and 45 on nodes of one job are one wave; a hardware fault stays separate."""
    waves = FaultCorrelator()

    def take(node: str, code: int) -> CorrelatedFaults | None:
        groups = [Group("job", "slurm-7", 0), Group("pool", "", 80)]
        wave = waves.take(SharedFault("training", "xid", code), node, 1.0, groups, FIVE)
        if wave is not None:
            waves.open(wave)
        return wave

    assert [45] == [w.what.code for node in "abc" if (w := take(node, 45)) is not None]
    assert [None] * 6 == [take(node, code) for node in "def" for code in (13, 43)]
    assert [63] == [w.what.code for node in "abc" if (w := take(node, 63)) is not None]


def test_only_program_faults_follow_from_a_crash() -> None:
    """Rows remapped on three nodes are not explained by another node's lost GPU."""
    waves = FaultCorrelator()
    waves.crashed("training", CRASH)
    what = SharedFault("training", "xid", 63)
    [*_, wave] = [waves.take(what, node, 6.0, POOL, SPEC) for node in "abc"]
    assert wave is not None
    assert wave.after is None


async def test_xid_45_after_anothers_crash_is_one_incident(world, start, fault, bus) -> None:
    """Two replicas, one stops: one incident with its cause; three nodes or fatal XIDs are none."""
    first = await start()
    await start()
    for number in range(9):
        await world.register(f"training-{number}")
    await world.publish(fault("crash", node="training-8", code=79))
    for number in range(8):
        await world.publish(fault(f"f45-{number}", node=f"training-{number}", code=45))
        await world.publish(fault(f"f95-{number}", node=f"training-{number}", code=95))
    for number in range(3):
        await world.publish(fault(f"f13-{number}", node=f"training-{number}", code=13))
    await world.until(lambda: has_incident(bus))
    await first.stop()
    await world.publish(fault("f45-late", node="training-8", code=45))
    await world.settled()
    [incident] = await incidents(bus)
    assert ("xid", 45, "opened") == (incident["kind"], incident["code"], incident["status"])
    assert ("pool", "") == (incident["scope"], incident["within"])
    assert incident["nodes"] >= 5
    assert "it came after XID" in incident["reason"]
    assert incident["cause"].startswith(("crash", "f95"))


async def test_faults_of_one_rack_are_one_incident_that_names_the_rack(
    world, start, fault, bus
) -> None:
    """The racks come from NODES; ten other nodes of the pool are healthy."""
    for number in range(14):
        record = NodeRecord(
            pool="training",
            node=f"training-{number}",
            state="active",
            rack="Hall 2 / 17" if number < 4 else f"other-{number}",
            launch=LaunchSpec(fleet="f", provider="ssh", instance_type="h100"),
        )
        await bus.put(NODES, node_key("training", record.node), encode(record))
    await start()
    for number in range(4):
        await world.publish(fault(f"f{number}", node=f"training-{number}", code=63))
    await world.until(lambda: has_incident(bus))
    [incident] = await incidents(bus)
    assert ("rack", "Hall 2 / 17", 4) == tuple(incident[k] for k in ("scope", "within", "nodes"))
    assert "4 nodes of rack Hall 2 / 17 with XID 63 at once" in incident["reason"]
    assert incident["incident"].startswith("xid-63-hall-2---17-")


async def incidents(bus) -> list[dict[str, Any]]:
    """Return every stored incident event."""
    stored = await bus.read(EVENTS.name, subjects.pool_event_wildcard("incident"))
    return [msgspec.json.decode(each.data) for each in stored]


async def has_incident(bus) -> bool:
    """Return whether an incident is stored."""
    return bool(await incidents(bus))
