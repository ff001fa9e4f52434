"""Follows the nodes of a pool: bars on a terminal, a line per change elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

from schemas import subjects
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.pool_records import pool_key
from schemas.saga_log_entries import WHOLE, SagaStarted
from schemas.stored_messages import decode_stored
from schemas.topology import NODES, POOLS, SAGAS
from services.bus.port import Entry, Stored
from services.cli import console
from services.cli.text import tables
from services.fleet_client.fleet_client import FleetClient, as_generator
from services.fleet_client.saga_progress import progress
from services.fleet_client.stored_history import open_sagas
from services.operator_text.event_text import describe_stored
from services.operator_text.safe_text import escape_line
from services.primitives.race import race
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState

NODES_SHOWN_MAX: Final = 16
"""Nodes whose steps are shown."""

STATE_WORDS: Final = {"active": "in service", "terminated": "gone"}

_node = decoder(NodeRecord)


class ProgressBoard:
    """Shows the progress of each node."""

    def __init__(self, bars: Any = None) -> None:
        """`bars`: a rich progress display, on a terminal."""
        self._bars = bars
        self._shown: dict[str, str] = {}
        self._tasks: dict[str, Any] = {}

    def show(self, node: str, share: float, text: str) -> None:
        """Show the completed share of a node's launch, and what it waits for."""
        node, text = escape_line(node), escape_line(text)
        if self._bars is not None:
            if node not in self._tasks:
                self._tasks[node] = self._bars.add_task(node, total=1.0, text=text)
            self._bars.update(self._tasks[node], completed=share, text=text)
        elif self._shown.get(node) != text:
            console.write(f"  {node:<24} {share:>4.0%}  {text}")
        self._shown[node] = text


@contextmanager
def progress_board() -> Iterator[ProgressBoard]:
    """Open a board: with bars on a terminal, with lines elsewhere."""
    if not console.colour():
        yield ProgressBoard()
        return
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns) as bars:
        yield ProgressBoard(bars)


class LaunchProgress:
    """The nodes of a pool in service, and the sagas that launch more."""

    def __init__(self, pool: str, sagas: list[SagaState], board: ProgressBoard) -> None:
        """`sagas`: the pool's open ones."""
        self._pool = pool
        self._sagas: dict[str, SagaState | None] = {}
        self._board = board
        self._launching: list[str] = []
        self.active: set[str] = set()
        for state in sagas:
            self._sagas[state.saga] = state
            self._show(state)

    def take_node(self, entry: Entry) -> None:
        """Take in a node record."""
        node = entry.key.partition(".")[2]
        self.active.discard(node)
        if not entry.removed and _node.decode(entry.value).state == "active":
            self.active.add(node)
            self._board.show(node, 1.0, "in service")

    def take_saga(self, stored: Stored) -> None:
        """Take in a saga's entry, if it is a saga of the pool."""
        parsed = subjects.parse_saga(stored.subject)
        if parsed is None:
            return
        state = self._sagas.get(parsed.saga)
        if state is None:
            entry = decode_stored(stored)
            if not isinstance(entry, SagaStarted) or entry.params.pool != self._pool:
                return
        elif stored.sequence <= state.sequence:
            return
        state = self._sagas[parsed.saga] = fold_stored(state, stored)
        if state is not None and (parsed.step, parsed.status) != (WHOLE, "started"):
            self._show(state)

    def _show(self, state: SagaState) -> None:
        node = state.params.new_node
        if not node or node in self.active or state.ended:
            return
        if node not in self._launching:
            self._launching.append(node)
        current = progress(state)
        under_way = state.status != "running" or state.step(current.step).status == "started"
        if under_way and self._launching.index(node) < NODES_SHOWN_MAX:
            done = sum(1 for step in state.steps.values() if step.status == "succeeded")
            share = done / (done + len(current.next) + 1)
            self._board.show(node, share, current.waiting_for or current.status)


def _print_failures(batch: Sequence[Stored]) -> None:
    for stored in batch:
        text = describe_stored(stored)
        if text.tone == "bad":
            console.write(tables.event_line(stored.time, text, colour=console.colour()))


async def _follow_until(
    reached: Callable[[], Awaitable[bool]],
    *sources: tuple[AsyncIterator[Any], Callable[[Any], None]],
) -> None:
    """Take in the items of every source until `reached`, which is checked after each item."""
    changed = asyncio.Event()

    async def follow(source: AsyncIterator[Any], take: Callable[[Any], None]) -> None:
        async with aclosing(as_generator(source)) as items:
            async for item in items:
                take(item)
                changed.set()

    async def wait() -> None:
        while not await reached():
            await changed.wait()
            changed.clear()

    for task in await race(wait(), *(follow(*each) for each in sources)):
        if not task.cancelled():
            task.result()


async def show_launches(fleet: FleetClient, pool: str, wanted: int) -> None:
    """Show the progress of each node until `wanted` nodes are in service."""
    bus = fleet.bus
    after = await bus.last_sequence(SAGAS.name)
    sagas = await open_sagas(bus, pool)
    with progress_board() as board:
        launches = LaunchProgress(pool, sagas, board)

        async def all_active() -> bool:
            return len(launches.active) >= wanted

        await _follow_until(
            all_active,
            (bus.watch(NODES, f"{pool}.*"), launches.take_node),
            (bus.follow(SAGAS.name, [subjects.SAGAS], "new", after=after), launches.take_saga),
            (fleet.follow_events(pool=pool, node="", since=None), _print_failures),
        )


async def show_resize(fleet: FleetClient, pool: str, wanted: int, *, quiet: bool = False) -> None:
    """Show each node's state until `wanted` nodes are in service and no node leaves.

    `quiet`: show nothing.
    """
    states: dict[str, str] = {}

    def take_node(entry: Entry) -> None:
        node = entry.key.partition(".")[2]
        record = None if entry.removed else _node.decode(entry.value)
        state = "terminated" if record is None else record.state
        if record is not None and record.spare:
            return
        if states.get(node, "terminated") != state and not quiet:
            console.write(f"  {node:<24} {STATE_WORDS.get(state, state)}")
        states[node] = state

    async def resized() -> bool:
        found = list(states.values())
        return found.count("active") == wanted and "leaving" not in found

    await _follow_until(resized, (fleet.bus.watch(NODES, f"{pool}.*"), take_node))


async def show_removal(fleet: FleetClient, pool: str) -> None:
    """Show each node's state until the pool's record is deleted."""
    bus = fleet.bus
    states: dict[str, str] = {}

    def take_node(entry: Entry) -> None:
        node = entry.key.partition(".")[2]
        state = "terminated" if entry.removed else _node.decode(entry.value).state
        if state == "terminated":
            if states.pop(node, ""):
                console.write(f"  {node:<24} gone")
        elif states.get(node) != state:
            states[node] = state
            console.write(f"  {node:<24} {state}")

    async def removed() -> bool:
        return await bus.get(POOLS, pool_key(pool)) is None

    await _follow_until(
        removed,
        (bus.watch(NODES, f"{pool}.*"), take_node),
        (bus.watch(POOLS, pool_key(pool)), lambda _: None),
    )
    for node in states:
        console.write(f"  {node:<24} gone")
