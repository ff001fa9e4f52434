"""Levels in telemetry: periods above or below a bound, their faults, and the level watch."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import subjects
from schemas.gpu_samples import GpuSample
from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.node_events import Fault, Registered, Telemetry, Uncordoned
from schemas.settings import Settings
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.rules.level_faults import is_over, record_crossing
from services.health_monitor.rules.policy_file import load_policy, parse_policy
from services.health_monitor.rules.telemetry_levels import (
    AGAIN_SECONDS,
    GAP_SECONDS_MAX,
    GpuLevels,
    Level,
    Spells,
)
from services.primitives.errors import ConfigurationError
from services.settings.packaged_files import resource

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
HOT = Level(
    name="hot",
    description="",
    reading="temperature_celsius",
    above=90,
    until=85,
    for_seconds=10,
    kind="thermal",
)
LOW = Level(
    name="low",
    description="",
    reading="temperature_margin_celsius",
    below=3,
    until=8,
    for_seconds=10,
    kind="thermal",
)
BRAKED = Level(
    name="braked",
    description="",
    reading="throttle_reasons",
    bits=0x80,
    for_seconds=10,
    kind="power",
)


def edges(level: Level, values: list[tuple[float, Any]]) -> list[tuple[float, bool]]:
    """Feed one GPU's readings, (second, value); return (second, over) of each crossing."""
    spells = Spells((level,))
    found = []
    for at, value in values:
        gpu = GpuLevels(index=0, **{level.reading: value})
        found += [(each.at, each.over) for each in spells.take("n", at, (gpu,))]
    return found


@pytest.mark.parametrize(
    ("level", "values", "expected"),
    [
        (HOT, [(0, 91), (5, 92), (9, 91)], []),
        (HOT, [(0, 91), (10, 91)], [(10, False)]),
        (HOT, [(0, 91), (10, 91), (11, 95), (40, 91)], [(10, False)]),
        (HOT, [(0, 90), (10, 90), (20, 90)], []),
        (HOT, [(0, 91), (5, 86), (10, 86)], [(10, False)]),
        (HOT, [(0, 91), (5, 85), (10, 91), (19, 91)], []),
        (HOT, [(0, 91), (10, 91), (11, 86), (12, 85)], [(10, False), (12, True)]),
        (
            HOT,
            [(0, 91), (10, 91), (12, 85), (13, 91), (23, 91)],
            [(10, False), (12, True), (23, False)],
        ),
        (HOT, [(0, 91), (5, None), (10, 91)], [(10, False)]),
        (HOT, [(0, 91), (GAP_SECONDS_MAX + 1, 91)], []),
        (HOT, [(0, 91), (10, 91), (10 + AGAIN_SECONDS, 91)], [(10, False), (70, False)]),
        (LOW, [(0, 2), (10, 7), (11, 8)], [(10, False), (11, True)]),
        (LOW, [(0, 3), (10, 3)], []),
        (BRAKED, [(0, 0x84), (10, 0xC0), (11, 0x4)], [(10, False), (11, True)]),
        (BRAKED, [(0, 0x4), (10, 0x48)], []),
    ],
)
def test_level_starts_after_its_duration_and_ends_at_its_until_bound(
    level: Level, values: list[tuple[float, Any]], expected: list[tuple[float, bool]]
) -> None:
    """Threshold, duration and hysteresis; a lasting level is reported again at intervals."""
    assert expected == edges(level, values)


def test_levels_are_tracked_per_gpu_and_level() -> None:
    """Each GPU has its own time: one is long hot, another only now, a third near its limit."""
    spells = Spells((HOT, LOW))
    hot = GpuLevels(index=0, temperature_celsius=95)
    low = GpuLevels(index=2, temperature_margin_celsius=1)
    cool = GpuLevels(index=1, temperature_celsius=60)
    spells.take("n", 0, (hot, cool, low))
    late = GpuLevels(index=1, temperature_celsius=95)
    found = spells.take("n", 10, (hot, late, low))
    assert [("hot", 0), ("low", 2)] == [(each.level.name, each.gpu_index) for each in found]


def test_normal_readings_keep_no_state() -> None:
    """A fleet of cool GPUs keeps no state, so memory does not grow with it."""
    spells = Spells((HOT,))
    for number in range(100):
        spells.take(f"n{number}", 0, (GpuLevels(index=0, temperature_celsius=91),))
        spells.take(f"n{number}", 1, (GpuLevels(index=0, temperature_celsius=60),))
    assert {} == spells._nodes


