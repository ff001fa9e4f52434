"""Scripted agents of instances that exist by name only: the messages of a node and nothing else.

An agent starts when the provider's file gains an instance and stops when the file loses it. Like a
real agent it loses nothing: it publishes a message again until the bus stores it.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas import subjects
from schemas.agent_commands import ActionResult, Diagnosis, RebootRequest, ResetRequest
from schemas.messages import encode
from schemas.node_events import FACTS, BootChecked, Fault, GpuIdentity, NodeEvent, Registered
from schemas.node_records import HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.primitives.errors import BusError
from services.provisioner.providers.local_gpus import kmsg_record, simulated_gpus
from tests.crash.provider_truth import Provider

LOOK_SECONDS: Final = 0.005
"""How often the provider's file is polled."""
AGAIN_SECONDS: Final = 0.05
BEAT_SECONDS: Final = 2.0
BEAT_TTL_SECONDS: Final = 6
GPUS: Final = 8
GPU: Final = 3
"""Index of the GPU that breaks."""
GONE: Final = 79
"""The XID of a GPU that has fallen off the bus: its node is replaced."""
UNCONTAINED: Final = 95
"""The XID of a memory error that a reset clears."""
MESSAGES: Final = {GONE: "GPU has fallen off the bus.", UNCONTAINED: "Uncontained: LTC TAG"}
Acts = Callable[[str, str], None]
"""Called with step and node when a reset or reboot takes effect."""


class ScriptedAgents:
    """Plays every agent of the fleet."""

    def __init__(
        self, bus: NatsBus, pool: str, provider: Provider, boot_seconds: float, acted: Acts
    ) -> None:
        """Nodes of `pool` register `boot_seconds` after their instance was made."""
        self._bus = bus
        self._pool = pool
        self._provider = provider
        self._boot_seconds = boot_seconds
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._boots: dict[str, asyncio.Semaphore] = {}
        self._boot_ids: dict[str, str] = {}
        self._done: dict[str, ActionResult] = {}
        self._acted = acted
        self._rebooted: set[int] = set()
        self.acts: list[tuple[str, str]] = []
        """(key, node) of every reset and reboot by an agent, once for each key. A reboot by the
        provider has no key."""
        self.hostname = self.address = ""
        """What every agent reports of its host."""
        self.unable: set[str] = set()
        """Nodes whose agents may not reboot them."""

    async def run(self) -> None:
        """Start and stop agents as instances come and go, forever."""
        try:
            while True:
                names = self._provider.names()
                self._reboot_as_the_provider_says()
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

    def _reboot_as_the_provider_says(self) -> None:
        truth = self._provider.truth()
        existing = dict(truth.existing)
        for number, provider_id in truth.reboots:
            if number in self._rebooted:
                continue
            self._rebooted.add(number)
            node = existing.get(provider_id)
            if node is not None and node in self._boots:
                self._acted("reboot", node)
                self.acts.append(("", node))
                self._boots[node].release()

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
            while not await self._is_rebooted(node):
                await self._beat(node)

    async def _is_rebooted(self, node: str) -> bool:
        """Whether the node is rebooted before its next heartbeat is due."""
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
            hostname=self.hostname,
            address=self.address,
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

    def boot_id(self, node: str) -> str:
        """Return the current boot ID of a node."""
        return self._boot_ids[node]

    # --- commands --------------------------------------------------------------------------------

    async def _reset(self, node: str, data: bytes, _: Headers) -> bytes:
        key = msgspec.json.decode(data, type=ResetRequest).key
        return encode(self._act(key, "reset", node))

    async def _reboot(self, node: str, data: bytes, _: Headers) -> bytes:
        key = msgspec.json.decode(data, type=RebootRequest).key
        if node in self.unable:
            return encode(
                ActionResult(ok=False, detail="not permitted", boot_id=self._boot_ids[node])
            )
        if key not in self._done:
            self._boots[node].release()
        return encode(self._act(key, "reboot", node))

    def _act(self, key: str, step: str, node: str) -> ActionResult:
        if key not in self._done:
            self._done[key] = ActionResult(ok=True, at=datetime.now(UTC))
            self.acts.append((key, node))
            self._acted(step, node)
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
            return  # the next heartbeat replaces it

    async def say(self, event: NodeEvent) -> int:
        """Publish until it is stored; the message ID prevents a second copy."""
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        while True:
            try:
                return await self._bus.publish(subject, encode(event), msg_id=event.id)
            except BusError:
                await asyncio.sleep(AGAIN_SECONDS)


def fault_of(pool: str, node: str, code: int, sequence: int, boot_id: str) -> Fault:
    """Return an XID of one GPU; `sequence` is that of the record in the node's kernel log."""
    return Fault(
        id=f"{node}.kmsg.{sequence}",
        time=datetime.now(UTC),
        pool=pool,
        node=node,
        kind="xid",
        system="DCGM_HEALTH_WATCH_PCIE",
        gpu_index=GPU,
        gpu_uuid=f"GPU-{node}-{GPU}",
        code=code,
        message=MESSAGES[code],
        metrics={"xid_code": code},
        boot_id=boot_id,
        sequence=sequence,
    )


def write_fault(kmsg: Path, node: str, code: int, sequence: int) -> None:
    """Write the same fault to the kernel log that a real agent reads."""
    pci = simulated_gpus(node, GPUS)[GPU].pci
    line = f"NVRM: Xid (PCI:{pci}): {code}, pid=7, name=python, {MESSAGES[code]}"
    with kmsg.open("ab") as log:
        log.write(kmsg_record(sequence, sequence, line))
