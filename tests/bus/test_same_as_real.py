"""Any series of calls has the same outcome on the in-memory bus as on the real server."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import subjects
from schemas.topology import EVENTS, NODES, SAGAS
from services.bus.port import Bus, Stored
from services.primitives.errors import BusError, Conflict, Refused

NODE = st.sampled_from(["n-1", "n-2", "n-3"])
SAGA = st.sampled_from(["replace-1", "replace-2"])
STEP = st.sampled_from(["saga", "cordon"])
BEHIND = st.integers(0, 3)
"""How far behind the last sequence a guard is: 0 holds, others do not (or name a bare tree)."""

CALL = st.one_of(
    st.tuples(st.just("publish"), NODE, st.sampled_from(["", "", "a", "b"])),
    st.tuples(st.just("append"), SAGA, STEP, BEHIND, st.booleans()),
    st.tuples(st.just("put"), NODE),
    st.tuples(st.just("create"), NODE),
    st.tuples(st.just("update"), NODE, BEHIND),
    st.tuples(st.just("delete"), NODE, st.one_of(st.none(), BEHIND)),
    st.tuples(st.just("get"), NODE),
    st.tuples(st.just("purge"), SAGA),
    st.tuples(st.just("read"), BEHIND),
)


async def _outcome(call: Awaitable[Any], base: dict[str, int]) -> Any:
    """What a call came to, with sequences counted from where this example began."""
    try:
        found = await call
    except Conflict:
        return "conflict"
    except Refused as error:
        return ("refused", error.code)
    except BusError as error:
        return type(error).__name__
    if isinstance(found, int):
        return found - base["of"]
    if isinstance(found, list):
        return [_shown(each, base["of"]) for each in found]
    if found is None:
        return None
    return (found.key, found.value, found.revision - base["of"], found.removed)


def _shown(stored: Stored, base: int) -> Any:
    guards = {"Nats-Expected-Last-Subject-Sequence", "Nats-Msg-Id"}
    headers = {name: value for name, value in stored.headers.items() if name not in guards}
    return (stored.subject, stored.data, stored.sequence - base, tuple(sorted(headers.items())))


class Driver:
    """Does the calls of one example on one bus, on subjects of the example's own."""

    def __init__(self, bus: Bus, example: int) -> None:
        self.bus = bus
        self.example = example
        self.pool = f"pool-{example}"

    async def run(self, calls: list[Any]) -> list[Any]:
        begun = {
            name: await self.bus.last_sequence(name)
            for name in (EVENTS.name, SAGAS.name, f"KV_{NODES.name}")
        }
        return [await self._do(number, each, begun) for number, each in enumerate(calls)]

    async def _do(self, number: int, call: Any, begun: dict[str, int]) -> Any:
        data = b"%d" % number
        match call:
            case ("publish", node, msg_id):
                subject = subjects.node_event(self.pool, node, "verdict")
                named = f"{msg_id}-{self.example}" if msg_id else ""
                doing: Any = self.bus.publish(subject, data, msg_id=named)
                home = EVENTS.name
            case ("append", saga, step, behind, named):
                doing, home = self._append(saga, step, behind, named, data), SAGAS.name
            case ("purge", saga):
                doing = self.bus.purge(SAGAS.name, self._tree(saga))
                home = SAGAS.name
            case ("read", back):
                home = EVENTS.name
                after = await self.bus.last_sequence(home) - 4 * back
                doing = self.bus.read(home, subjects.node_events_in(self.pool), after=max(after, 0))
            case (kind, node, *more):
                doing, home = self._key(kind, f"{self.pool}.{node}", more, data), f"KV_{NODES.name}"
        return await _outcome(doing, {"of": begun[home]})

    def _tree(self, saga: str) -> str:
        return subjects.saga_tree(f"{saga}-{self.example}")

    async def _append(self, saga: str, step: str, behind: int, named: bool, data: bytes) -> int:
        last = await self.bus.last(SAGAS.name, self._tree(saga))
        expected = max((last.sequence if last else 0) - behind, 0)
        headers = {"Nats-Msg-Id": f"{self.example}-{saga}-{step}@{expected}"} if named else {}
        return await self.bus.append(
            subjects.saga_entry(f"{saga}-{self.example}", step, "started"),
            data,
            tree=self._tree(saga),
            expected=expected,
            headers=headers,
        )

    async def _key(self, kind: str, key: str, more: list[Any], data: bytes) -> Any:
        match kind, more:
            case "put", []:
                return await self.bus.put(NODES, key, data)
            case "create", []:
                return await self.bus.create(NODES, key, data)
            case "get", []:
                return await self.bus.get(NODES, key)
            case "delete", [None]:
                return await self.bus.delete(NODES, key)
        entry = await self.bus.last(f"KV_{NODES.name}", f"$KV.{NODES.name}.{key}")
        revision = max((entry.sequence if entry else 0) - more[0], 0)
        if kind == "update":
            return await self.bus.update(NODES, key, data, revision)
        return await self.bus.delete(NODES, key, revision=revision)


@pytest.fixture
def both(bus, memory_bus) -> tuple[Bus, Bus]:
    """Provide the real server and the memory."""
    return bus, memory_bus


async def test_the_memory_does_as_the_server_does(both):
    """Sequences, refusals and what is read afterwards are the same, whatever is called."""
    loop = asyncio.get_running_loop()
    examples = iter(range(1_000_000))
    found: list[list[Any]] = []

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(st.lists(CALL, min_size=5, max_size=30))
    def draw(calls: list[Any]) -> None:
        found.append(calls)

    await loop.run_in_executor(None, draw)
    for calls in found:
        example = next(examples)
        real, memory = [await Driver(each, example).run(calls) for each in both]
        assert list(zip(calls, real, strict=True)) == list(zip(calls, memory, strict=True))
