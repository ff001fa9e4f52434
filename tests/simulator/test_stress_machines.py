"""The machines of a stress run: agents that publish as real ones do, and fail as scheduled."""

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.node_events import Fault, Telemetry, node_codec
from schemas.topology import EVENTS, TELEMETRY
from services.bus.port import Stored
from services.health_monitor.rules.policy_file import load_policy, policy_path
from services.settings.xid_catalogues import load_xids
from services.simulator.engine import virtual_time
from services.simulator.engine.agent_machines import COOL_CELSIUS
from services.simulator.inputs.scenario.scenario_file import read_text
from services.simulator.inputs.stress import failure_effects, report_composer, stress_entry
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.stress_format import ChaosSpec, FailureType
from services.simulator.inputs.stress.stress_machines import UTILIZATION_PERCENT
from services.simulator.inputs.stress.stress_run import StressRun
from services.simulator.report.report_format import StressReport

pytestmark = pytest.mark.slow

QUIET = """\
name: quiet
{more}
stress:
  duration: {seconds}
  metrics_interval: 5s
  fleet_gen:
    total_nodes: 4
    templates: [{{name: h100, gpu_count: 4, gpu_type: NVIDIA H200}}]
    startup: {{cold_start_min: 5s, cold_start_max: 10s}}
    pool: {{health: {{incident: {{hold: 0s}}{health}}}, budget: {{max_unavailable: 100%,
           max_replacements: unlimited}}}}
"""


def _live(
    text: str, failures: tuple[ScheduledFailure, ...] = ()
) -> tuple[list[tuple[float, str, Stored]], StressReport]:
    """Run a file with these failures; return what was stored when, and the report."""
    scenario = read_text("f.yaml", text)
    planned = stress_entry.plan(scenario.stress)
    stored: list[tuple[float, str, Stored]] = []

    async def live() -> Any:
        run = StressRun(scenario.stress, planned.fleet, failures, base=scenario.configuration)
        run.fleet.simulation.watchers.append(
            lambda stream, each: stored.append((run.fleet.simulation.now(), stream, each))
        )
        await run.run(lambda _: None)
        assert [] == run.fleet.defects
        return report_composer.compose(
            *("f", "", scenario.stress, planned.fleet, run.recording),
            history="",
            machines=run.fleet.cloud.made,
            xid_names={},
            rule_texts={},
            places={},
        )

    return stored, virtual_time.run(live)


def _samples(stored: list[tuple[float, str, Stored]]) -> list[tuple[float, Telemetry]]:
    return [
        (at, msgspec.json.decode(each.data, type=Telemetry))
        for at, stream, each in stored
        if stream == TELEMETRY.name
    ]


@pytest.mark.parametrize(
    ("more", "interval"),
    [("", 15), ("settings: {agent: {telemetry_interval: 4s, heartbeat_interval: 2s}}", 4)],
)
def test_every_agent_samples_at_its_interval(more: str, interval: int) -> None:
    """An agent samples at the interval of the configuration, from boot on, every GPU each time."""
    stored, _ = _live(QUIET.format(more=more, seconds="2m", health=""))
    samples = _samples(stored)
    moments: dict[str, list[float]] = {}
    for at, sample in samples:
        moments.setdefault(sample.node, []).append(at)
        assert [0, 1, 2, 3] == [gpu.index for gpu in sample.gpus]
        assert {COOL_CELSIUS} == {gpu.temperature_celsius for gpu in sample.gpus}
        assert {UTILIZATION_PERCENT} == {gpu.utilization_percent for gpu in sample.gpus}
    assert 4 == len(moments)
    for found in moments.values():
        gaps = {round(after - before, 3) for before, after in pairwise(found)}
        assert {float(interval)} == gaps
        assert found[0] < 13 + interval, "launched and booted within 13 s"


def _struck(type_: FailureType, at: float = 30.0, **more: Any) -> ScheduledFailure:
    return ScheduledFailure(number=1, at=at, slot=2, type=type_, **more)


