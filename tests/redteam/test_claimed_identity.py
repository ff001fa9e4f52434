"""An agent cannot have other machines condemned, refused or replaced by what it registers."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.identity_orders import IdentityAccept
from schemas.messages import encode
from schemas.node_events import GpuIdentity, Registered, Verdict
from schemas.node_records import NodeRecord
from schemas.topology import HARDWARE, NODES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, peers, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]
MACHINES = 46
FORGED: dict[str, dict[str, Any]] = {
    "serials of others, one index": {
        "gpus": tuple(
            GpuIdentity(index=0, uuid=f"GPU-other-{n}", serial=f"serial-{n}")
            for n in range(MACHINES)
        )
    },
    "serials of others, own UUIDs": {
        "gpus": tuple(
            GpuIdentity(index=n, uuid=f"GPU-{{node}}-{n}", serial=f"serial-{n}") for n in range(8)
        )
    },
    "another's rack": {"rack": "rack-of-others"},
    "another's NVLink domain": {"nvlink_domain": "domain-of-others"},
}


def forged(node: str, what: str, boot: str) -> Registered:
    """Return what root on a node publishes with its agent's credentials."""
    said = dict(FORGED[what])
    said["gpus"] = tuple(
        msgspec.structs.replace(each, uuid=each.uuid.replace("{node}", node))
        for each in said.get("gpus", ())
    )
    return Registered(
        id=f"forged-{what}-{boot}",
        time=datetime.now(UTC),
        pool="training",
        node=node,
        instance=node,
        boot_id=boot,
        **said,
    )


async def changes(bus: NatsBus) -> list[dict[str, Any]]:
    """Return every event that a node's agent reports another identity."""
    found = await bus.read("EVENTS", subjects.node_event_wildcard("identity-changed"))
    return [msgspec.json.decode(each.data) for each in found]


async def record_of(bus: NatsBus, node: str) -> NodeRecord:
    """Return a node's record as it is stored."""
    entry = await bus.get(NODES, f"training.{node}")
    assert entry is not None
    return msgspec.json.decode(entry.value, type=NodeRecord)


@pytest.mark.parametrize("boot", ["b1", "b2"])
@pytest.mark.parametrize("what", FORGED)
async def test_a_forged_registration_condemns_no_other_machine(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, what: str, boot: str
) -> None:
    """An XID follows: nothing is listed, the record is the same, and operators are notified."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [node] = await eventually(settled(bus, 1))
        before = await record_of(bus, node)
        await peers.publish(forged(node, what, boot))
        [changed, *_] = await eventually(lambda: changes(bus))
        after = await record_of(bus, node)
        await peers.publish(
            Verdict(
                id="verdict",
                time=datetime.now(UTC),
                pool="training",
                node=node,
                status="unhealthy",
                action="replace",
                reason="XID 79",
                gpu_index=0,
                fault="f",
                kind="xid",
                code=79,
            )
        )
        await eventually(lambda: events(bus, "node-replaced"))
        listed = await bus.entries(HARDWARE)

    assert (after.gpus, after.rack, after.nvlink_domain) == (
        *(before.gpus, before.rack),
        before.nvlink_domain,
    )
    assert changed["status"] == "changed"
    assert f"navarch identity accept {node}" in changed["remedy"]
    assert listed == []


async def test_a_new_machine_with_a_live_nodes_gpus_is_not_admitted(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The refusal names the live node, and nothing is condemned for it."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [node] = await eventually(settled(bus, 1))
        peers.same_hardware = node
        await ask(bus, "scale", nodes=2)
        [refused, *_] = await eventually(lambda: events(bus, "node-refused"))
        listed = await bus.entries(HARDWARE)

    assert f"training.{node}" in refused["reason"]
    assert listed == []


async def test_only_what_was_shown_is_accepted(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The agent changes its claim between the operator's look and the order: it is refused."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [node] = await eventually(settled(bus, 1))
        await peers.publish(forged(node, "another's rack", "b1"))
        await eventually(lambda: changes(bus))
        claim = (await view(bus, node))["identity_claim"]
        await peers.publish(forged(node, "another's NVLink domain", "b1"))

        async def twice() -> bool:
            return len(await changes(bus)) == 2

        await eventually(twice)
        refused = await accept(bus, node, claim)
        kept = await record_of(bus, node)
        shown = await view(bus, node)
        answered = await accept(bus, node, shown["identity_claim"])
        changed = await record_of(bus, node)

    assert "reports another identity since" in refused
    assert kept.nvlink_domain == ""
    assert "domain-of-others" in shown["identity_difference"]
    assert '"by":"ada"' in answered
    assert changed.nvlink_domain == "domain-of-others"


async def view(bus: NatsBus, node: str) -> dict[str, Any]:
    """Return a node as operators see it."""
    asked = msgspec.json.encode({"node": node})
    reply = await bus.request(subjects.query("node"), asked, timeout_seconds=30)
    found: dict[str, Any] = msgspec.json.decode(reply.data)
    return found


async def accept(bus: NatsBus, node: str, claim: str) -> str:
    """Give the order as an operator, and return the answer."""
    asked = encode(IdentityAccept(pool="training", node=node, claim=claim))
    subject = subjects.order("identity-accept", "ada")
    return (await bus.request(subject, asked, timeout_seconds=30)).data.decode()
