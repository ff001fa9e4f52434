"""Scripted peers of the pool-manager: a workload system, a provider and agents that only answer.

Not mocks of our code: they speak the bus's own protocol as participants and agents do, and record
what was asked of them, so that a test can count it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, BootChecked, GpuIdentity, NodeEvent, Registered, Verdict
from schemas.step_data import ActionOutputs, ProvisionOutputs, VacateOutputs
from schemas.topology import NOTIFIER_STEPS, PROVISIONER_STEPS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from services.saga.participant import Command, Participant, StepFailure


class Peers:
    """Answers every step at once, unless set otherwise."""

    def __init__(self, bus: NatsBus, *, gpus: int = 8) -> None:
        """Answer on `bus`; instances come up with `gpus` GPUs."""
        self.bus = bus
        self.gpus = gpus
        self.calls: list[tuple[str, str]] = []
        self.instances: set[str] = set()
        self.most_instances = 0
        self.fail: dict[str, str] = {}
        """Step name -> reason for which it fails."""
        self.hold: dict[str, asyncio.Event] = {}
        """Step name -> it answers only when this is set."""
        self.same_hardware = ""
        """Instances come with the GPUs of this node; empty: with their own."""
        self.zones: list[str] = []
        """Where each launch was to be made first."""
        self.silent = False
        """Instances come up, but no agent ever speaks."""
        self.domain_of: Callable[[str], str] = lambda _: ""
        """The NVLink domain of a node's GPUs."""
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Take part."""
        clock = SystemClock()
        notifier = Participant(
            self.bus,
            clock,
            {
                **dict.fromkeys(
                    ("cordon", "drain", "uncordon", "reserve", "open", "promote"), self._plain
                ),
                "vacate": self._vacate,
            },
            {"cordon": self._plain_undo},
        )
        provisioner = Participant(
            self.bus,
            clock,
            {
                "provision": self._provision,
                "bootstrap": self._plain,
                "terminate": self._terminate,
                "check": self._plain,
                "reset": self._plain,
                "reboot": self._reboot,
            },
            {"provision": self._undo_provision},
        )
        for participant, durable in (
            (notifier, NOTIFIER_STEPS),
            (provisioner, PROVISIONER_STEPS),
        ):
            loop = ConsumerLoop(
                self.bus, participant.consumer(durable), clock, Instruments(), Tracing("peers")
            )
            self._loops.append(asyncio.create_task(loop.run()))
            self._loops.append(asyncio.create_task(participant.watch()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    def count(self, step: str) -> Counter[str]:
        """Return how often a step was performed, by node."""
        return Counter(node for name, node in self.calls if name == step)

    async def _asked(self, step: str, command: Command) -> None:
        self.calls.append((step, str(command.inputs["node"])))
        if step in self.hold:
            await self.hold[step].wait()
        if reason := self.fail.get(step):
            raise StepFailure(reason)

    async def _plain(self, command: Command) -> None:
        await self._asked(command.step, command)

    async def _vacate(self, command: Command) -> VacateOutputs:
        await self._asked("vacate", command)
        return VacateOutputs()

    async def _plain_undo(self, command: Command) -> None:
        await self._asked(f"undo-{command.step}", command)

    async def _provision(self, command: Command) -> ProvisionOutputs:
        await self._asked("provision", command)
        node, pool = str(command.inputs["node"]), str(command.inputs["pool"])
        zones = command.inputs["launch"]["zones"]
        zone = str(zones[0]) if zones else ""
        self.zones.append(zone)
        self.instances.add(node)
        self.most_instances = max(self.most_instances, len(self.instances))
        if not self.silent:
            await self.register(pool, node)
        return ProvisionOutputs(provider="test", provider_id=f"i-{node}", zone=zone)

    async def _terminate(self, command: Command) -> None:
        await self._asked("terminate", command)
        self.instances.discard(str(command.inputs["node"]))

    async def _reboot(self, command: Command) -> ActionOutputs:
        await self._asked("reboot", command)
        node, pool = str(command.inputs["node"]), str(command.inputs["pool"])
        boot = f"after-{command.inputs['boot_id']}"
        if not self.silent:
            await self.register(pool, node, boot=boot)
        return ActionOutputs(by="agent")

    async def _undo_provision(self, command: Command) -> None:
        await self._asked("undo-provision", command)
        self.instances.discard(str(command.inputs["node"]))

    # --- agents and the health-monitor ------------------------------------------------------------

    async def publish(self, event: NodeEvent) -> None:
        """Publish a fact about a node."""
        await self.bus.publish(
            subjects.node_event(event.pool, event.node, FACTS[type(event)]),
            encode(event),
            msg_id=event.id,
        )

    async def register(self, pool: str, node: str, *, ok: bool = True, boot: str = "b1") -> None:
        """Speak as a node's agent does when it starts, and as the health-monitor answers."""
        now = datetime.now(UTC)
        gpus = tuple(
            GpuIdentity(index=i, uuid=f"GPU-{self.same_hardware or node}-{i}")
            for i in range(self.gpus)
        )
        about = {"time": now, "pool": pool, "node": node}
        again = "" if boot == "b1" else f"-{boot}"
        await self.publish(
            Registered(
                id=f"registered-{node}{again}",
                instance=node,
                boot_id=boot,
                gpus=gpus,
                nvlink_domain=self.domain_of(node),
                **about,
            )
        )
        await self.publish(BootChecked(id=f"boot-{node}{again}", ok=ok, boot_id=boot, **about))
        if not again:
            # A boot lifts no verdict: that the node is well is said when it is uncordoned.
            await self.publish(Verdict(id=f"verdict-registered-{node}", status="healthy", **about))

    async def make_unhealthy(self, pool: str, node: str, fault: str = "f1") -> None:
        """Publish what the health-monitor makes of a fatal fault."""
        await self.publish(
            Verdict(
                id=f"verdict-{fault}-{node}",
                time=datetime.now(UTC),
                pool=pool,
                node=node,
                status="unhealthy",
                action="replace",
                rule="fatal-xid",
                reason="XID 79: GPU has fallen off the bus",
                fault=f"{fault}-{node}",
            )
        )
