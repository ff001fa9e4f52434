"""Steps about a node whose record NODES has lost, in virtual time on the in-memory bus."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.memory.memory_bus import MemoryBus
from services.notifier.workload.workload_notifier import WorkloadOrder
from services.notifier.workload_steps import RECORDED_SECONDS_MAX, WorkloadSteps
from services.saga.participant import Command
from services.simulator.engine.virtual_time import VirtualClock
from tests.notifier.test_workload_steps import Cordoning, command, steps, with_bus

STEPS: dict[str, Callable[[WorkloadSteps, Command], Awaitable[object]]] = {
    "cordon": WorkloadSteps.cordon,
    "drain": WorkloadSteps.drain,
    "vacate": WorkloadSteps.start_drain,
    "uncordon": WorkloadSteps.return_node,
    "cordon-gpus": WorkloadSteps.cordon_gpus,
    "open": WorkloadSteps.uncordon,
    "promote": WorkloadSteps.promote,
}


@pytest.mark.parametrize(
    ("step", "seconds", "after", "waited"),
    [
        *((each, 600.0, 10.0, 10.0) for each in STEPS),
        *((each, 600.0, None, RECORDED_SECONDS_MAX) for each in STEPS),
        ("vacate", 5.0, None, 2.5),
        ("cordon", None, None, RECORDED_SECONDS_MAX),
    ],
)
def test_a_step_waits_while_its_nodes_record_is_lost(
    step: str, seconds: float | None, after: float | None, waited: float
) -> None:
    """A workload system does not know the node by our name, and takes it for one without work.

    A node that is not recorded again is named as it can be: it may be gone for good.
    """

    class Naming(Cordoning):
        async def drain(self, order: WorkloadOrder) -> None:
            orders.append((order.node.hostname, clock.monotonic() - begun))

        cordon = uncordon = cordon_gpus = drain

    orders: list[tuple[str, float]] = []
    clock = VirtualClock()
    begun = 0.0

    async def work(bus: MemoryBus) -> None:
        nonlocal begun
        begun = clock.monotonic()
        await bus.delete(NODES, node_key("p", "n"))

        async def rebuild() -> None:
            if after is not None:
                await clock.sleep(after)
                record = NodeRecord(pool="p", node="n", hostname="gpu-7", spare=step == "promote")
                await bus.put(NODES, node_key("p", "n"), encode(record))

        more = {"gpus": [1]} if step == "cordon-gpus" else {}
        act = STEPS[step](steps(bus, Naming()), command("p", seconds, **more))
        await asyncio.gather(act, rebuild())
        named = "gpu-7" if after is not None else ""
        assert orders
        assert {each for each, _ in orders} == {named}
        assert [at for _, at in orders] == [pytest.approx(waited, abs=1.0)] * len(orders)

    with_bus(work)
