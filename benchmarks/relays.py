"""The floor of what services do with messages: the same messages with no logic between.

A replacement and a launch are chains of messages. Here bare relays pass them on: each is a process
of its own, as the service of its name, with the services' own client, event loop and consumer
settings; each waits for the server's acknowledgement of every event and makes every append to a log
under its guard. Messages are as long as the services' last ones. Records of nodes, health and
instances are left out: the floor is what cannot be left out. The streams are further ones on the
measured server, with the same settings.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from agent.sources.kernel_log_reader import KernelLogReader
from benchmarks.served import connect
from schemas import subjects
from schemas.headers import TRACEPARENT
from schemas.stream_specs import DurableSpec
from schemas.topology import (
    EVENTS,
    HEALTH_EVENTS,
    MIB,
    NOTIFIER_STEPS,
    POOL_NODE_EVENTS,
    POOL_SAGAS,
    PROVISIONER_STEPS,
    SAGAS,
)
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Delivery
from services.bus.topology_setup import set_up_durable, set_up_stream
from services.primitives.clock import SystemClock
from services.runtime.http_caller import HttpCaller

AGENT: Final = "agent"
HEALTH: Final = "health_monitor"
POOL: Final = "pool_manager"
NOTIFIER: Final = "notifier"
PROVISIONER: Final = "provisioner"


class Rule(NamedTuple):
    """A rule says which role takes a message, and what it stores then, one after the other."""

    role: str
    then: tuple[str, ...]


RULES: Final = {
    "fault": Rule(HEALTH, ("verdict",)),
    "verdict": Rule(POOL, ("saga.started", "cordon.started")),
    "cordon.started": Rule(NOTIFIER, ("cordon.succeeded",)),
    "cordon.succeeded": Rule(POOL, ("cordoned", "drain.started")),
    "drain.started": Rule(NOTIFIER, ("drain.succeeded",)),
    "drain.succeeded": Rule(POOL, ("drained", "terminate.started")),
    "terminate.started": Rule(PROVISIONER, ("terminate.succeeded",)),
    "terminate.succeeded": Rule(POOL, ("terminated", "provision.started")),
    "provision.started": Rule(PROVISIONER, ("provision.succeeded",)),
    "provision.succeeded": Rule(POOL, ("bootstrap.started",)),
    "bootstrap.started": Rule(PROVISIONER, ("bootstrap.succeeded",)),
    "bootstrap.succeeded": Rule(POOL, ("register.started",)),
    "register.started": Rule(AGENT, ("registered", "boot-checked")),
    "boot-checked": Rule(
        POOL, ("register.succeeded", "admit.started", "admit.succeeded", "admitted", "saga.done")
    ),
    "request": Rule(POOL, ("saga.started", "provision.started")),
}
"""Message -> rule. A name with a dot is an entry of a saga's log, one without is an event."""
ROOT: Final = "floor"
STREAMS: Final = {
    kind: msgspec.structs.replace(
        spec, name=f"FLOOR_{spec.name}", subjects=(f"{ROOT}.{kind}.>",), bytes_max=256 * MIB
    )
    for kind, spec in (("event", EVENTS), ("saga", SAGAS))
}
CONSUMERS: Final = {
    (AGENT, "saga"): POOL_SAGAS,
    (HEALTH, "event"): HEALTH_EVENTS,
    (POOL, "event"): POOL_NODE_EVENTS,
    (POOL, "saga"): POOL_SAGAS,
    (NOTIFIER, "saga"): NOTIFIER_STEPS,
    (PROVISIONER, "saga"): PROVISIONER_STEPS,
}
"""Role and kind of message -> the durable whose settings the relay's has."""
TRACE: Final = {TRACEPARENT: f"00-{'a' * 32}-{'b' * 16}-01"}
BYTES_MIN: Final = 64
POST: Final = "post"
HTTP_SECONDS_MAX: Final = 30.0
READY_SECONDS_MAX: Final = 30.0
ACK_SECONDS: Final = 600.0
"""A relay sends no signs of progress, so nothing may be delivered again meanwhile."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """A relay process is started with these values."""

    url: str
    sizes: dict[str, int]
    """Message -> bytes; `post`: of the order that the notifier sends."""
    kernel_log: str = ""
    """Of the agent: each line of it becomes a fault of a node that has the line's number."""
    post_url: str = ""
    """Of the notifier: where it sends each cordon; empty: nowhere."""


def kind_of(name: str) -> str:
    """Return the kind of a message."""
    return "saga" if "." in name else "event"


def subject(node: str, name: str) -> str:
    """Return the subject of a node's message; `node` may be a wildcard."""
    return f"{ROOT}.{kind_of(name)}.{node}.{name}"


def durables(role: str) -> list[DurableSpec]:
    """Return the durables of a role."""
    return [
        msgspec.structs.replace(
            spec,
            stream=STREAMS[kind].name,
            name=f"{ROOT}-{role}-{kind}",
            ack_wait_seconds=ACK_SECONDS,
            filters=tuple(
                subject("*", name)
                for name, rule in RULES.items()
                if rule.role == role and kind_of(name) == kind
            ),
        )
        for (owner, kind), spec in CONSUMERS.items()
        if owner == role
    ]


