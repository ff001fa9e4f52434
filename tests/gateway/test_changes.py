"""Changes by HTTP: what goes to the bus, once, in whose name; and the event about each."""

import asyncio
from typing import Any

import pytest

from services.bus.memory.memory_bus import MemoryBus
from services.fleet_client import fleet_client
from services.operator_text.event_text import describe
from tests.gateway.conftest import SAGA, Gateway, Manager, changes
from tests.gateway.test_authentication import ADMINS, described

REASON = {"reason": "maintenance"}


CASES = {
    "/nodes/training-1/cordon": ("cordon", {"node": "training-1", **REASON}, REASON),
    "/nodes/training-1/uncordon": ("uncordon", {"node": "training-1", **REASON}, REASON),
    "/nodes/training-1/release": ("release", {"node": "training-1", **REASON}, REASON),
    "/nodes/training-1/hold": (
        "hold",
        {"node": "training-1", "for": 7200.0, **REASON},
        {"for": "2h", **REASON},
    ),
    **{
        f"/nodes/training-1/{verb}": (
            verb,
            {"node": "training-1", "mode": "wait", "timeout": 600.0, **REASON},
            {"mode": "wait", "timeout": "10m", **REASON},
        )
        for verb in ("drain", "replace", "reset-gpu", "reboot", "terminate")
    },
    "/pools/training/scale": ("scale", {"nodes": 2}, {"nodes": 2}),
    "/pools/training/breaker/open": ("breaker-open", REASON, REASON),
    "/pools/training/breaker/close": ("breaker-close", REASON, REASON),
    "/pools/training/up": ("apply", {"spec": {"max_nodes": 2}, "nodes": 1, **REASON}, None),
    "/pools/training/down": ("remove", {"mode": "immediate", **REASON}, None),
    **{
        f"/sagas/{SAGA}/{verb}": (verb, {"saga": SAGA, **REASON}, REASON)
        for verb in ("cancel", "retry", "proceed")
    },
}
"""Path -> verb, fields of the request on the bus, and body if it is another."""


DIAGNOSE = "/nodes/training-1/diagnose"
"""The agent answers it, and nothing is changed: test_histories.py."""


ORDERS = {
    "/alerts/acknowledge": {"alert": "silence/training-1"},
    "/alerts/update": {"alert": "silence/training-1", "silence_seconds": 60},
    "/hardware/add": {"kind": "gpu", "value": "GPU-1", **REASON},
    "/hardware/forget": {"kind": "gpu", "value": "GPU-1"},
    "/nodes/training-1/identity/accept": {"claim": "0123456789ab"},
    "/nodes/training-1/drill": {"kind": "xid", "code": 79},
    "/nodes/training-1/forget": None,
    "/nodes/training-1/forget-plan": None,
    "/nodes/training-1/readmit": None,
    "/nodes/training-1/work-done": {"saga": SAGA},
    "/pools/training/workload-check": {"node": "training-1"},
    "/resume": {"pool": "training"},
    "/stop": {"running": True, **REASON},
    "/sweep": {"adopt": ["training-9"]},
}
"""Path -> body of what a service does at once: test_orders.py."""


async def test_every_change_of_the_description_becomes_its_request(
    gateway: Gateway, bus: MemoryBus, manager: Manager
) -> None:
    """A request is made in the caller's name, by the gateway.

    An event says who requested what from where.
    """
    described_paths = {path for method, path in await described(gateway) if method == "POST"}
    assert {f"/api/v1{path}" for path in (*CASES, *ORDERS, DIAGNOSE)} == described_paths
    for path, (verb, fields, body) in CASES.items():
        token, name = ("admin-token", "cid") if path.endswith(ADMINS) else ("operator-token", "bob")
        answer = await gateway.client(token).post(f"/api/v1{path}", json=body or fields)
        assert answer.status_code == 200, (path, answer.text)
        pool, asked, found = manager.asked[-1]
        assert ("training", verb) == (pool, asked)
        assert found.pop("by") == f"{name} via gateway"
        assert answer.json()["request"] == found.pop("request")
        assert {key: found[key] for key in fields} == fields
        event = (await changes(bus))[-1]
        assert (event.by, event.change, event.outcome) == (name, f"POST /api/v1{path}", "accepted")
        assert event.request == answer.headers["Navarch-Request"] == answer.json()["request"]
    assert len(await changes(bus)) == len(CASES) == len(manager.asked)