def test_level_without_further_samples_ends() -> None:
    """Only reported levels are reported as over; the rest are forgotten."""
    spells = Spells((HOT,))
    for node, seconds in (("reported", 10), ("young", 5)):
        for at in (0, seconds):
            spells.take(node, at, (GpuLevels(index=0, temperature_celsius=91),))
    assert [] == list(spells.unheard(GAP_SECONDS_MAX))
    over = list(spells.unheard(GAP_SECONDS_MAX + 11))
    assert [("reported", True)] == [(node, each.over) for node, each in over]
    assert {} == spells._nodes


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(80, 95)), max_size=40))
def test_each_end_of_a_level_follows_its_start(steps: list[tuple[int, int]]) -> None:
    """Start and end of a level alternate in a node's record, whatever the readings are."""
    spells, record, at = Spells((HOT,)), HealthRecord(pool="p", node="n"), 0.0
    faults: list[Fault] = []
    for seconds, value in steps:
        at += seconds
        gpu = GpuLevels(index=0, temperature_celsius=value)
        for crossing in spells.take("n", at, (gpu,)):
            record, fault = record_crossing(record, crossing, NOW)
            faults += [fault] if fault is not None else []
    assert [bool(number % 2) for number in range(len(faults))] == [is_over(f) for f in faults]
    assert len({fault.id for fault in faults}) == len(faults)
    for begun, over in zip(faults[::2], faults[1::2], strict=False):
        assert begun.id == over.cause


def test_level_is_published_once_with_an_id_from_its_start() -> None:
    """A second replica or evaluation adds nothing; after an uncordon it is published again."""
    [crossing] = _crossings(HOT, [(0, 91), (10, 96)])
    record, fault = record_crossing(HealthRecord(pool="p", node="n"), crossing, NOW)
    assert fault is not None
    assert ("level-p.n-hot-0-0-0", "thermal", "hot") == (fault.id, fault.kind, fault.subcode)
    assert {"temperature_celsius": 96, "temperature": 96, "seconds": 10} == fault.metrics
    assert (record, None) == record_crossing(record, crossing, NOW)
    uncordoned, _ = node_health.decide_uncordoned(
        record, Uncordoned(id="u", time=NOW, pool="p", node="n"), node_health.Trigger("u", 9, NOW)
    )
    _, again = record_crossing(uncordoned, crossing, NOW)
    assert again is not None
    assert fault.id != again.id


def test_level_degrades_until_it_ends_and_clears_nothing_else() -> None:
    """The end of a level leaves other conditions and unhealthy verdicts in force."""
    policy = load_policy(resource("health-policy.yaml"))
    begun, over = _crossings(HOT, [(0, 91), (10, 91), (20, 80)])
    record = HealthRecord(pool="p", node="n", status="healthy")
    record, fault = record_crossing(record, begun, NOW)
    assert fault is not None
    record, _ = node_health.decide_fault(record, fault, policy.judge(fault, {}, NOW), _seen("b", 1))
    record, _ = node_health.decide_review(record, _seen("r", 0, hours=5))
    assert ("degraded", "level") == (record.status, record.rule)
    record, end = record_crossing(record, over, NOW)
    assert end is not None
    cool, effects = node_health.decide_over(record, end, _seen("o", 2))
    assert ("healthy", 1) == (cool.status, len(effects))
    assert (cool, ()) == node_health.decide_over(cool, end, _seen("o", 2))
    nvlink = Fault(id="x", time=NOW, pool="p", node="n", kind="xid", code=74, gpu_index=0)
    degraded, _ = node_health.decide_fault(
        record, nvlink, policy.judge(nvlink, {}, NOW), _seen("x", 3)
    )
    assert "degraded" == node_health.decide_over(degraded, end, _seen("o", 4))[0].status


