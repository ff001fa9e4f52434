"""The gateway answers about nodes, instances, pools, sagas, incidents and events."""

import json
from typing import Any

import msgspec
import pytest

from schemas.breaker_state import OpenIncident
from schemas.event_subjects import Event, event_subject
from schemas.fleet_events import ConsumerLag
from schemas.fleet_queries import NodeView
from schemas.messages import encode
from schemas.node_events import Cordoned, Lost
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import SagaStarted
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from schemas.topology import POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.saga.participant import append
from tests.gateway.conftest import HOSTILE, NOW, Gateway

PROBLEM = "application/problem+json"


async def ask(gateway: Gateway, path: str, status: int = 200) -> Any:
    """Return the answer that a viewer gets."""
    answer = await gateway.client().get(f"/api/v1{path}")
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.headers["Content-Type"] == PROBLEM
        assert answer.json()["remedy"]
    return answer.json()


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", "serving-1 serving-2 serving-3 training-1 training-2 training-3"),
        ("?pool=training", "training-1 training-2 training-3"),
        ("?provider=aws&status=active", "training-1 training-2"),
        ("?health=unhealthy", "serving-2 training-2"),
        ("?zone=us-east-1a&region=us-east-1", "serving-2 training-2"),
        ("?label=team=ml&label=tier=1", "training-1 training-2 training-3"),
        ("?label=team=ml&label=tier=2", ""),
        ("?pool=none", ""),
    ],
)
async def test_nodes_are_selected_by_their_fields_and_their_pools_labels(
    gateway: Gateway, query: str, names: str
) -> None:
    """Nodes are in the order of pool and name."""
    found = await ask(gateway, f"/nodes{query}")
    assert names.split() == [each["id"] for each in found["items"]]


@pytest.mark.parametrize("query", ["", "?pool=training", "?health=healthy"])
async def test_a_list_is_complete_unless_compact(gateway: Gateway, query: str) -> None:
    """Every field in its place; compact, only what is not as by default, and the same nodes."""
    fields = {each.encode_name for each in msgspec.structs.fields(NodeView)}
    items = (await ask(gateway, f"/nodes{query}"))["items"]
    assert [each.keys() for each in items] == [fields] * len(items)
    compact = f"/nodes{query or '?'}&compact=true"
    less = (await ask(gateway, compact))["items"]
    assert [msgspec.convert(each, NodeView) for each in less] == [
        msgspec.convert(each, NodeView) for each in items
    ]


async def test_a_compact_list_leaves_out_what_is_as_by_default(gateway: Gateway) -> None:
    """A node that is not a spare does not say so."""
    assert all("spare" not in each for each in (await ask(gateway, "/nodes?compact=true"))["items"])


@pytest.mark.parametrize("query", ["", "&health=healthy", "&pool=training"])
@pytest.mark.parametrize("limit", [1, 2, 6])
async def test_pages_together_are_the_whole(gateway: Gateway, query: str, limit: int) -> None:
    """Nothing twice, nothing left out, at any size of page."""
    whole = [each["id"] for each in (await ask(gateway, f"/nodes?{query}"))["items"]]
    found, cursor = [], ""
    while True:
        part = await ask(gateway, f"/nodes?limit={limit}&cursor={cursor}{query}")
        found += [each["id"] for each in part["items"]]
        assert len(part["items"]) <= limit
        cursor = part["next"]
        if not cursor:
            break
    assert whole == found


async def test_an_unchanged_answer_is_not_sent_again(gateway: Gateway) -> None:
    """The tag of an unchanged answer stays; one of another answer does not match."""
    client = gateway.client()
    first = await client.get("/api/v1/nodes?pool=training")
    tag = first.headers["ETag"]
    again = await client.get(
        "/api/v1/nodes?pool=training", headers={"If-None-Match": f'"x", {tag}'}
    )
    other = await client.get("/api/v1/nodes?pool=serving", headers={"If-None-Match": tag})

    assert (304, b"", tag) == (again.status_code, again.content, again.headers["ETag"])
    assert other.status_code == 200


async def test_a_pools_status_counts_every_node_once(gateway: Gateway) -> None:
    """Each field of a pool's status counts a node once."""
    assert await ask(gateway, "/pools/training/status") == {
        "name": "training",
        "total_nodes": 3,
        "healthy_nodes": 1,
        "unhealthy_nodes": 1,
        "cordoned_nodes": 1,
        "utilization": None,
        "can_scale_up": True,
        "can_scale_down": True,
        "bootstrap_failed": 0,
        "bootstrap_pending": 1,
    }


async def test_an_instance_is_shown_without_its_launchs_secrets(gateway: Gateway) -> None:
    """The token, keys and set-up of a launch are the provisioner's alone."""
    found = await ask(gateway, "/instances?limit=1")
    assert (found["items"][0]["instance"], found["next"]) == ("serving-1", "serving.serving-1")
    assert "secret-of-the-launch" not in json.dumps(await ask(gateway, "/instances"))


