"""GPUs that hang, fail, vanish, err and throttle in the middle of one run of the agent."""

import asyncio
import json
import statistics
from typing import Any, Final

import pytest

from schemas.subjects import node_command, node_events_of
from services.bus.nats.nats_bus import NatsBus
from tests.agent.conftest import AgentHost, events

SECONDS_MAX: Final = 2.0
"""Most take no longer; of one that does, the machine may have stood still."""
HANGS_SECONDS: Final = 60.0
SCRIPT: Final = [
    ("gpu 0 ecc_dbe 2", ("ecc_dbe", 0, "")),
    ("gpu 1 throttle 0x48", ("thermal", 1, "hw_slowdown")),
    ("hang nvmlDeviceGetPowerUsage 60 1", ("probe_hung", 1, "power")),
    ("fail nvmlDeviceGetTemperature 999 2", ("probe_failed", 2, "")),
    ("gpu 3 lost 1", ("gpu_lost", 3, "")),
    ("gpu 0 nvlinks_down 2", ("nvlink", 0, "down")),
    ("gpu 2 fabric_state 1", ("fabric", 2, "left")),
    ("gpu 1 remap_failed 1", ("row_remap", 1, "failed")),
    ("xid 1 1 95", ("xid", 1, "")),
    ("fail * 9", ("probe_failed", -1, "")),
]
"""What is ordered, and the fault that it must become. Each lasts when the next begins, but for the
hung call, which comes back."""


@pytest.mark.slow
async def test_each_misfortune_is_the_right_fault_within_two_seconds(host: AgentHost, bus: NatsBus):
    """Sampled once a second, one agent lives through them all, answers, and reports each once."""
    await host.start(NAVARCH_SAMPLE_INTERVAL="1s", NAVARCH_PROBE_DEADLINE="500ms")
    await host.logged("NVML reports XIDs of 4 GPUs")
    await events(bus, host.node, 2)
    published: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def follow() -> None:
        async for stored in bus.follow("EVENTS", [node_events_of("training", host.node)], "all"):
            if b'"io.navarch.agent.event.v1.fault"' in stored.data:
                published.put_nowait(json.loads(stored.data))

    following = asyncio.create_task(follow())
    orders: list[str] = []
    took: list[float] = []
    clock = asyncio.get_running_loop().time
    for order, expected in SCRIPT:
        orders = [each for each in orders if not each.startswith("hang")] + [order]
        host.order(*orders)
        began = clock()
        async with asyncio.timeout(HANGS_SECONDS):
            fault = await published.get()
        took.append(clock() - began)
        assert (fault["kind"], fault["gpu_index"], fault["subcode"]) == expected
        ping = await bus.request(
            node_command("training", host.node, "ping"), b"", timeout_seconds=HANGS_SECONDS
        )
        assert json.loads(ping.data)["ok"]
    assert statistics.median(took) <= SECONDS_MAX
    host.order()
    assert await host.stop() == 0
    assert published.empty()
    following.cancel()
    await asyncio.wait({following})
