"""A workload system behind webhooks receives each order once, and drains are waited for."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from schemas import subjects
from schemas.saga_log_entries import StepStarted, StepSucceeded
from schemas.topology import SAGAS
from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REASON = "XID 79: the GPU fell off the bus (GPU 3)"
POOLS = """
  hooked:
    min_nodes: 1
    max_nodes: 2
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Provide a fleet with one node."""
    async with serving_fleet(tmp_path_factory.mktemp("hooked"), POOLS) as running:
        yield running


async def test_one_fault_is_one_cordon_and_one_drain(
    fleet: Fleet,
) -> None:
    """Nothing is terminated while work runs; a second after it ended the saga continues."""
    workload = fleet.workload
    (old,) = await fleet.active("hooked", 1)
    sequences = await fleet.last_sequences()
    workload.busy.add(old.node)
    begun = datetime.now(UTC)
    fleet.break_gpu(old)
    # Long enough for the poll interval to have reached its maximum.
    await workload.until(lambda: workload.asked.count(old.node) >= 6)
    log = await fleet.bus.read(SAGAS.name, subjects.SAGAS, after=sequences[SAGAS.name])
    steps = [subjects.parse_saga(each.subject) for each in log]
    assert [(each.step, each.status) for each in steps if each] == [
        ("saga", "started"),
        ("cordon", "started"),
        ("cordon", "succeeded"),
        ("drain", "started"),
    ]

    drained = datetime.now(UTC)
    workload.busy.discard(old.node)
    succeeded, terminating = await asyncio.gather(
        *(
            fleet.first(
                SAGAS.name,
                subjects.SAGAS,
                sequences[SAGAS.name],
                lambda entry, kind=kind, step=step: isinstance(entry, kind) and entry.step == step,
            )
            for kind, step in ((StepSucceeded, "drain"), (StepStarted, "terminate"))
        )
    )
    assert drained < succeeded.time < terminating.time
    assert terminating.time - drained <= timedelta(seconds=1)

    replaced = await fleet.replaced(old.node, sequences["EVENTS"])
    await fleet.active("hooked", 1)
    orders = workload.orders
    about = {"node_id": old.node, "reason": REASON, "saga": replaced.saga}
    timed = {"timestamp": "", "deadline": "", "urgency": "", "node": {}}
    assert [(each.path, each.body | timed) for each in orders] == [
        (f"/{event}", {"event": event, **about, **timed}) for event in ("cordon", "drain")
    ]
    assert [sorted(timed.keys() & each.body.keys()) for each in orders] == [
        ["node", "timestamp"],
        ["deadline", "node", "timestamp", "urgency"],
    ]
    for each in orders:
        event = each.body["event"]
        known = each.body["node"]
        assert (known["pool"], known["node"], known["faulty_gpus"]) == ("hooked", old.node, [3])
        assert each.body["timestamp"].endswith("Z")
        sent = datetime.fromisoformat(each.body["timestamp"])
        assert begun.replace(microsecond=0) <= sent <= each.at
        assert each.headers["content-type"] == "application/json"
        assert each.headers["x-fleet"] == "scenarios"
        assert each.headers["idempotency-key"] == f"{replaced.saga}/{event}:{event}"
    assert set(workload.asked) == {old.node}