def test_heat_shows_in_samples_and_becomes_a_level() -> None:
    """A hot GPU shows in samples only; the policy's level makes a fault of it, and ends it."""
    stored, report = _live(
        QUIET.format(more="", seconds="5m", health=""),
        (_struck("temperature", recovers_after=120),),
    )
    hot = {
        sample.node
        for _, sample in _samples(stored)
        if any(gpu.temperature_celsius == ChaosSpec().hot_celsius for gpu in sample.gpus)
    }
    assert 1 == len(hot)
    faults = [
        node_codec.decode(each.data)
        for _, stream, each in stored
        if stream == EVENTS.name and each.subject.endswith(".fault")
    ]
    assert [("thermal", "hot", None), ("thermal", "hot", True)] == [
        (each.kind, each.subcode, each.metrics.get("over"))
        for each in faults
        if isinstance(each, Fault)
    ]
    assert {"level": 1} == {each.name: each.count for each in report.rules}
    assert 4 == report.summary.nodes_at_end


def test_the_steps_of_a_ladder_are_answered() -> None:
    """A reset recovers what it can recover: no machine is replaced for it."""
    stored, report = _live(
        QUIET.format(more="", seconds="10m", health=", remediation: {type: ladder}"),
        (_struck("xid_error", xid=48, fatal=True),),
    )
    assert {"reset-gpu": 1} == {kind: each.done for kind, each in report.repairs.items()}
    assert (4, 4, 0) == (
        report.summary.nodes_at_end,
        report.summary.machines_made,
        report.summary.replacements,
    )
    assert any(stream == EVENTS.name for _, stream, _ in stored)


def test_a_silent_node_publishes_its_spool_when_it_returns() -> None:
    """While its network is cut nothing arrives; its faults are published when it returns."""
    away = _struck("network", recovers_after=60)
    meanwhile = ScheduledFailure(
        number=2, at=50.0, slot=2, type="xid_error", xid=13, recovers_after=5
    )
    stored, report = _live(QUIET.format(more="", seconds="3m", health=""), (away, meanwhile))
    published = [
        at
        for at, stream, each in stored
        if stream == EVENTS.name and each.subject.endswith(".fault")
    ]
    assert [91.0] == [round(at) for at in published]
    name = {each.subject.split(".")[4] for _, _, each in stored if each.subject.endswith(".fault")}
    heard = [at for at, sample in _samples(stored) if sample.node in name]
    assert [] == [at for at in heard if 31.5 < at < 91]
    assert max(heard) > 91
    assert (1, 1) == (report.summary.lost, report.summary.returned)


ASKED: tuple[tuple[FailureType, int], ...] = (
    *((("xid_error", each.code)) for each in load_xids().codes),
    *(
        (kind, 0)
        for kind in ("memory_error", "nvlink_error", "backend_error", "boot_failure", "temperature")
    ),
)


def test_the_services_agree_on_which_failures_are_fatal() -> None:
    """Each failure on its own node: as many nodes are unhealthy as failures are fatal."""
    text = QUIET.replace("total_nodes: 4", f"total_nodes: {len(ASKED)}").format(
        more="", seconds="3m", health=", auto_replace: false"
    )
    policy = load_policy(policy_path("", None))
    planned = tuple(
        ScheduledFailure(number=slot + 1, at=30.0, slot=slot, type=kind, xid=xid)
        for slot, (kind, xid) in enumerate(ASKED)
    )
    expected = sum(failure_effects.is_fatal(policy, kind, xid, 92) for kind, xid in ASKED)
    stored, report = _live(text, planned)
    assert 5 < expected < len(ASKED) - 5
    assert expected == report.timeline[-1].out
    unhealthy = Counter(
        subjects.parse_node(each.subject).node  # type: ignore[union-attr]
        for _, stream, each in stored
        if stream == EVENTS.name
        and each.subject.endswith(".verdict")
        and b'"status":"unhealthy"' in each.data
    )
    assert expected == len(unhealthy)
