"""The same on many nodes where none is unhealthy for it: one incident, told once."""

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
    SharedFault,
    reason,
)
from services.health_monitor.rules.topology_groups import Launch, NodePlacement, PoolPlacement

SPEC = IncidentSpec(nodes=3, percent=10, window=Duration(60))
FIVE = IncidentSpec(nodes=5, percent=10, window=Duration(60))
WHAT = SharedFault("training", "xid", 45)
CRASH = Crash(node="n9", kind="xid", code=79, fault="f9", at=5)
POOL = [Group("pool", "", 0)]


def fed(
    *seen: tuple[float, str], crash: Crash | None = None, size: int = 0
) -> list[CorrelatedFaults]:
    """Feed faults, (second, node); every wave that is found is opened."""
    waves, found = FaultCorrelator(), []
    if crash is not None:
        waves.crashed("training", crash)
    for at, node in seen:
        wave = waves.take(WHAT, node, at, [Group("pool", "", size)], SPEC)
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
    nodes = [(float(number), f"n{number}") for number in range(12)]
    few = [len(fed(*nodes[:3], size=size)) for size in (0, 30, 100)]
    assert [1, 1, 0] == few
    [wave] = fed(*nodes, size=100)
    assert 10 == len(wave.nodes)


def test_a_wave_ends_when_it_is_quiet_and_may_begin_anew() -> None:
    """Over once, with all its nodes; the next three are a new one."""
    waves = FaultCorrelator()
    for at, node in enumerate("abcd"):
        if (wave := waves.take(WHAT, node, at, POOL, SPEC)) is not None:
            waves.open(wave)
    assert [] == waves.over(60, 60)
    [ended] = waves.over(64, 60)
    assert (("a", "b", "c", "d"), 3) == (ended.nodes, ended.last)
    assert [] == waves.over(64, 60)
    found = [waves.take(WHAT, node, 100, POOL, SPEC) for node in "abc"]
    assert found[2] is not None


