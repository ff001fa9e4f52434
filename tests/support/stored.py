"""Fills a store with something in every kind of stream, for backups."""

from schemas.messages import encode
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.topology import EVIDENCE, HEARTBEATS, LEASES, NODES, POOLS, REQUESTS
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from tests.support.settling import arriving

SAGA = "navarch.v1.saga.s1"
REQUEST = "navarch.v1.pool.p.request.scale.me"


async def filled(bus: NatsBus) -> None:
    """Something in every kind of stream, with what is removed again."""
    await bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id="prod-1234")))
    for number in range(40):
        await bus.put(NODES, f"p.n{number % 7}", str(number).encode())
        await bus.publish(f"navarch.v1.node.p.n{number}.event.fault", b"{}", msg_id=f"f{number}")
        await bus.append(f"{SAGA}.step{number}.started", b"{}", tree=f"{SAGA}.>", expected=number)
        await bus.publish(REQUEST, b"{}")
    await bus.delete(NODES, "p.n3")
    await bus.put(LEASES, "notifier.long", b"{}", ttl_seconds=3600)
    await bus.put(HEARTBEATS, "p.n1", b"{}")
    for sequence in (3, 39, 40):
        await bus.admin(f"STREAM.MSG.DELETE.{REQUESTS.name}", {"seq": sequence})
    await bus.put_object(EVIDENCE, "case", b"x" * 300_000, metadata={"node": "n1"}, revision=0)
    # What EVENTS lacks of the facts would come to both sides of a restore, in its own way.
    await arriving(bus)


async def contents(bus: NatsBus, stream: str) -> list[Stored]:
    return await bus.read(stream, ">")
