"""Any NATS client can set a pool's size; an invalid request is refused with the reason."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from schemas.topology import EVENTS, INSTANCES, NODES, POOLS, SAGAS
from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SIZED = """
  sized:
    min_nodes: 2
    max_nodes: 6
    gpu_count: 1
"""
TYPE = "io.navarch.pool_manager.event.v1."
TOUCHED = (SAGAS.name, *(f"KV_{each.name}" for each in (INSTANCES, NODES, POOLS)))
"""Streams that show any effect a request could have."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Provide two nodes, one GPU each."""
    async with serving_fleet(tmp_path_factory.mktemp("sized"), SIZED) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    """Provide a plain NATS client."""
    connected = await nats.connect(fleet.url)
    yield connected
    await connected.close()


async def ask(client: Client, pool: str, payload: bytes) -> dict[str, Any]:
    """Publish a request and return the pool's next scaling event."""
    answers = await client.subscribe(f"navarch.v1.pool.{pool}.event.>")
    await client.publish(f"navarch.v1.pool.{pool}.request.scale", payload)
    while True:
        answer: dict[str, Any] = msgspec.json.decode((await answers.next_msg(timeout=60)).data)
        if "scale" in answer["type"]:
            await answers.unsubscribe()
            return answer


async def test_published_request_scales_the_pool_to_five(fleet: Fleet, client: Client) -> None:
    """A plain client publishes `{"nodes": 5}`; the answer is an event."""
    await fleet.active("sized", 2)
    answer = await ask(client, "sized", b'{"nodes": 5}')
    assert {key: answer[key] for key in ("type", "pool", "previous", "nodes")} == {
        "type": f"{TYPE}scaled",
        "pool": "sized",
        "previous": 2,
        "nodes": 5,
    }
    nodes = await fleet.active("sized", 5)
    assert [len(each.gpus) for each in nodes] == [1] * 5


@pytest.mark.parametrize(
    ("pool", "payload", "refusal", "words"),
    [
        ("sized", b'{"nodes": "x"}', "invalid-request", "Expected `int`, got `str` - at `$.nodes`"),
        ("sized", b'{"nodes": -1}', "invalid-request", "Expected `int` >= 0"),
        ("sized", b'{"nodes": 5, "node": 1}', "invalid-request", "unknown field `node`"),
        ("sized", b"five", "invalid-request", 'write {"nodes": 5}'),
        ("elsewhere", b'{"nodes": 5}', "unknown-pool", "there is no pool 'elsewhere'"),
        ("sized", b'{"nodes": 7}', "above-maximum", "max_nodes of sized is 6"),
        ("sized", b'{"nodes": 1}', "below-minimum", "min_nodes of sized is 2"),
    ],
)
async def test_invalid_request_is_refused_without_any_effect(
    fleet: Fleet, client: Client, pool: str, payload: bytes, refusal: str, words: str
) -> None:
    """No saga starts and no record changes; the refusal says what was wrong."""
    await fleet.active("sized", 5)
    before = [await fleet.bus.last_sequence(each) for each in TOUCHED]
    events = await fleet.bus.last_sequence(EVENTS.name)
    answer = await ask(client, pool, payload)
    assert (answer["type"], answer["pool"]) == (f"{TYPE}scale_refused", pool)
    assert answer["refusal"] == refusal
    assert words in answer["reason"]
    # A second request in the same queue: when it is answered, any effect of the first has begun.
    await ask(client, pool, b"{}")
    assert [await fleet.bus.last_sequence(each) for each in TOUCHED] == before
    assert await fleet.bus.last_sequence(EVENTS.name) == events + 2
