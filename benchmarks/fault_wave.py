"""Many nodes fail at once, or join: the time until the last cordon, replacement, node in service.

nats-server and the services are real processes; nodes are instances of the `fake` provider with
scripted agents, and the notifier is `noop`. This process publishes the faults of a wave together,
or asks for 500 nodes more; the times are those at which the server stored the entries of the saga
logs. The floor of each round is the same chains of messages through bare relays (`relays`), right
after it, on the same server. Waves of 200 and 600 run on a fleet of 600 nodes, those of 1,000 and
5,000 each on a fleet of their size.
"""

import asyncio
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import relays
from benchmarks.comparison import medians
from benchmarks.scripted_fleet import POOL, ScriptedFleet, running_fleet
from benchmarks.served import Effort
from schemas import subjects
from schemas.messages import encode
from schemas.node_events import FACTS, Fault
from schemas.node_records import NodeRecord
from schemas.operator_requests import ScaleRequest
from schemas.topology import EVENTS, SAGAS
from services.bus.nats.nats_bus import NatsBus

FLEET: Final = 600
WAVES: Final = (200, 600)
JOINING: Final = 500
EFFORT: Final = Effort(5, 200.0)
LARGE_WAVES: Final = (1_000, 5_000)
LARGE_EFFORT: Final = Effort(2, 120.0)
WARM_UP: Final = 20
"""Nodes of the first wave, which is not counted; from it the relays have their sizes."""
POLL_SECONDS: Final = 0.25
WAIT_SECONDS: Final = 60.0
WAIT_SECONDS_EACH: Final = 0.2
"""For each node more."""
XID: Final = 79
BUDGET: Final = {"max_unavailable": "100%", "max_replacements": "unlimited"}
HEALTH: Final = {"incident": {"hold": "0s"}}
DEVIATIONS: Final = {
    "pool and fleet budget": (
        "max_unavailable 100%, max_replacements unlimited; shipped: 20% and 50% an hour of a pool, "
        "25% and 50% of the fleet, which would keep most of the wave waiting"
    ),
    "health.incident.hold": "0s; shipped: 15m, for which the breaker would stop the wave",
}
ENDS: Final = {
    "last_saga": "saga.started",
    "last_cordon": "cordon.succeeded",
    "last_drain": "drain.succeeded",
    "last_replacement_started": "provision.started",
    "last_done": "saga.done",
}
"""Figure -> the entry of a saga's log whose last one it is the time of."""
COMPARED: Final = ("last_cordon_seconds", "last_replacement_started_seconds")

Figures = dict[str, float]


async def publish_fault(bus: NatsBus, node: NodeRecord) -> None:
    """Publish XID 79 of a node, as its agent would."""
    fault = Fault(
        id=f"{node.node}.kmsg.1",
        time=datetime.now(UTC),
        pool=POOL,
        node=node.node,
        kind="xid",
        system="DCGM_HEALTH_WATCH_PCIE",
        gpu_index=3,
        gpu_uuid=f"GPU-{node.node}-3",
        code=XID,
        message="GPU has fallen off the bus.",
        metrics={"xid_code": XID},
        boot_id=node.boot_id,
        sequence=1,
    )
    subject = subjects.node_event(POOL, node.node, FACTS[Fault])
    await bus.publish(subject, encode(fault), msg_id=fault.id)


def log_entries(name: str) -> tuple[str, str]:
    """Return the stream and the subjects of an entry in the services' saga logs."""
    return SAGAS.name, subjects.saga_step_wildcard(*name.split("."))


def relayed(name: str) -> tuple[str, str]:
    """Return the stream and the subjects of a message among the relays' ones."""
    return relays.STREAMS[relays.kind_of(name)].name, relays.subject("*", name)


class Chains:
    """Chains of messages that begin now; their times are the server's."""

    def __init__(self, bus: NatsBus, after: dict[str, int], start: float) -> None:
        """Count what is stored after these sequences."""
        self._bus = bus
        self._after = after
        self._start = start

    @classmethod
    async def begin(cls, bus: NatsBus, *streams: str) -> "Chains":
        """Count messages and seconds from now on."""
        return cls(bus, {each: await bus.last_sequence(each) for each in streams}, time.time())

    async def last_seconds(self, stream: str, filter_: str) -> float:
        """Return when the last message so far was stored, in seconds since the beginning."""
        stored = await self._bus.read(stream, filter_, after=self._after[stream])
        return max(each.time.timestamp() for each in stored) - self._start

    async def wait(self, stream: str, filter_: str, count: int) -> None:
        """Wait until so many messages are stored."""
        async with asyncio.timeout(WAIT_SECONDS + count * WAIT_SECONDS_EACH):
            while len(await self._bus.read(stream, filter_, after=self._after[stream])) < count:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)


