"""Services do some things at once by HTTP: in whose name, for whom, and what is refused."""

from typing import Any

import pytest

from services.bus.memory.memory_bus import MemoryBus
from tests.gateway.conftest import Gateway, changes
from tests.gateway.order_answers import KEYS, Orders
from tests.gateway.test_changes import ORDERS

API = "/api/v1"


async def test_every_order_is_given_in_the_callers_name(
    gateway: Gateway, bus: MemoryBus, orders: Orders
) -> None:
    """The caller is `NAME via gateway`, once; and an event says who requested what from where."""
    for path, body in ORDERS.items():
        answer = await gateway.client("operator-token").post(f"{API}{path}", json=body)
        assert answer.status_code == 200, (path, answer.text)
        event = (await changes(bus))[-1]
        assert (event.by, event.change, event.outcome) == ("bob", f"POST {API}{path}", "accepted")
        query, by, asked = orders.asked[-1]
        # A query has no caller on the bus: what is asked says it.
        assert (by or f"{asked.by} via gateway") == "bob via gateway", query
    assert len(ORDERS) == len(orders.asked)
    assert len(await changes(bus)) == len(ORDERS)
    assert {name: asked for name, _, asked in orders.asked}["sweep-now"].adopt == ("training-9",)


async def test_reading_a_plan_changes_nothing(
    gateway: Gateway, bus: MemoryBus, orders: Orders
) -> None:
    """The plan leaves no event, names no one, and says that nothing was performed."""
    answer = await gateway.client("operator-token").get(
        f"{API}/sweep", params={"adopt": ["training-8", "training-9"]}
    )
    assert (200, False) == (answer.status_code, answer.json()["performed"])
    [(name, by, asked)] = orders.asked
    assert (name, by, asked.adopt) == ("sweep-plan", "", ("training-8", "training-9"))
    assert await changes(bus) == []