async def no_order(node: str) -> None:
    """Leave the order to others."""
    del node


class Relay:
    """One role's relay: takes its messages and stores what follows upon each."""

    def __init__(
        self,
        bus: NatsBus,
        role: str,
        sizes: dict[str, int],
        order: Callable[[str], Awaitable[None]] = no_order,
    ) -> None:
        """`order` sends a node's cordon to the workload system."""
        self._bus = bus
        self._role = role
        self._sizes = sizes
        self._order = order
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Relay until cancelled."""
        await asyncio.gather(*(self._consume(each) for each in durables(self._role)))

    async def store(self, node: str, name: str, sequence: int) -> int:
        """Store a message of a node whose log ends at `sequence`; return where it ends then."""
        data = str(sequence).encode().ljust(self._sizes.get(name, BYTES_MIN))
        if kind_of(name) == "event":
            await self._bus.publish(
                subject(node, name), data, msg_id=f"{node}.{name}", headers=TRACE
            )
            return sequence
        tree = f"{ROOT}.saga.{node}.>"
        return await self._bus.append(
            subject(node, name), data, tree=tree, expected=sequence, headers=TRACE
        )

    def begin(self, work: Awaitable[None]) -> None:
        """Do it beside the rest."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _consume(self, durable: DurableSpec) -> None:
        async for delivery in self._bus.consume(durable):
            self.begin(self._take(delivery))

    async def _take(self, delivery: Delivery) -> None:
        stored = delivery.stored
        _, kind, node, name = stored.subject.split(".", 3)
        if name == "cordon.started":
            await self._order(node)
        # A request names how many nodes it is about, as `join-500`: each has a saga of its own.
        nodes = [node]
        if name == "request":
            nodes = [f"{node}-{number}" for number in range(int(node.rpartition("-")[2]))]
        sequence = stored.sequence if kind == "saga" else int(stored.data)
        await asyncio.gather(*(self._follow(each, name, sequence) for each in nodes))
        await delivery.ack()

    async def _follow(self, node: str, name: str, sequence: int) -> None:
        for each in RULES[name].then:
            sequence = await self.store(node, each, sequence)


@asynccontextmanager
async def relaying(bus: NatsBus, options: Options, *, agent_here: bool) -> AsyncIterator[Relay]:
    """Run every relay; yield the agents' one, which stores what a chain begins with.

    `agent_here`: it runs in this process, as scripted agents do; else it follows a kernel log.
    """
    for spec in STREAMS.values():
        await set_up_stream(bus, spec, 1)
    roles = {role for role, _ in CONSUMERS}
    for durable in (each for role in roles for each in durables(role)):
        await set_up_durable(bus, durable, 1)
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.relays", role, msgspec.json.encode(options)),
            stdout=asyncio.subprocess.PIPE,
        )
        for role in sorted(roles - ({AGENT} if agent_here else set()))
    ]
    relay = Relay(bus, AGENT, options.sizes)
    running = asyncio.ensure_future(relay.run()) if agent_here else None
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            for process in processes:
                assert process.stdout is not None
                if not await process.stdout.readline():
                    raise RuntimeError("a relay has ended at its start")
        yield relay
    finally:
        if running is not None:
            running.cancel()
        for process in processes:
            process.kill()
        await asyncio.gather(*(each.wait() for each in processes))


async def sizes_of_last(bus: NatsBus) -> dict[str, int]:
    """Return the length of the services' last message of each name; one must be stored."""
    sizes = {}
    for name in sorted({each for rule in RULES.values() for each in rule.then} | {"fault"}):
        if kind_of(name) == "saga":
            found = await bus.last(SAGAS.name, subjects.saga_step_wildcard(*name.split(".")))
        else:
            found = await bus.last(EVENTS.name, subjects.node_event_wildcard(name))
        if found is not None:
            sizes[name] = len(found.data)
    return sizes


async def _main(role: str, options: Options) -> None:
    bus = await connect(options.url, f"{ROOT}-{role}")
    caller = HttpCaller(SystemClock(), timeout_seconds=HTTP_SECONDS_MAX)

    async def post(node: str) -> None:
        content = msgspec.json.encode({"node_id": node}).ljust(options.sizes[POST])
        request = caller.request("POST", options.post_url, content=content)
        await caller.send(request, POST)

    relay = Relay(bus, role, options.sizes, post if options.post_url else no_order)

    async def fault(number: int) -> None:
        await relay.store(f"line-{number}", "fault", 0)

    if role == AGENT:
        KernelLogReader(
            Path(options.kernel_log),
            after=-1,
            on_line=lambda line: relay.begin(fault(line.sequence)),
            on_gap=lambda *_: None,
        ).start()
    print("ready", flush=True)
    await relay.run()


if __name__ == "__main__":
    # The agent, too, runs in asyncio's own loop.
    run: Any = asyncio.run if sys.argv[1] == AGENT else uvloop.run
    run(_main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Options)))
