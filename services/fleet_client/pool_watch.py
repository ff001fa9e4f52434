"""Follows a pool's nodes and sagas: first the whole, then each change."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec

from schemas import subjects
from schemas.enums import NodeState
from schemas.messages import decoder
from schemas.names import pool_name
from schemas.node_records import NodeRecord
from schemas.pool_records import pool_key
from schemas.saga_log_entries import SagaStarted
from schemas.stored_messages import decode_stored
from schemas.topology import NODES, POOLS, SAGAS
from schemas.value_limits import Token
from services.bus.port import Bus, Entry, Stored
from services.fleet_client.fleet_client import as_generator
from services.fleet_client.saga_summaries import open_trees

T = TypeVar("T")

WAITING_MAX: Final = 1_000
"""Changes that are read and not taken yet."""

_nodes = decoder(NodeRecord)


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Says where a node is on its way; terminated: it is gone."""

    node: Token
    state: NodeState
    spare: bool = False


class PoolChange(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what is new of a pool."""

    whole: bool = False
    """These are all its nodes, and the entries of all its open sagas."""
    nodes: tuple[NodePlace, ...] = ()
    entries: tuple[Stored, ...] = ()
    """Of its sagas' logs."""
    removed: bool = False
    """There is no such pool any more; this is the last change."""


async def pool_changes(bus: Bus, pool: str) -> AsyncGenerator[PoolChange, None]:
    """Everything about a pool, then each change, until the pool is removed."""
    pool_name(pool)
    after = await bus.last_sequence(SAGAS.name)
    trees = await open_trees(bus, pool)
    places = [_place(each) for each in await bus.entries(NODES, f"{pool}.*")]
    entries = sorted((each for tree in trees for each in tree), key=lambda each: each.sequence)
    removed = await bus.get(POOLS, pool_key(pool)) is None
    yield PoolChange(whole=True, nodes=tuple(places), entries=tuple(entries), removed=removed)
    if removed:
        return
    view = _PoolView(pool, places, entries)
    sagas = bus.follow(SAGAS.name, [subjects.SAGAS], "new", after=after)
    changes = _merged(
        _changes(bus.watch(NODES, f"{pool}.*"), view.take_node),
        _changes(bus.watch(POOLS, pool_key(pool)), view.take_pool),
        _changes(sagas, view.take_entry),
    )
    async with aclosing(changes) as following:
        async for change in following:
            yield change
            if change.removed:
                return


class _PoolView:
    """What is known of a pool: what is new is what differs."""

    def __init__(self, pool: str, places: Iterable[NodePlace], entries: Iterable[Stored]) -> None:
        self._pool = pool
        self._places = {each.node: each for each in places}
        self._sagas = {each.saga for each in map(_saga, entries) if each}

    def take_node(self, entry: Entry) -> PoolChange | None:
        """A node's record."""
        place = _place(entry)
        if self._places.get(place.node) == place:
            return None
        self._places[place.node] = place
        if place.state == "terminated":
            del self._places[place.node]
        return PoolChange(nodes=(place,))

    def take_pool(self, entry: Entry) -> PoolChange | None:
        """The pool's record."""
        return PoolChange(removed=True) if entry.removed else None

    def take_entry(self, stored: Stored) -> PoolChange | None:
        """An entry of any pool's saga."""
        if (parsed := _saga(stored)) is None:
            return None
        if parsed.saga not in self._sagas:
            entry = decode_stored(stored)
            if not isinstance(entry, SagaStarted) or entry.params.pool != self._pool:
                return None
            self._sagas.add(parsed.saga)
        return PoolChange(entries=(stored,))


def _saga(stored: Stored) -> subjects.SagaSubject | None:
    return subjects.parse_saga(stored.subject)


def _place(entry: Entry) -> NodePlace:
    record = None if entry.removed else _nodes.decode(entry.value)
    node = entry.key.partition(".")[2]
    if record is None:
        return NodePlace(node=node, state="terminated")
    return NodePlace(node=node, state=record.state, spare=record.spare)


async def _changes(
    source: AsyncIterator[T], take: Callable[[T], PoolChange | None]
) -> AsyncGenerator[PoolChange, None]:
    async with aclosing(as_generator(source)) as items:
        async for item in items:
            if (change := take(item)) is not None:
                yield change


async def _merged(*sources: AsyncGenerator[PoolChange, None]) -> AsyncGenerator[PoolChange, None]:
    """The changes of all sources as they come; an error of one source ends it."""
    found: asyncio.Queue[PoolChange | Exception] = asyncio.Queue(WAITING_MAX)

    async def bring(source: AsyncGenerator[PoolChange, None]) -> None:
        try:
            async with aclosing(source) as changes:
                async for change in changes:
                    await found.put(change)
        except Exception as error:  # noqa: BLE001 - the reader raises it
            await found.put(error)

    tasks = [asyncio.create_task(bring(each)) for each in sources]
    try:
        while True:
            change = await found.get()
            if isinstance(change, Exception):
                raise change
            yield change
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