@pytest.mark.parametrize(
    ("token", "method", "path", "body", "status"),
    [
        ("viewer-token", "GET", "/nodes/training-1/logs", None, 403),
        ("viewer-token", "GET", "/services/notifier/logs", None, 403),
        ("viewer-token", "GET", "/sweep", None, 403),
        ("viewer-token", "POST", "/sweep", {}, 403),
        ("scoped-token", "GET", "/nodes/serving-1/logs", None, 404),
        ("scoped-token", "GET", "/services/notifier/logs", None, 403),
        ("scoped-token", "GET", "/sweep", None, 403),
        ("viewer-token", "POST", "/stop", ORDERS["/stop"], 403),
        ("viewer-token", "POST", "/resume", {}, 403),
        ("scoped-token", "POST", "/stop", ORDERS["/stop"], 403),
        ("scoped-token", "POST", "/stop", {**ORDERS["/stop"], "provider": "aws"}, 403),
        ("scoped-token", "POST", "/stop", {**ORDERS["/stop"], "pool": "serving"}, 404),
        ("scoped-token", "POST", "/resume", {"pool": "serving"}, 404),
        ("operator-token", "POST", "/stop", {"pool": "training", "reason": ""}, 400),
        (
            "operator-token",
            "POST",
            "/stop",
            {**ORDERS["/stop"], "pool": "training", "provider": "b"},
            400,
        ),
        ("scoped-token", "POST", "/sweep", {}, 403),
        ("scoped-token", "POST", "/hardware/add", ORDERS["/hardware/add"], 403),
        ("scoped-token", "POST", "/hardware/forget", ORDERS["/hardware/forget"], 403),
        ("scoped-token", "POST", "/nodes/serving-1/readmit", None, 404),
        ("scoped-token", "POST", "/alerts/acknowledge", {"alert": KEYS[1]}, 404),
        ("scoped-token", "POST", "/alerts/update", {"alert": KEYS[1], "note": "x"}, 404),
        ("viewer-token", "POST", "/alerts/update", {"alert": KEYS[0], "note": "x"}, 403),
        ("operator-token", "POST", "/alerts/update", {"alert": KEYS[0]}, 400),
        ("scoped-token", "POST", "/nodes/serving-1/work-done", None, 404),
        ("operator-token", "POST", "/nodes/..%2Fx/work-done", None, 404),
        ("viewer-token", "POST", "/pools/training/workload-check", None, 403),
        ("scoped-token", "POST", "/pools/serving/workload-check", None, 404),
        ("operator-token", "POST", "/pools/gone/workload-check", None, 404),
        ("operator-token", "POST", "/pools/training/workload-check", {"node": "../x"}, 400),
        ("viewer-token", "GET", "/jobs/nodes", None, 400),
        ("scoped-token", "GET", "/jobs/nodes?job=x&pool=serving", None, 404),
        ("scoped-token", "GET", "/cost?pool=serving", None, 404),
        ("viewer-token", "GET", "/services/gateway/logs", None, 403),
        ("scoped-token", "GET", "/services/gateway/logs", None, 403),
        ("operator-token", "GET", "/services/%3E/logs", None, 404),
        ("operator-token", "GET", "/nodes/training-1/logs?lines=100000", None, 400),
        ("operator-token", "POST", "/hardware/add", {"kind": "tpu", "value": "x"}, 400),
        ("operator-token", "POST", "/hardware/add", {"kind": "gpu", "value": "x"}, 400),
        (
            *("operator-token", "POST", "/hardware/forget"),
            *({"kind": "gpu", "value": "x", "by": "root"}, 400),
        ),
        ("operator-token", "POST", "/sweep", {"terminate": [""]}, 400),
    ],
)
async def test_what_is_not_the_callers_is_refused_before_any_service_is_asked(
    gateway: Gateway,
    orders: Orders,
    token: str,
    method: str,
    path: str,
    body: Any,
    status: int,
) -> None:
    """Roles, pools and the description decide what is allowed."""
    answer = await gateway.client(token).request(method, f"{API}{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert orders.asked == []


@pytest.mark.parametrize(
    ("token", "pools"),
    [("scoped-token", ["training"]), ("operator-token", ["training", "serving"])],
)
@pytest.mark.usefixtures("orders")
async def test_an_answer_has_no_stop_of_a_pool_that_its_caller_does_not_see(
    gateway: Gateway, token: str, pools: list[str]
) -> None:
    """A stop says of another's pool that it is there, why it is stopped, and who stopped it."""
    body = {**ORDERS["/stop"], "pool": "training"}
    answer = await gateway.client(token).post(f"{API}/stop", json=body)
    assert answer.status_code == 200, answer.text
    assert [each["pool"] for each in answer.json()["stops"]] == pools


async def test_a_services_refusal_is_a_conflict(
    gateway: Gateway, bus: MemoryBus, orders: Orders
) -> None:
    """The problem has its reason, which the event has, too."""
    client = gateway.client("operator-token")
    for path, body in (
        ("/alerts/acknowledge", {"alert": "gone"}),
        ("/hardware/forget", {"kind": "gpu", "value": "GPU-2"}),
    ):
        answer = await client.post(f"{API}{path}", json=body)
        assert answer.status_code == 409, answer.text
        event = (await changes(bus))[-1]
        assert (event.outcome, event.reason) == ("refused", answer.json()["detail"])
    assert len(orders.asked) == 2


async def test_a_caller_sees_the_alerts_of_its_pools(gateway: Gateway, orders: Orders) -> None:
    """The most severe first; it acknowledges them and no others."""
    every = (await gateway.client().get(f"{API}/alerts")).json()
    assert [each["alert"] for each in every] == [*reversed(KEYS)]
    scoped = gateway.client("scoped-token")
    own = (await scoped.get(f"{API}/alerts")).json()
    assert [each["alert"] for each in own] == [KEYS[0]]
    answer = await scoped.post(f"{API}/alerts/acknowledge", json={"alert": KEYS[0]})
    assert answer.json()["acknowledged_by"] == "sue via gateway"
    assert [name for name, *_ in orders.asked] == ["acknowledge-alert"]


async def test_a_caller_sees_the_cost_of_its_pools(gateway: Gateway) -> None:
    """The answer has what they cost together."""
    for token, pools in (("viewer-token", {"serving", "training"}), ("scoped-token", {"training"})):
        answer = await gateway.client(token).get(f"{API}/cost", params={"since": "7d"})
        found = answer.json()
        total = sum(each["dollars"] for each in found["rows"])
        assert {each["pool"] for each in found["rows"]} == pools, found
        assert found["dollars"] == pytest.approx(total, abs=0.1)


async def test_a_caller_sees_the_stops_of_its_pools_and_of_the_fleet(gateway: Gateway) -> None:
    """The answer has what waits there; another pool's reason is not shown."""
    seen = (await gateway.client("scoped-token").get(f"{API}/stops")).json()
    every = (await gateway.client("viewer-token").get(f"{API}/stops")).json()
    assert [""] == [each.get("pool", "") for each in seen["stops"]]
    assert ["", "serving"] == [each.get("pool", "") for each in every["stops"]]
    assert (1, 31.0) == (seen["waiting_total"], seen["dollars_per_hour"])