def test_new_boot_forgets_levels_of_the_previous_boot() -> None:
    """A level that lasts over the reboot is published again with another ID."""
    [crossing] = _crossings(HOT, [(0, 91), (10, 91)])
    record = HealthRecord(pool="p", node="n", status="healthy", detail={"boot": "one"})
    record, first = record_crossing(record, crossing, NOW)
    booted = Registered(id="r", time=NOW, pool="p", node="n", instance="n", boot_id="two")
    record, _ = node_health.decide_registered(record, booted, _seen("r", 5))
    assert {} == working_of(record).levels
    assert record_crossing(record, crossing, NOW)[1] != first


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("reading: warmth, above: 1, for: 1s", "Invalid enum value 'warmth'"),
        ("reading: power_watts, for: 1s", "needs one bound: above, below or bits"),
        ("reading: power_watts, above: 1, below: 2, for: 1s", "needs one bound"),
        ("reading: power_watts, above: 1, for: 0s", "must be above 0s and at most 1h"),
        ("reading: power_watts, above: 1, until: 2, for: 1s", "must not be higher than 1"),
        ("reading: power_watts, below: 1, until: 0, for: 1s", "must not be lower than 1"),
        ("reading: throttle_reasons, bits: 1, until: 0, for: 1s", "bits are over when"),
        ("reading: power_watts, above: 1", "`for` is missing; add it"),
    ],
)
def test_level_that_cannot_work_is_refused_with_file_line_and_key(text: str, wrong: str) -> None:
    """Each error names file, line and key."""
    written = (
        f"version: 1\nlevels:\n  - {{name: a, kind: thermal, {text}}}\n"
        "rules:\n  - {name: rest, condition: true, result: healthy}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        parse_policy("p.yaml", written.encode())
    assert str(caught.value).startswith("p.yaml:3:")
    assert wrong in str(caught.value)


# --- on the bus ----------------------------------------------------------------------------------

SHORT_LEVEL_POLICY = """
version: 1
levels:
  - {name: hot, reading: temperature_celsius, above: 90, until: 85, for: 200ms, kind: thermal}
rules:
  - {name: heat, condition: event.event_type == "thermal", result: degraded, action: inspect}
  - {name: rest, condition: true, result: healthy}
"""


class Thermometer:
    """Publishes a node's samples until it is stopped."""

    def __init__(self, bus: Any, node: str) -> None:
        """Start with a cool GPU."""
        self._bus = bus
        self._node = node
        self.celsius = 60
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        subject = subjects.telemetry("training", self._node)
        for number in range(10_000):
            celsius = (60, 60, 60, 60, 60, 60, 60, self.celsius)
            gpus = tuple(
                GpuSample(index=index, uuid=f"GPU-{index}", temperature_celsius=each)
                for index, each in enumerate(celsius)
            )
            sample = Telemetry(
                id=f"t{number}", time=NOW, pool="training", node=self._node, gpus=gpus
            )
            await self._bus.publish(subject, encode(sample))
            await asyncio.sleep(0.05)  # the agent's interval

    async def stop(self) -> None:
        """Stop publishing the samples."""
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.fixture
def short_level(tmp_path: Path) -> Settings:
    """Settings with a policy whose only level takes a fifth of a second."""
    (tmp_path / "policy.yaml").write_text(SHORT_LEVEL_POLICY)
    return Settings(health_policy=str(tmp_path / "policy.yaml"))


def _is(world: Any, status: str) -> Callable[[], Any]:
    async def look() -> bool:
        record = await world.health("training-7")
        return record is not None and record.status == status

    return look


async def test_hot_gpu_degrades_its_node_while_it_is_hot(world, start, bus, short_level) -> None:
    """Two replicas: one fault at the start, one at the end, and the node is healthy again.

    The replica that watched stops in between; the other neither repeats nor forgets the fault.
    """
    first, second = await start(short_level), await start(short_level)
    await world.register("training-7")
    await world.until(_is(world, "healthy"))
    meter = Thermometer(bus, "training-7")
    meter.celsius = 93
    await world.until(_is(world, "degraded"))
    await first.stop()
    meter.celsius = 60
    await world.until(_is(world, "healthy"))
    await meter.stop()
    await second.stop()

    begun, over = await world.events(Fault)
    assert (7, "GPU-7", "telemetry", "hot") == (
        *(begun.gpu_index, begun.gpu_uuid),
        *(begun.source, begun.subcode),
    )
    assert (begun.id, True) == (over.cause, is_over(over))
    assert ["healthy", "degraded", "healthy"] == [v.status for v in await world.events()]


async def test_level_removed_from_the_policy_ends(world, start, bus, short_level, tmp_path) -> None:
    """A live policy change ends levels that only the old policy had."""
    await start(short_level)
    await world.register("training-7")
    meter = Thermometer(bus, "training-7")
    meter.celsius = 93
    await world.until(_is(world, "degraded"))
    (tmp_path / "policy.yaml").write_text(SHORT_LEVEL_POLICY.replace("name: hot", "name: warm"))
    await world.until(_is(world, "healthy"), 15)
    await meter.stop()


def _crossings(level: Level, values: list[tuple[float, int]]) -> list[Any]:
    spells = Spells((level,))
    return [
        each
        for at, value in values
        for each in spells.take("n", at, (GpuLevels(index=0, temperature_celsius=value),))
    ]


def _seen(identity: str, sequence: int, *, hours: float = 0) -> node_health.Trigger:
    return node_health.Trigger(identity, sequence, NOW + timedelta(hours=hours))