async def test_open_sagas_and_incidents_are_read_from_the_records(
    gateway: Gateway, bus: MemoryBus
) -> None:
    """A saga has its log; one that is not there is a problem."""
    params = SagaParams(pool="training", node="training-1", reason=HOSTILE)
    saga = "drain-training-1-1"
    started = SagaStarted(id="s", time=NOW, saga=saga, kind="drain", params=params)
    await append(bus, started, 0, {})
    incident = OpenIncident(kind="xid", code=79, nodes=5, since=NOW, last=NOW)
    record = PoolRecord(
        name="training",
        spec=PoolSpec(min_nodes=0, max_nodes=4),
        desired=3,
        incidents={"xid-79": incident},
    )
    await bus.put(POOLS, pool_key("training"), encode(record))

    [found] = await ask(gateway, "/incidents")
    assert ("training", "xid-79", 5) == (found["pool"], found["signature"], found["nodes"])
    log = await ask(gateway, f"/sagas/{saga}")
    assert (saga, HOSTILE) == (log["saga"]["saga"], log["saga"]["reason"])
    assert [HOSTILE] == [each["params"]["reason"] for each in log["log"]]
    await ask(gateway, "/sagas/drain-training-9-1", 404)


async def stored(bus: MemoryBus, *events: Event) -> None:
    """Store these events."""
    for each in events:
        await bus.publish(event_subject(each), encode(each), msg_id=each.id)


def some_events() -> list[Event]:
    """Return events of two pools, their nodes and a service."""
    node = {"pool": "training", "node": "training-1"}
    return [
        Cordoned(id="1", time=NOW, reason=HOSTILE, **node),
        Scaled(id="2", time=NOW, pool="serving", previous=1, nodes=2),
        Lost(id="3", time=NOW, pool="serving", node="serving-1"),
        ConsumerLag(
            id="4", time=NOW, status="lagging", stream="EVENTS", durable="x", messages=1, seconds=1
        ),
        Cordoned(id="5", time=NOW, **node),
    ]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", "1 2 3 4 5"),
        ("?pool=serving", "2 3"),
        ("?node=training-1", "1 5"),
        ("?type=cordoned&type=lag", "1 4 5"),
        ("?pool=serving&type=lost", "3"),
        ("?after=3", "4 5"),
    ],
)
async def test_events_are_selected_by_pool_node_and_kind(
    gateway: Gateway, bus: MemoryBus, query: str, ids: str
) -> None:
    """Oldest first, with their text and as they are stored."""
    await stored(bus, *some_events())
    found = await ask(gateway, f"/events{query}")
    assert ids.split() == [each["event"]["id"] for each in found["items"]]


async def test_pages_of_events_go_on_after_the_last(gateway: Gateway, bus: MemoryBus) -> None:
    """Pages go on with events that are stored later too."""
    await stored(bus, *some_events())
    first = await ask(gateway, "/events?limit=2&type=cordoned")
    assert [1, 5] == [each["sequence"] for each in first["items"]]
    await bus.publish("navarch.v1.fleet.event.other", b"\xff not json")
    rest = await ask(gateway, f"/events?after={first['next']}")
    assert [{"invalid": "\ufffd not json"}] == [each["event"] for each in rest["items"]]
    assert (6, False) == (rest["next"], rest["more"])


async def test_hostile_text_arrives_as_the_json_that_it_is(
    gateway: Gateway, bus: MemoryBus
) -> None:
    """No page, terminal or log obeys it: JSON says its type, and the texts are escaped."""
    await stored(bus, *some_events()[:1])
    answer = await gateway.client().get("/api/v1/events")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    [found] = answer.json()["items"]
    assert found["event"]["reason"] == HOSTILE
    assert "\x1b" not in found["detail"]
    assert "\n" not in found["detail"]
    assert (await ask(gateway, "/nodes/training-2"))["reason"] == HOSTILE


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/nodes/x%0a%1b%5b", 404, "there is no node 'x\\n\\x1b['"),
        ("/nodes/../../etc", 404, "Not Found"),
        ("/pools/A.>", 404, "there is no pool 'A.>'"),
        ("/sagas/*", 404, "there is no saga '*'"),
        ("/nodes?limit=0", 400, "limit: Expected `int` >= 1"),
        ("/nodes?label=team", 400, "label 'team' is not KEY=VALUE"),
        ("/events?since=soon", 400, "since: 'soon' is neither a duration"),
        ("/events?since=999999999d", 400, "since: '999999999d' is neither"),
        ("/events?node=*", 400, "'*' is no name of a pool or a node"),
        ("/events?after=-1", 400, "after: Expected `int` >= 0"),
    ],
)
async def test_what_cannot_be_answered_says_why(
    gateway: Gateway, path: str, status: int, detail: str
) -> None:
    """The answer is a problem with a remedy."""
    assert (await ask(gateway, path, status))["detail"].startswith(detail)


async def test_a_service_that_is_away_is_named(gateway: Gateway) -> None:
    """The caller may try again."""
    gateway.bus._server.silence(gateway.bus.context)
    answer = await gateway.client().get("/api/v1/pools")
    assert (503, "2") == (answer.status_code, answer.headers["Retry-After"])
    assert "is the pool-manager running" in answer.json()["detail"]
