"""Agents of instances that exist by name only: what a node says on the bus, and nothing else.

They come up when the provider's own file gains an instance and fall silent when it loses it. Like
real ones they lose nothing: what the bus does not take now is said again until it does.
"""

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, BootChecked, Fault, GpuIdentity, NodeEvent, Registered
from schemas.records import HeartbeatRecord, node_key
from schemas.requests import Acted, Diagnosis, RebootRequest, ResetRequest
from schemas.topology import HEARTBEATS
from services.provisioner.providers.local_gpus import kmsg_record, simulated_gpus
from services.runtime.bus import Headers
from services.runtime.errors import BusError
from services.runtime.nats_bus import NatsBus
from tests.crash.provider import Provider

LOOK_SECONDS: Final = 0.005
"""Between two looks at the provider's file, which tells nobody that it changed."""
AGAIN_SECONDS: Final = 0.05
BEAT_SECONDS: Final = 2.0
BEAT_TTL_SECONDS: Final = 6
GPUS: Final = 8
GPU: Final = 3
"""The one that breaks."""
XID: Final = 79
SEQUENCE: Final = 1
"""Of the one record in the kernel log of a node that breaks."""


class Agents:
    """Every agent of the fleet."""

    def __init__(self, bus: NatsBus, pool: str, provider: Provider, boot_seconds: float) -> None:
        """Nodes of `pool` register `boot_seconds` after their instance was made."""
        self._bus = bus
        self._pool = pool
        self._provider = provider
        self._boot_seconds = boot_seconds
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._boots: dict[str, asyncio.Semaphore] = {}
        self._boot_ids: dict[str, str] = {}
        self._done: dict[str, Acted] = {}
        self.acts: list[tuple[str, str]] = []
        """(step, node) of every reset and reboot that took effect: one for each key, whoever asks
        how often."""

    async def run(self) -> None:
        """Give every instance its agent, for ever."""
        try:
            while True:
                names = self._provider.names()
                for name in set(names) - set(self._lives):
                    self._lives[name] = asyncio.create_task(self._live(name))
                for name in set(self._lives) - set(names):
                    self._lives.pop(name).cancel()
                for life in self._lives.values():
                    if life.done():
                        life.result()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for life in self._lives.values():
                life.cancel()
            await asyncio.gather(*self._lives.values(), return_exceptions=True)

    async def _live(self, node: str) -> None:
        self._boots[node] = asyncio.Semaphore(0)
        self._boot_ids[node] = f"boot-{node}"
        for verb, endpoint in (
            ("reset-gpu", self._reset),
            ("reboot", self._reboot),
            ("diagnose", self._diagnose),
        ):
            subject = subjects.node_command(self._pool, node, verb)
            await self._bus.answer(subject, partial(endpoint, node))
        boot = 0
        while True:
            boot += 1
            await self._boot(node, f"boot-{node}" if boot == 1 else f"boot-{node}-{boot}")
            await self._beat(node)
            while not await self._rebooted(node):
                await self._beat(node)

    async def _rebooted(self, node: str) -> bool:
        """Whether the node is rebooted before its next beat is due."""
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                return await self._boots[node].acquire()
        except TimeoutError:
            return False

    async def _boot(self, node: str, boot_id: str) -> None:
        about = {"pool": self._pool, "node": node}
        again = boot_id.removeprefix(f"boot-{node}")
        self._boot_ids[node] = boot_id
        await asyncio.sleep(self._boot_seconds)
        gpus = tuple(GpuIdentity(index=i, uuid=f"GPU-{node}-{i}") for i in range(GPUS))
        registered = Registered(
            id=f"{node}.registered{again}",
            time=datetime.now(UTC),
            instance=node,
            boot_id=boot_id,
            gpus=gpus,
            **about,
        )
        await self.say(registered)
        await asyncio.sleep(self._boot_seconds)
        checked = BootChecked(
            id=f"{node}.boot-checked{again}",
            time=datetime.now(UTC),
            ok=True,
            boot_id=boot_id,
            **about,
        )
        await self.say(checked)

    # --- what sagas ask of a node -----------------------------------------------------------------

    async def _reset(self, node: str, data: bytes, _: Headers) -> bytes:
        key = msgspec.json.decode(data, type=ResetRequest).key
        return encode(self._act(key, "reset", node))

    async def _reboot(self, node: str, data: bytes, _: Headers) -> bytes:
        key = msgspec.json.decode(data, type=RebootRequest).key
        if key not in self._done:
            self._boots[node].release()
        return encode(self._act(key, "reboot", node))

    def _act(self, key: str, step: str, node: str) -> Acted:
        if key not in self._done:
            self._done[key] = Acted(ok=True, at=datetime.now(UTC))
            self.acts.append((step, node))
        return msgspec.structs.replace(self._done[key], boot_id=self._boot_ids[node])

    async def _diagnose(self, node: str, data: bytes, _: Headers) -> bytes:
        del node, data
        return encode(Diagnosis(ok=True))

    async def _beat(self, node: str) -> None:
        beat = HeartbeatRecord(pool=self._pool, node=node, instance=node, time=datetime.now(UTC))
        key = node_key(self._pool, node)
        try:
            await self._bus.put(HEARTBEATS, key, encode(beat), ttl_seconds=BEAT_TTL_SECONDS)
        except BusError:
            return  # the next beat says the same

    async def say(self, event: NodeEvent) -> int:
        """Publish until it is stored; the id keeps a repetition from being stored twice."""
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        while True:
            try:
                return await self._bus.publish(subject, encode(event), msg_id=event.id)
            except BusError:
                await asyncio.sleep(AGAIN_SECONDS)


def fault_of(pool: str, node: str) -> Fault:
    """A GPU of the node has fallen off the bus."""
    return Fault(
        id=f"{node}.kmsg.{SEQUENCE}",
        time=datetime.now(UTC),
        pool=pool,
        node=node,
        kind="xid",
        system="DCGM_HEALTH_WATCH_PCIE",
        gpu_index=GPU,
        gpu_uuid=f"GPU-{node}-{GPU}",
        code=XID,
        message="GPU has fallen off the bus.",
        metrics={"xid_code": XID},
        boot_id=f"boot-{node}",
        sequence=SEQUENCE,
    )


def write_fault(kmsg: Path, node: str) -> None:
    """Let a real agent of a simulated host find the same in its kernel log."""
    pci = simulated_gpus(node, GPUS)[GPU].pci
    line = f"NVRM: Xid (PCI:{pci}): {XID}, pid=7, name=python, GPU has fallen off the bus."
    with kmsg.open("ab") as log:
        log.write(kmsg_record(SEQUENCE, SEQUENCE, line))
