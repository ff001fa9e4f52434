"""The in-memory bus shows which events reach workload systems that list nodes."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.enums import InstanceState
from schemas.instance_records import InstanceRecord
from schemas.messages import Message, encode
from schemas.node_events import Admitted, Registered, Terminated
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import SagaFailed
from schemas.pool_records import PoolRecord, WorkloadName, pool_key
from schemas.saga_params import WORKLOAD_NAME, LaunchSpec
from schemas.topology import INSTANCES, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.port import Stored
from services.notifier.node_list import NodeList
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import NodeReference
from services.primitives.errors import Retry
from services.runtime.consumer_loop import Received
from services.simulator.engine.virtual_time import VirtualClock
from services.workload_systems.slurm_client import SlurmUnavailableError
from tests.notifier.test_drain_watch import Scheduler
from tests.notifier.test_workload_steps import POOL, with_bus

NAME = "train-1"
SAGA = "scale-up-n"
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Listing(Scheduler):
    """A workload system that lists nodes."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    away: bool = False

    async def node_registered(self, node: NodeReference) -> None:
        """Note the address."""
        self._note("registered", node.address)

    async def node_admitted(self, node: NodeReference) -> None:
        """Note the node."""
        self._note("admitted", node.node)

    async def node_gone(self, node: NodeReference) -> None:
        """Note the node."""
        self._note("gone", node.node)

    async def launch_failed(self, node: NodeReference, reason: str, saga: str) -> None:
        """Note why the launch failed."""
        self._note("failed", f"{node.node}: {reason} ({saga})")

    def _note(self, call: str, about: str) -> None:
        if self.away:
            raise SlurmUnavailableError("away")
        self.calls.append((call, about))


def record(node: str = "n", **changes: Any) -> NodeRecord:
    """A node that the workload system named."""
    launch = LaunchSpec(fleet="f", provider="p", instance_type="t", labels={WORKLOAD_NAME: NAME})
    return NodeRecord(**{"pool": "p", "node": node, "state": "active", "launch": launch} | changes)


def event(kind: type[Message], **fields: Any) -> Message:
    """Return an event about node `n`, now."""
    about = {"node": "n"} if kind is not SagaFailed else {"new_node": "n"}
    if kind is SagaFailed:
        fields = {"saga": SAGA, "reason": "no capacity", "step": "provision", **fields}
    if kind is Registered:
        fields = {"instance": "n", "address": "10.0.0.7", **fields}
    return kind(id="e", time=AT, pool="p", **about | fields)


async def handle(bus: MemoryBus, notifier: Scheduler, message: Message, **records: Any) -> None:
    """Handle one event while these records are stored."""
    for node in records.get("nodes", (record(),)):
        await bus.put(NODES, node_key("p", node.node), encode(node))
    known = WorkloadName(wanted=records.get("wanted", False), at=records.get("at", AT))
    wanted = {NAME: known}
    pool = PoolRecord(name="p", spec=POOL, desired=1, workload_names=wanted)
    await bus.put(POOLS, pool_key("p"), encode(pool))
    stored = Stored(
        subject="navarch.v1.pool.p.node.n.event.x", sequence=1, time=VirtualClock().now(), data=b""
    )
    listing = NodeList(PoolNotifiers(notifier, {}, {}, bus), bus, VirtualClock())
    await listing.handle(Received(message=message, stored=stored, deliveries=1))


LATER = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("message", "records", "calls"),
    [
        (event(Registered), {}, [("registered", "10.0.0.7")]),
        (event(Registered), {"nodes": (record(state="launching"),)}, [("registered", "10.0.0.7")]),
        (event(Registered), {"nodes": (record(state="registered"),)}, [("registered", "10.0.0.7")]),
        (event(Registered), {"nodes": (record(state="terminated"),)}, []),
        (event(Admitted, saga="s"), {"nodes": (record(state="registered"),)}, [("admitted", "n")]),
        (event(Admitted, saga="s"), {}, [("admitted", "n")]),
        # Late: it is cordoned again, or something else is under way.
        (event(Admitted, saga="s"), {"nodes": (record(cordoned=True),)}, []),
        (event(Admitted, saga="s"), {"nodes": (record(saga="other"),)}, []),
        (event(Terminated), {"nodes": (record(state="terminated"),)}, [("gone", "n")]),
        # A successor has the name, or will.
        (event(Terminated), {"nodes": (record(state="terminated"), record("m"))}, []),
        (event(Terminated), {"nodes": (record(state="terminated"),), "wanted": True}, []),
        (event(SagaFailed), {}, [("failed", f"n: no capacity ({SAGA})")]),
        (event(SagaFailed, node="old"), {}, []),
    ],
)
def test_events(message: Message, records: dict[str, Any], calls: list[tuple[str, str]]) -> None:
    """The records say whether an event still matters."""

    async def work(bus: MemoryBus) -> None:
        listing = Listing()
        known = {"nodes": (record(),)} | records
        fixed = {**known, "nodes": tuple(known["nodes"])}
        await handle(bus, listing, message, **fixed)
        assert listing.calls == calls

    with_bus(work)


@pytest.mark.parametrize(
    ("state", "calls"),
    [("terminating", []), ("leaked", []), ("terminated", [("gone", "n")])],
)
def test_the_entry_of_a_machine_that_still_exists_stays(
    state: InstanceState, calls: list[tuple[str, str]]
) -> None:
    """A leak's slurmd runs on: it would register without the cordon and be given work."""

    async def work(bus: MemoryBus) -> None:
        launch = record().launch
        assert launch is not None
        instance = InstanceRecord(
            pool="p",
            instance="n",
            state=state,
            provider="p",
            token="t",
            launch=launch,
            intended_at=AT,
        )
        await bus.put(INSTANCES, node_key("p", "n"), encode(instance))
        listing, message = Listing(), event(Terminated)
        with nullcontext() if calls else pytest.raises(Retry, match="still exists"):
            await handle(bus, listing, message, nodes=(record(state="terminated"),))
        assert listing.calls == calls

    with_bus(work)


def test_a_failed_launch_waits_for_the_pools_record_and_not_for_a_new_request() -> None:
    """The event is published before the name is given up; resumed again, it is not failed."""

    async def work(bus: MemoryBus) -> None:
        listing, message = Listing(), event(SagaFailed)
        with pytest.raises(Retry, match="still has the launch"):
            await handle(bus, listing, message, wanted=True)
        await handle(bus, listing, message, wanted=True, at=AT + LATER)
        assert listing.calls == []

    with_bus(work)


def test_a_workload_system_that_is_away_is_asked_again_and_others_are_not_asked() -> None:
    """Nothing is lost while slurmctld restarts."""

    async def work(bus: MemoryBus) -> None:
        with pytest.raises(Retry, match="away"):
            await handle(bus, Listing(away=True), event(Registered))
        await handle(bus, Scheduler(), event(Registered))

    with_bus(work)
