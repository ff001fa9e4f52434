"""Each decision of an autoscaler is a log line with its inputs; a silent source holds the size."""

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.duration import Duration
from schemas.gpu_samples import GpuSample
from schemas.messages import encode
from schemas.node_events import Telemetry
from schemas.settings import ServerSettings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.autoscaling import sizing_log
from services.pool_manager.service import build
from tests.pool_manager.fleet import nodes, peers, pools, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.json_log import json_log
from tests.support.peers import Peers

__all__ = ["peers"]

REACTIVE = {"type": "reactive", "scale_up_at": 80, "scale_down_at": 20}
NOWHERE = {"type": "http", "url": "http://127.0.0.1:1/queue"}
SECOND = ServerSettings(autoscale_interval=Duration(1))


async def use(bus: NatsBus, percent: int) -> None:
    """A sample of every node, whose GPUs are all as busy."""
    gpu = GpuSample(index=0, uuid="GPU-1", utilization_percent=percent)
    now = datetime.now(UTC)
    for each in await nodes(bus):
        sample = Telemetry(
            id=f"{each.id}-{now}", time=now, pool="training", node=each.id, gpus=(gpu,)
        )
        await bus.publish(subjects.telemetry("training", each.id), encode(sample))


@pytest.mark.parametrize(
    ("metrics", "percent", "decision", "limited_by", "desired"),
    [
        (NOWHERE, 99, "no change", "source", 3),
        (None, 50, "no change", None, 3),
        (None, 99, "scale up", None, 4),
    ],
)
async def test_a_decision_is_logged_with_its_inputs(
    server: EmbeddedServer,
    bus: NatsBus,
    peers: Peers,
    caplog: pytest.LogCaptureFixture,
    metrics: dict[str, Any] | None,
    percent: int,
    decision: str,
    limited_by: str | None,
    desired: int,
) -> None:
    """A line is logged also where nothing changes; busy GPUs grow no pool without a known queue."""
    assert peers
    chosen = settings(autoscaling=REACTIVE, metrics=metrics, cooldown=Duration(3600))
    chosen = msgspec.structs.replace(chosen, server=SECOND)
    caplog.set_level(logging.DEBUG, logger=sizing_log.__name__)
    with json_log() as lines:
        async with Running(server.url, "pool-manager", build, chosen):
            await eventually(settled(bus, 3))

            async def decided() -> list[dict[str, Any]]:
                await use(bus, percent)
                return [
                    each
                    for each in lines
                    if each["msg"] == sizing_log.MESSAGE and each.get("utilization") == percent
                ]

            [line, *_] = await eventually(decided)

            async def sized() -> bool:
                return [each.desired for each in await pools(bus)] == [desired]

            await eventually(sized)
    shown = {"pool": "training", "autoscaler": "reactive", "nodes": desired, "ready_nodes": 3}
    assert shown.items() <= line.items()
    assert (line["decision"], line.get("limited_by")) == (decision, limited_by)
    assert f"{percent}.0%" in line["reason"] or "does not answer" in line["reason"]
    assert bool(line.get("source_problem")) == (metrics is not None)
