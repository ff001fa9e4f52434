"""Agents that misbehave: one that floods the bus, and one that uses the ID of another node."""

import asyncio
from contextlib import suppress
from typing import Any, Final

from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import Fault, GpuIdentity, NodeEvent, Registered
from services.primitives.errors import BusError
from services.simulator.engine.simulated_machine import SimulatedMachine, gpus_of
from services.simulator.engine.simulation_context import StoredRecords

HARMLESS_XID: Final = 43
GARBAGE_EVERY: Final = 10
GARBAGE: Final = b'{"type": "io.navarch.agent.event.v1.fault", "time": []}'
SECOND: Final = "-second"
"""Ends what identifies the second machine of a name."""
REGISTERS_SECONDS: Final = 25.0
"""Between its registrations: longer than the other agent takes to register again."""


async def flood(node: SimulatedMachine, count: int, seconds: float) -> None:
    """Publish so many messages, evenly over so many seconds."""
    now = node.process.simulation.clock.now()
    for number in range(count):
        fault = Fault(
            id=f"{node.boot_id}.flood-{number}",
            time=now,
            pool=node.instance.pool,
            node=node.name,
            kind="xid",
            code=HARMLESS_XID,
            subcode=str(number),
            message="flood",
        )
        await _publish(node, fault, b"" if number % GARBAGE_EVERY else GARBAGE)
        await asyncio.sleep(seconds / count)


async def second_machine(node: SimulatedMachine, count: int, xid_code: int) -> None:
    """Register so often as a node that another machine is, and report a fault once refused."""
    simulation = node.process.simulation
    boot, records = f"{node.boot_id}{SECOND}", StoredRecords(simulation.server)
    about: dict[str, Any] = {"pool": node.instance.pool, "node": node.name, "boot_id": boot}
    gpus = tuple(
        GpuIdentity(index=each.index, uuid=f"{each.uuid}{SECOND}", serial=f"{each.serial}{SECOND}")
        for each in gpus_of(node)
    )
    for number in range(count):
        now = simulation.clock.now()
        event = Registered(
            id=f"{boot}.registered.{number}",
            time=now,
            instance=node.name,
            hostname=f"{node.name}{SECOND}",
            gpus=gpus,
            **about,
        )
        await _publish(node, event)
        record = records.node(f"{node.instance.pool}.{node.name}")
        if record is not None and record.identity is not None and record.identity.refuses(boot):
            name = f"{boot}.fault.{number}"
            fault = Fault(id=name, time=now, kind="xid", code=xid_code, gpu_index=0, **about)
            await _publish(node, fault)
        await asyncio.sleep(REGISTERS_SECONDS)


async def _publish(node: SimulatedMachine, event: NodeEvent, instead: bytes = b"") -> None:
    """Publish once, whatever comes of it."""
    with suppress(BusError):
        await node.process.bus.publish(event_subject(event), instead or encode(event))
