"""Agents of an earlier release say nothing of conditions; their nodes keep events and timers."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.conditions.declared import BY_NAME
from schemas import subjects
from schemas.fleet_queries import NodeView
from schemas.health_records import HealthRecord
from schemas.messages import LimitedDecoder
from schemas.node_events import Fault, Telemetry
from schemas.node_records import NodeRecord
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_state import next_review, working_of
from services.health_monitor.rules.node_health import Trigger
from services.operator_text.condition_text import condition_line
from services.pool_manager.queries import node_view
from services.provisioner.providers.local_gpus import build_library, compiler
from tests.agent.conftest import AgentHost
from tests.health_monitor.conftest import World
from tests.health_monitor.test_open_conditions import NOW, POWER, Agent, healthy, judge, take
from tests.support.releases import ROOT, earlier_release

SAMPLE: Final = (
    b'{"type":"io.navarch.agent.event.v1.telemetry","id":"training.training-7.telemetry.ab12cd34.1",'
    b'"time":"2026-11-21T01:30:00Z","cause":"","pool":"training","node":"training-7","gpus":['
    b'{"index":0,"uuid":"GPU-0","power_watts":612.5,"temperature_celsius":61,"throttle_reasons":0,'
    b'"nvlinks_up":18,"pcie_width":16,"fabric_state":3},{"index":1,"uuid":"GPU-1","power_watts":'
    b'612.5,"temperature_celsius":61,"throttle_reasons":8,"nvlinks_up":18,"pcie_width":16,'
    b'"fabric_state":3}],"cpu_percent":3.5,"memory_used_bytes":null,"memory_total_bytes":null,'
    b'"sequence":1,"sampled_at":"2026-11-21T01:30:00Z"}'
)
"""A sample as an agent of 7a2ba9e4 encodes it."""
FAULT: Final = (
    b'{"type":"io.navarch.agent.event.v1.fault","id":"training.training-7.boot1.sample.1",'
    b'"time":"2026-11-21T01:30:00Z","cause":"","pool":"training","node":"training-7","kind":"power",'
    b'"system":"","gpu_index":1,"gpu_uuid":"","gpu_serial":"","pci":"","code":0,'
    b'"subcode":"power_brake","message":"the hardware slows the GPU: power brake","metrics":{},'
    b'"source":"nvml","boot_id":"boot-1","sequence":0,"job":""}'
)
"""A fault of the same agent: the hardware began to slow a GPU."""
TYPE: Final = {"NAVARCH_TELEMETRY_INTERVAL": "1s", "NAVARCH_PCIE_WIDTH": "16"}
"""Settings of the host's agents; the earlier release knows no figure of the type."""
ORDERS: Final = (("earlier", "this"), ("this", "earlier"))
WIDTH: Final = BY_NAME["pcie-width"]


def of_earlier(record: HealthRecord, number: int, at: datetime) -> HealthRecord:
    """Apply the fault of the earlier release's agent, once more."""
    fault = LimitedDecoder(Fault).decode(FAULT)
    assert (fault.condition, fault.counter) == ("", 0)
    seen = Trigger(f"{fault.id}-{number}", number, at)
    return judge(record, fault, seen)[0]


def reviewed(record: HealthRecord, at: datetime) -> HealthRecord:
    """Apply the timer of what wears off."""
    return node_health.decide_review(record, Trigger("review", 0, at))[0]


def test_a_recorded_sample_of_the_earlier_release_lists_nothing() -> None:
    """The bytes decode, and say neither that something holds nor that nothing does."""
    assert LimitedDecoder(Telemetry).decode(SAMPLE).conditions is None


def test_an_earlier_agent_s_fault_wears_off_by_the_policy_s_time() -> None:
    """Samples of that agent change nothing of it, and no list is ever kept."""
    record = of_earlier(healthy(), 2, NOW)
    assert (record.status, record.conditions) == ("degraded", None)
    ends = next_review(working_of(record))
    assert ends > NOW.timestamp()
    for number in range(5):
        record, _ = take(record, None, 3 + number, NOW + timedelta(minutes=number))
    assert next_review(working_of(record)) == ends
    record = reviewed(record, datetime.fromtimestamp(ends + 1, UTC))
    assert record.status == "healthy"


