"""A workload system behind webhooks is told once of each thing, and is waited for."""

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
    """One node."""
    async with serving_fleet(tmp_path_factory.mktemp("hooked"), POOLS) as running:
        yield running


async def test_one_line_is_one_cordon_and_one_drain_and_the_drain_is_waited_for(
    fleet: Fleet,
) -> None:
    """Nothing is terminated while work is left; a second after it has gone the saga goes on."""
    around = fleet.around
    (old,) = await fleet.active("hooked", 1)
    places = await fleet.places()
    around.busy.add(old.node)
    begun = datetime.now(UTC)
    fleet.break_gpu(old)
    # Long enough for the pause between two questions to have grown to its most.
    await around.until(lambda: around.asked.count(old.node) >= 6)
    log = await fleet.bus.read(SAGAS.name, subjects.SAGAS, after=places[SAGAS.name])
    steps = [subjects.parse_saga(each.subject) for each in log]
    assert [(each.step, each.status) for each in steps if each] == [
        ("saga", "started"),
        ("cordon", "started"),
        ("cordon", "succeeded"),
        ("drain", "started"),
    ]

    drained = datetime.now(UTC)
    around.busy.discard(old.node)
    succeeded, terminating = await asyncio.gather(
        *(
            fleet.first(
                SAGAS.name,
                subjects.SAGAS,
                places[SAGAS.name],
                lambda entry, kind=kind, step=step: isinstance(entry, kind) and entry.step == step,
            )
            for kind, step in ((StepSucceeded, "drain"), (StepStarted, "terminate"))
        )
    )
    assert drained < succeeded.time < terminating.time
    assert terminating.time - drained <= timedelta(seconds=1)

    replaced = await fleet.replaced(old.node, places["EVENTS"])
    await fleet.active("hooked", 1)
    orders = around.orders
    assert [(each.path, each.body | {"timestamp": ""}) for each in orders] == [
        (f"/{event}", {"event": event, "node_id": old.node, "reason": REASON, "timestamp": ""})
        for event in ("cordon", "drain")
    ]
    for each in orders:
        assert each.body["timestamp"].endswith("Z")
        sent = datetime.fromisoformat(each.body["timestamp"])
        assert begun.replace(microsecond=0) <= sent <= each.at
        assert each.headers["content-type"] == "application/json"
        assert each.headers["x-fleet"] == "scenarios"
        assert each.headers["idempotency-key"] == f"{replaced.saga}/{each.body['event']}"
    assert set(around.asked) == {old.node}
