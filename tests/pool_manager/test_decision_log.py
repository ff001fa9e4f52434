"""The pool-manager's decisions as log lines, field by field as Navarch has always documented them.

`{"time": "2026-01-19T22:00:15Z", "level": "INFO", "msg": "scaling up", "pool": …, "from": 4,
"to": 8, "reason": …}`, and `replacing node` with its pool and node.
"""

import re

from schemas import subjects
from schemas.messages import encode
from schemas.operator_requests import ScaleRequest
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import events, peers, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.json_log import json_log
from tests.support.peers import Peers

__all__ = ["peers"]

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


async def test_scaling_and_replacing_are_log_lines(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Lines for up and down have both sizes and the reason; one for a replacement has its node."""
    with json_log() as lines:
        async with Running(server.url, "pool-manager", build, settings()):
            before = await eventually(settled(bus, 3))
            for nodes in (4, 4, 3):
                request = encode(ScaleRequest(nodes=nodes, by="ada"))
                await bus.publish(subjects.pool_request("training", "scale"), request)
                await eventually(settled(bus, nodes))
            [node, *_] = await eventually(settled(bus, 3))
            await peers.make_unhealthy("training", node)
            await eventually(lambda: events(bus, "node-replaced"))
    assert before
    scaled = [each for each in lines if each["msg"].startswith("scaling")]
    shown = ("level", "msg", "pool", "from", "to", "reason")
    assert [tuple(each[name] for name in shown) for each in scaled] == [
        ("INFO", "scaling up", "training", 3, 4, "asked by ada"),
        ("INFO", "scaling down", "training", 4, 3, "asked by ada"),
    ]
    [replacing] = [each for each in lines if each["msg"] == "replacing node"]
    assert (replacing["level"], replacing["pool"], replacing["node"]) == ("INFO", "training", node)
    assert all(TIME.fullmatch(each["time"]) for each in (*scaled, replacing))