def test_an_upgraded_agent_s_condition_holds_beside_what_the_earlier_one_reported() -> None:
    """The old fault wears off, the condition does not; a downgrade gives it a time again."""
    agent, record = Agent(), of_earlier(healthy(), 2, NOW)
    agent.toggle(POWER, 1, NOW)
    record, _ = take(record, agent.sample(), 3, NOW)
    later = NOW + timedelta(days=40)
    record = reviewed(record, later)
    assert record.status == "degraded"
    record, _ = take(record, None, 4, later)
    assert record.conditions is None
    ends = next_review(working_of(record))
    assert ends > later.timestamp()
    record = reviewed(record, datetime.fromtimestamp(ends + 1, UTC))
    assert record.status == "healthy"


@given(st.lists(st.sampled_from(["fault", "sample", "toggle", "list"]), max_size=40))
@settings(max_examples=200, deadline=None)
def test_whatever_the_order_of_releases_the_last_sample_decides_what_is_shown(
    steps: Sequence[str],
) -> None:
    """A node that goes back and forth shows its agent's list, or that there is none."""
    agent, record, now, shown = Agent(), healthy(), NOW, None
    for number, step in enumerate(steps, 2):
        now += timedelta(minutes=7)
        if step == "fault":
            record = of_earlier(record, number, now)
        elif step == "toggle":
            agent.toggle(POWER, 1, now)
        else:
            shown = agent.sample() if step == "list" else None
            record, _ = take(record, shown, number, now)
        assert record.conditions == shown
    held = {each.held for each in working_of(record).conditions.values() if each.held}
    listed = shown.held if shown is not None else ()
    assert held == {f"{each.name}/{each.gpu}" for each in listed}


def test_get_says_that_an_agent_reports_no_conditions() -> None:
    """A line for people, and none for a node whose agent has reported its list."""
    node = NodeRecord(pool="p", node="n", agent_version="0.9", registered_at=NOW)
    record = of_earlier(healthy(), 2, NOW)
    at, early = NOW + timedelta(minutes=3), NOW + timedelta(minutes=1)
    assert node_view(NodeView, node, record, now=early, detailed=True).conditions == ()
    [view] = node_view(NodeView, node, record, now=at, detailed=True).conditions
    line = condition_line(view)
    assert line.startswith("conditions is unknown since ")
    assert "(one of an earlier release does not): faults wear off by the policy's times" in line
    record, _ = take(record, Agent().sample(), 3, NOW)
    assert node_view(NodeView, node, record, now=at, detailed=True).conditions == ()


class ReleaseHost(AgentHost):
    """A host whose agent is of a release that is started by name."""

    codes: dict[str, Path]

    async def start_of(self, release: str) -> None:
        """Start the agent of that release, on what the last one left."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent"),
            env=self.environment | TYPE,
            cwd=self.codes[release],
            stderr=DEVNULL,
        )


@pytest.fixture
async def releases(
    tmp_path: Path, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ReleaseHost]:
    """Give a host with both releases."""
    if compiler() is None:
        pytest.skip("no C compiler, so no simulated GPUs")
    earlier = earlier_release(tmp_path / "earlier")
    library = build_library(tmp_path_factory.mktemp("nvml"))
    host = ReleaseHost(tmp_path, server.url, library, "training-7")
    host.codes = {"earlier": earlier, "this": ROOT}
    yield host
    if host.process is not None and host.process.returncode is None:
        await host.stop(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS, ids=" then ".join)
async def test_real_agents_of_both_releases_follow_each_other(
    world: World, start: Any, releases: ReleaseHost, order: tuple[str, str]
) -> None:
    """Half the lanes degrade the node under each; the list is there while its agent is newer."""
    await start()
    first, second = order

    async def lists(names: tuple[str, ...] | None) -> bool:
        record = await world.health(releases.node)
        if record is None:
            return False
        held = record.conditions.held if record.conditions is not None else None
        return (None if held is None else tuple(each.name for each in held)) == names

    async def degraded() -> bool:
        record = await world.health(releases.node)
        return record is not None and record.status == "degraded"

    await releases.start_of(first)
    await world.until(lambda: lists(() if first == "this" else None))
    await world.until(lambda: sampled(world.bus, releases.node))
    releases.order("gpu 1 pcie_width 8")
    await world.until(degraded)
    await world.until(lambda: lists((WIDTH.name,) if first == "this" else None))
    await releases.stop()
    await releases.start_of(second)
    await world.until(lambda: lists((WIDTH.name,) if second == "this" else None))
    assert await degraded()
    record = await world.health(releases.node)
    assert record is not None
    assert (next_review(working_of(record)) > 0) == ("earlier" in order)
    await releases.stop()


async def sampled(bus: NatsBus, node: str) -> bool:
    """Return whether a sample of the node is stored."""
    return bool(await bus.read("TELEMETRY", subjects.telemetry("training", node)))