@pytest.mark.parametrize(
    ("token", "path", "body", "status", "outcome"),
    [
        ("viewer-token", "/nodes/training-1/cordon", {}, 403, "forbidden"),
        ("operator-token", "/pools/training/down", {}, 403, "forbidden"),
        ("operator-token", "/nodes/training-2/cordon", {}, 409, "refused"),
        ("scoped-token", "/nodes/serving-1/cordon", {}, 404, "invalid"),
        ("operator-token", "/nodes/x%0a%1b[31m/cordon", {}, 404, "invalid"),
        ("operator-token", "/nodes/training-1/cordon", {"by": "root"}, 400, "invalid"),
        ("operator-token", "/nodes/training-1/drain", {"timeout": "soon"}, 400, "invalid"),
        ("operator-token", "/nodes/training-1/hold", {"for": "2h"}, 400, "invalid"),
        ("operator-token", "/pools/training/scale", {"nodes": -1}, 400, "invalid"),
        ("admin-token", "/pools/A.*/up", {"spec": {}}, 400, "invalid"),
        ("operator-token", "/nodes/training-1/hold?dry_run=true", {"for": "x", **REASON}, 400, ""),
    ],
)
async def test_what_is_not_carried_out_is_recorded_as_well(
    gateway: Gateway,
    bus: MemoryBus,
    manager: Manager,
    token: str,
    path: str,
    body: Any,
    status: int,
    outcome: str,
) -> None:
    """The event of a change is one line, whatever a caller sends in its path or its body."""
    answer = await gateway.client(token).post(f"/api/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    [event] = await changes(bus)
    assert event.outcome == (outcome or "invalid")
    assert bool(event.request) == (status == 409)
    assert event.address == "127.0.0.1"
    assert event.reason == answer.json()["detail"]
    text = describe(event)
    assert not {"\n", "\x1b"} & set(text.subject + text.title + text.detail)
    if status != 409:
        assert manager.asked == []


async def test_a_caller_without_a_token_leaves_no_event(
    gateway: Gateway, bus: MemoryBus, manager: Manager
) -> None:
    """Any number of them could be sent; they are counted in /metrics."""
    answer = await gateway.client("").post("/api/v1/nodes/training-1/cordon", json={})
    assert (401, [], []) == (answer.status_code, manager.asked, await changes(bus))


async def test_a_dry_run_changes_nothing_and_cannot_hide_a_change(
    gateway: Gateway, bus: MemoryBus, manager: Manager
) -> None:
    """Only an answer that is a dry run goes without an event."""
    client = gateway.client("operator-token")
    dry = await client.post("/api/v1/nodes/training-1/drain?dry_run=true")
    assert (200, True) == (dry.status_code, dry.json().get("accepted")), dry.text
    assert ([], []) == (manager.asked, await changes(bus))
    done = await client.post("/api/v1/nodes/training-1/cordon?x=dry_run=true&DRY_RUN=true")
    assert done.status_code == 200, done.text
    assert (1, 1) == (len(manager.asked), len(await changes(bus)))


async def test_a_repeated_key_is_carried_out_once(gateway: Gateway, manager: Manager) -> None:
    """The same answer again; another request with the key, or another caller's, is another."""
    path, key = "/api/v1/pools/training/scale", {"Idempotency-Key": "k-1"}
    client = gateway.client("operator-token")
    first, again = [await client.post(path, json={"nodes": 2}, headers=key) for _ in range(2)]
    other = await client.post(path, json={"nodes": 3}, headers=key)
    admin = await gateway.client("admin-token").post(path, json={"nodes": 3}, headers=key)
    both = await asyncio.gather(
        *(client.post(path, json={"nodes": 4}, headers={"Idempotency-Key": "k"}) for _ in range(2))
    )

    assert (200, first.json()) == (again.status_code, again.json())
    assert (422, 200) == (other.status_code, admin.status_code)
    assert both[0].json() == both[1].json()
    assert [2, 3, 4] == [fields["nodes"] for _, _, fields in manager.asked]


async def test_a_request_that_is_not_answered_in_time_is_found_by_its_key(
    gateway: Gateway, bus: MemoryBus, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """202: it is stored. The caller repeats it, and gets its answer; it was carried out once."""
    monkeypatch.setattr(fleet_client, "ANSWER_SECONDS_MAX", 0.1)
    manager.hears.clear()
    client = gateway.client("operator-token", **{"Idempotency-Key": "k"})
    path = "/api/v1/nodes/training-1/cordon"
    first = await client.post(path)
    manager.hears.set()
    monkeypatch.setattr(fleet_client, "ANSWER_SECONDS_MAX", 20.0)
    second = await client.post(path)

    assert (202, 200) == (first.status_code, second.status_code)
    assert "The request is stored" in first.json()["detail"]
    assert len(manager.asked) == 1
    assert ["unanswered", "accepted"] == [each.outcome for each in await changes(bus)]


async def test_the_description_says_what_a_body_may_have(gateway: Gateway) -> None:
    """A client that is made from the description sends no field that is refused."""
    schemas = (await gateway.client().get("/api/v1/openapi.json")).json()["components"]["schemas"]
    bodies = [each for name, each in schemas.items() if name.endswith("Body")]
    assert [False] * 17 == [each["additionalProperties"] for each in bodies]


async def test_a_body_has_a_limit(gateway: Gateway, manager: Manager) -> None:
    """No caller fills the gateway's memory."""
    body = {"reason": "x" * 70_000}
    answer = await gateway.client("operator-token").post(
        "/api/v1/nodes/training-1/cordon", json=body
    )
    assert (413, []) == (answer.status_code, manager.asked)


async def test_a_deeply_nested_body_is_the_callers_mistake(
    gateway: Gateway, manager: Manager
) -> None:
    """A deeply nested body is no defect of the gateway with a traceback in its log."""
    answer = await gateway.client("operator-token").post(
        "/api/v1/nodes/training-1/cordon",
        content=b"[" * 60_000,
        headers={"Content-Type": "application/json"},
    )
    assert (400, "the body is nested too deeply") == (
        answer.status_code,
        answer.json()["detail"],
    )
    assert [] == manager.asked