async def wave(fleet: ScriptedFleet, count: int) -> Figures:
    """Break so many nodes at once; seconds until the last entry of each kind was stored."""
    bus = fleet.bus
    chosen = list((await fleet.active_nodes()).values())[:count]
    chains = await Chains.begin(bus, SAGAS.name, EVENTS.name)
    start = time.time()
    await asyncio.gather(*(publish_fault(bus, node) for node in chosen))
    published = time.time() - start
    await chains.wait(EVENTS.name, subjects.pool_event_wildcard("node-replaced"), count)
    found = {"published_seconds": published}
    for name, entry in ENDS.items():
        found[f"{name}_seconds"] = await chains.last_seconds(*log_entries(entry))
    return found


async def floor_of_wave(relay: relays.Relay, bus: NatsBus, name: str, count: int) -> Figures:
    """Pass the same messages through the relays."""
    chains = await Chains.begin(bus, *(each.name for each in relays.STREAMS.values()))
    await asyncio.gather(*(relay.store(f"{name}-{number}", "fault", 0) for number in range(count)))
    await chains.wait(*relayed("saga.done"), count)
    return {
        f"{figure}_seconds": await chains.last_seconds(*relayed(entry))
        for figure, entry in ENDS.items()
        if f"{figure}_seconds" in COMPARED
    }


async def join(fleet: ScriptedFleet, nodes: int, count: int) -> Figures:
    """Ask for nodes more, `nodes` in all; seconds until the last of them is in service."""
    chains = await Chains.begin(fleet.bus, EVENTS.name)
    await _scale(fleet, nodes)
    admitted = EVENTS.name, subjects.node_event_wildcard("admitted")
    await chains.wait(*admitted, count)
    return {"seconds": await chains.last_seconds(*admitted)}


async def floor_of_join(relay: relays.Relay, bus: NatsBus, name: str, count: int) -> Figures:
    """Pass the same messages through the relays."""
    chains = await Chains.begin(bus, *(each.name for each in relays.STREAMS.values()))
    await relay.store(f"{name}-{count}", "request", 0)
    await chains.wait(*relayed("saga.done"), count)
    return {"seconds": await chains.last_seconds(*relayed("admitted"))}


async def _scale(fleet: ScriptedFleet, nodes: int) -> None:
    request = ScaleRequest(nodes=nodes)
    await fleet.bus.publish(subjects.pool_request(POOL, "scale"), encode(request))


async def measure_fleet(
    nodes: int, waves: tuple[int, ...], effort: Effort, joining: int = 0
) -> dict[str, Any]:
    """Measure waves, and nodes that join, in rounds on one fleet; each with its floor."""
    found: dict[str, list[tuple[Figures, Figures]]] = {}
    pool = {"min_nodes": 0, "max_nodes": nodes, "health": HEALTH, "budget": BUDGET}
    with tempfile.TemporaryDirectory(prefix="wave-", ignore_cleanup_errors=True) as place:
        async with running_fleet(Path(place), pool, budget=BUDGET) as fleet:
            bus = fleet.bus
            await _scale(fleet, nodes)
            await fleet.wait_for_nodes(nodes)
            await wave(fleet, WARM_UP)
            options = relays.Options(url=fleet.server.url, sizes=await relays.sizes_of_last(bus))
            async with relays.relaying(bus, options, agent_here=True) as relay:
                for number in effort.numbers():
                    if joining:
                        await _scale(fleet, nodes - joining)
                        await fleet.wait_for_nodes(nodes - joining)
                        joined = await join(fleet, nodes, joining)
                        floor = await floor_of_join(relay, bus, f"join-{number}", joining)
                        found.setdefault(f"join_{joining}", []).append((joined, floor))
                    for count in waves:
                        await fleet.wait_for_nodes(nodes)
                        broken = await wave(fleet, count)
                        name = f"wave-{number}"
                        floor = await floor_of_wave(relay, bus, f"{name}-{count}", count)
                        found.setdefault(f"wave_{count}", []).append((broken, floor))
    return {
        f"{what}_{figure}": value
        for what, pairs in found.items()
        for figure, value in medians(pairs).items()
    }


async def measure(effort: Effort = EFFORT) -> dict[str, Any]:
    """Measure 500 nodes that join, and waves of 200 and 600."""
    return await measure_fleet(FLEET, WAVES, effort, JOINING)


async def measure_large() -> dict[str, Any]:
    """Measure waves of 1,000 and of 5,000 nodes, and what five times the nodes cost."""
    found: dict[str, Any] = {}
    for count in LARGE_WAVES:
        found |= await measure_fleet(count, (count,), LARGE_EFFORT)
    small, large = LARGE_WAVES
    for figure in COMPARED:
        growth = found[f"wave_{large}_{figure}"] / found[f"wave_{small}_{figure}"]
        found[f"wave_{large}_to_{small}_{figure.removesuffix('_seconds')}"] = round(growth, 2)
    return found