def place(number: int, **fields: Any) -> NodePlacement:
    """Four nodes a rack, ten racks a zone, two zones a pool."""
    where = {"rack": f"r{number // 4}", "zone": "ab"[number // 40], "launch": Launch("aws")}
    return NodePlacement(node=f"n{number}", **where | fields)


PLACES = PoolPlacement.of(place(number) for number in range(80))


def among(
    *numbers: int, jobs: dict[int, str] | None = None, crash: Crash | None = None, code: int = 45
) -> list[tuple[str, str, int]]:
    """Scope, name and size of each wave that faults of these nodes make, one a second."""
    waves, found = FaultCorrelator(), []
    if crash is not None:
        waves.crashed("training", crash)
    for at, number in enumerate(numbers, 10):
        groups = PLACES.groups(f"n{number}", (jobs or {}).get(number, ""))
        what = SharedFault("training", "xid", code)
        wave = waves.take(what, f"n{number}", float(at), groups, FIVE)
        if wave is not None:
            waves.open(wave)
            found.append((wave.what.scope, wave.what.within, len(wave.nodes)))
    return found


def test_a_node_shares_with_others_what_its_record_says() -> None:
    """Narrow before wide; what has the whole pool is the pool; the gone and unknown count not."""
    known = PoolPlacement.of(
        [*(place(number) for number in range(79)), place(79, state="terminated")]
    )
    assert [
        Group("job", "slurm-7", 0),
        Group("rack", "r10", 4),
        Group("zone", "b", 39),
        Group("pool", "", 79),
    ] == known.groups("n41", "slurm-7")
    assert [Group("pool", "", 79)] == known.groups("n79", "")
    clouds = PoolPlacement.of([place(0), place(1, launch=Launch("gcp"), rack="", zone="")])
    assert [Group("provider", "gcp", 1), Group("pool", "", 2)] == clouds.groups("n1", "")
    assert [Group("pool", "", 0)] == PoolPlacement().groups("n1", "")


JOB = dict.fromkeys((1, 9, 17, 33, 70), "slurm-7")
OTHER_JOB = dict.fromkeys((2, 10, 18), "slurm-8")


@pytest.mark.parametrize(
    ("numbers", "fields", "waves"),
    [
        # A job: three of its nodes anywhere, two after another's crash, and all that follow.
        ([1, 9], {"jobs": JOB}, []),
        ([1, 9, 17, 33, 70], {"jobs": JOB}, [("job", "slurm-7", 3)]),
        ([1, 9], {"jobs": JOB, "crash": replace(CRASH, job="slurm-7")}, [("job", "slurm-7", 2)]),
        ([1, 9], {"jobs": JOB, "crash": replace(CRASH, job="slurm-8")}, []),
        (
            [1, 2, 9, 10, 17, 18],
            {"jobs": JOB | OTHER_JOB},
            [("job", "slurm-7", 3), ("job", "slurm-8", 3)],
        ),
        # A rack: all four of it; three are not yet all, and other racks show that it is wider.
        ([4, 5, 6], {}, []),
        ([4, 5, 6, 7], {}, [("rack", "r1", 4)]),
        ([0, 4, 8, 12, 5, 6, 7], {}, [("zone", "a", 5)]),
        # A zone: a tenth of it, five at least, where the other zone has next to none.
        ([0, 5, 10, 15, 20], {}, [("zone", "a", 5)]),
        ([0, 41, 10, 46, 20, 51, 30, 56], {}, [("pool", "", 8)]),
    ],
)
def test_a_wave_is_of_what_its_nodes_share(
    numbers: list[int], fields: dict[str, Any], waves: list[tuple[str, str, int]]
) -> None:
    """The narrowest group that explains it, told once, and no wider one for the same nodes."""
    assert waves == among(*numbers, **fields)


def test_what_a_program_leaves_in_one_job_is_one_wave() -> None:
    """13 here, 43 there and 45 on the rest; a fault of the hardware is not hidden by it."""
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


def test_only_what_programs_bring_about_follows_from_a_crash() -> None:
    """Rows remapped on three nodes are not explained by another node's lost GPU."""
    waves = FaultCorrelator()
    waves.crashed("training", CRASH)
    what = SharedFault("training", "xid", 63)
    [*_, wave] = [waves.take(what, node, 6.0, POOL, SPEC) for node in "abc"]
    assert wave is not None
    assert wave.after is None


async def test_xid_45_after_anothers_crash_is_one_incident(world, start, fault, bus) -> None:
    """Two replicas, one leaves: told once, with its cause; three nodes are none, nor fatal ones."""
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
    await world.until(lambda: told(bus))
    await first.stop()
    await world.publish(fault("f45-late", node="training-8", code=45))
    await world.settled()
    [incident] = await incidents(bus)
    assert ("xid", 45, "opened") == (incident["kind"], incident["code"], incident["status"])
    assert ("pool", "") == (incident["scope"], incident["within"])
    assert incident["nodes"] >= 5
    assert "it came after XID" in incident["reason"]
    assert incident["cause"].startswith(("crash", "f95"))


async def test_one_rack_is_one_incident_that_names_it(world, start, fault, bus) -> None:
    """Where the nodes stand is read from NODES; ten others of the pool are in order."""
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
    await world.until(lambda: told(bus))
    [incident] = await incidents(bus)
    assert ("rack", "Hall 2 / 17", 4) == tuple(incident[k] for k in ("scope", "within", "nodes"))
    assert "4 nodes of rack Hall 2 / 17 with XID 63 at once" in incident["reason"]
    assert incident["incident"].startswith("xid-63-hall-2---17-")


async def incidents(bus) -> list[dict[str, Any]]:
    """Every incident that was told."""
    stored = await bus.read(EVENTS.name, subjects.pool_event_wildcard("incident"))
    return [msgspec.json.decode(each.data) for each in stored]


async def told(bus) -> bool:
    """Whether there is one."""
    return bool(await incidents(bus))
