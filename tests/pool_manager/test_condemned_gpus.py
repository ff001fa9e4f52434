"""Reports of one node have few GPUs listed, and each entry is undone by whose it is."""

from datetime import timedelta

import msgspec

from schemas.hardware_denylist import HardwareRecord
from schemas.machine_identity import FixedIdentity, MachineIdentity, NodeMachines
from schemas.messages import encode
from schemas.topology import HARDWARE
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.admission.denied_hardware import condemned, within_limit
from services.pool_manager.planner.admission.denied_hardware import key as hardware_key
from services.pool_manager.service import build
from tests.pool_manager.fleet import peers, settings
from tests.pool_manager.test_admission import BROKEN, GPUS, NOW, about, listed, order
from tests.support.inprocess import Running, navarch
from tests.support.peers import Peers

__all__ = ["peers"]


async def test_all_that_a_node_has_left_is_forgotten_by_one_command(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """`--node`: what its reports made; `--of`: what is of it. Half of a command fails."""
    assert peers.instances == set()
    forget = ("hardware", "forget", "--node")
    of = ("hardware", "forget", "--of")

    async def run(*arguments: str) -> tuple[int, str, str]:
        return await navarch(*arguments, NAVARCH_NATS_URL=server.url)

    async with Running(server.url, "pool-manager", build, settings(min_nodes=0)):
        for value, node in (("1", "n1"), ("2", "n1"), ("3", "n2")):
            entry = {"kind": "serial", "value": value, "reason": "burns", "node": node}
            await order(bus, "hardware-add", entry)
        for value, node in (("4", "n1"), ("5", "n3")):
            reported = HardwareRecord(
                kind="serial", value=value, reason="XID 79", since=NOW, node=node, saga="s"
            )
            await bus.create(HARDWARE, f"serial.{value}", encode(reported))
        done = await run(*forget, "n1")
        left = [each.value for each in await listed(bus)]
        all_of = await run(*of, "n1")
        others = [each.value for each in await listed(bus)]
        unknown, half = await run(*forget, "n1"), await run("hardware", "forget", "serial")
    assert (done[0], sorted(left)) == (0, ["1", "2", "3", "5"])
    assert (all_of[0], sorted(others)) == (0, ["3", "5"])
    assert unknown[0]
    assert "no hardware is listed of a node 'n1'" in unknown[2]
    assert half[0]
    assert "--node NODE or --of NODE" in half[2]


def test_a_nodes_reports_have_one_gpu_listed_in_a_day() -> None:
    """GPUs on the list already are listed again; operators and other nodes are not limited."""
    found = condemned(about("replace", action="replace", fault="f1", reason="r"), BROKEN, NOW)
    other = {hardware_key("gpu", "GPU-7"): entry("GPU-7", "n1")}
    assert not within_limit(found, other, NOW)
    assert within_limit(found, other, NOW + timedelta(days=1))
    assert within_limit(found, found, NOW)
    assert within_limit(found, {hardware_key("gpu", "GPU-7"): entry("GPU-7", "n2")}, NOW)
    assert within_limit(found, {hardware_key("gpu", "GPU-7"): entry("GPU-7", "n1", "ann")}, NOW)
    assert within_limit({hardware_key("gpu", "GPU-8"): entry("GPU-8", "n1", "ann")}, other, NOW)


def entry(value: str, node: str, by: str = "") -> HardwareRecord:
    """Return an entry of the denylist."""
    return HardwareRecord(
        kind="gpu", value=value, reason="r", since=NOW, pool="training", node=node, by=by
    )


def test_gpus_of_the_same_index_are_not_condemned_together() -> None:
    """Only one can be the faulty one, and none of a node whose agent reports others."""
    same = tuple(msgspec.structs.replace(each, index=1) for each in GPUS)
    saga = about("replace", action="replace", fault="f1", reason="r")
    found = condemned(saga, msgspec.structs.replace(BROKEN, gpus=same), NOW)
    assert [("gpu", "GPU-0"), ("serial", "1650")] == [(e.kind, e.value) for e in found.values()]
    seen = MachineIdentity(since=NOW, heard_at=NOW, registered_at=NOW)
    claims = NodeMachines(machine=seen, claimed=FixedIdentity(gpus=same))
    claiming = msgspec.structs.replace(BROKEN, identity=claims, host="")
    assert condemned(saga, claiming, NOW) == {}
