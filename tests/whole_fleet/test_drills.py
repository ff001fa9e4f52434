"""`navarch drill` on simulated nodes: cordon and drain, and with `--act` the replacement.

Real services and agents on a real server; the command runs as a process in another directory.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
import pytest
import pytest_asyncio

from schemas import subjects
from schemas.messages import Message, decoder
from schemas.node_events import DrillStarted, Fault, Terminated, Verdict
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import OperatorNeeded, SagaOpened
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, HARDWARE, NODES
from tests.support.inprocess import navarch
from tests.whole_fleet.fleet import Fleet, serving_fleet

_node = decoder(NodeRecord)
pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NODES_EACH: Final = 2
POOLS: Final = "".join(
    f"""
  {name}:
    min_nodes: {NODES_EACH}
    max_nodes: 3
    gpu_count: 2
    budget:
      max_unavailable: 1
"""
    for name in ("drained", "acted")
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Serve two pools of two nodes."""
    async with serving_fleet(tmp_path_factory.mktemp("drills"), POOLS) as running:
        yield running


async def run(fleet: Fleet, elsewhere: Path, *arguments: str) -> tuple[int, str]:
    """Run `navarch` in another directory; return its status and all that it prints."""
    status, out, err = await navarch(*arguments, cwd=elsewhere, NAVARCH_NATS_URL=fleet.url)
    return status, out + err


async def until(fleet: Fleet, node: NodeRecord, what: str) -> NodeRecord:
    """Wait until a node is `drained` and has no saga, or serves again."""
    key = node_key(node.pool, node.node)
    async with aclosing(fleet.bus.watch(NODES, key)) as watching:
        async for entry in watching:
            record = _node.decode(entry.value)
            drained = record.cordoned and record.drained
            serves = not record.cordoned and record.health == "healthy"
            if not record.saga and (drained if what == "drained" else serves):
                return record
    raise AssertionError("the bus stopped")


async def about(fleet: Fleet, pool: str) -> list[Message]:
    """Return the stored events about a pool and its nodes, in order."""
    found = [
        each
        for name in (subjects.NODE_EVENTS, subjects.POOL_EVENTS)
        for each in await fleet.bus.read(EVENTS.name, name)
    ]
    messages = map(decode_stored, sorted(found, key=lambda one: one.sequence))
    return [each for each in messages if getattr(each, "pool", "") == pool]


async def test_a_drill_cordons_and_drains_and_an_uncordon_ends_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Nothing is terminated, launched, listed or counted, and the node serves again."""
    [node, other] = await fleet.active("drained", NODES_EACH)
    status, said = await run(fleet, tmp_path, "drill", node.node, "xid", "79", "--yes")
    assert status == 0, said
    drained = await until(fleet, node, "drained")

    again = await run(fleet, tmp_path, "drill", node.node, "xid", "79", "--yes")
    second = await run(fleet, tmp_path, "drill", other.node, "xid", "79", "--yes")
    _, why = await run(fleet, tmp_path, "why", node.node)
    _, incident = await run(fleet, tmp_path, "incident", "--since", "1h", "--pool", "drained")
    status, said = await run(fleet, tmp_path, "uncordon", node.node, "--wait")
    assert status == 0, said
    serves = await until(fleet, node, "serving")
    await fleet.active("drained", NODES_EACH)
    seen = await about(fleet, "drained")

    assert drained.health_drill == "drain"
    assert again[0] != 0
    assert f"navarch uncordon {node.node}" in again[1]
    assert "one at a time" in second[1]
    assert serves.health_drill == ""
    [begun] = [each for each in seen if isinstance(each, DrillStarted)]
    [fault] = [each for each in seen if isinstance(each, Fault)]
    assert (fault.source, fault.cause, fault.code) == ("drill", begun.id, 79)
    [verdict] = [each for each in seen if isinstance(each, Verdict) and each.status == "unhealthy"]
    assert (verdict.drill, verdict.action) == ("drain", "inspect")
    assert verdict.reason.startswith("drill: XID 79")
    sagas = [each.kind for each in seen if isinstance(each, SagaOpened) and each.node == node.node]
    assert [each for each in sagas if each not in ("scale-up", "quarantine")] == [
        *("drain", "uncordon"),
    ]
    assert not [each for each in seen if isinstance(each, Terminated)]
    assert [each.node for each in seen if isinstance(each, OperatorNeeded)] == [node.node]
    assert await fleet.bus.entries(HARDWARE) == []
    assert "drill: XID 79" in why
    assert f"navarch uncordon {node.node}" in why
    assert "drill: XID 79" in incident
    xids = await fleet.counters("navarch_xid_errors_total")
    assert not [labels for labels in xids if node.node in labels]


async def test_a_drill_that_acts_replaces_the_node_and_lists_no_hardware(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The policy's action is done, and its repair is a drill's in reports."""
    [node, _] = await fleet.active("acted", NODES_EACH)
    after = await fleet.bus.last_sequence(EVENTS.name)
    status, said = await run(fleet, tmp_path, "drill", node.node, "xid", "79", "--act", "--yes")
    assert status == 0, said
    await fleet.replaced(node.node, after)
    await fleet.active("acted", NODES_EACH)
    stored = await fleet.first(
        *(EVENTS.name, subjects.node_event_wildcard("repaired"), after),
        lambda each: getattr(each, "node", "") == node.node,
    )
    repaired = msgspec.json.decode(stored.data)

    assert repaired["fault_signature"] == "drill-xid-79"
    assert await fleet.bus.entries(HARDWARE) == []


async def test_what_is_wrong_is_refused_with_its_remedy(fleet: Fleet, tmp_path: Path) -> None:
    """A kind that does not exist, a missing code, another GPU, an unknown node."""
    [node, *_] = await fleet.active("acted", NODES_EACH)
    unknown = await run(fleet, tmp_path, "drill", node.node, "meteor", "--yes")
    codeless = await run(fleet, tmp_path, "drill", node.node, "xid", "--yes")
    gpu = await run(fleet, tmp_path, "drill", node.node, "xid", "79", "--gpu", "7", "--yes")
    gone = await run(fleet, tmp_path, "drill", "gone", "xid", "79", "--yes")
    unasked = await run(fleet, tmp_path, "drill", node.node, "xid", "79")
    seen = [each for each in await about(fleet, "acted") if isinstance(each, DrillStarted)]

    assert all(each[0] for each in (unknown, codeless, gpu, gone, unasked))
    assert "fallen_off_bus" in unknown[1]
    assert "xid 79" in codeless[1]
    assert "has no GPU 7" in gpu[1]
    assert "--yes" in unasked[1]
    assert [each.reach for each in seen] == ["act"]
