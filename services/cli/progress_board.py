"""Follows the nodes of a pool: bars on a terminal, a line per change elsewhere."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

from schemas import subjects
from schemas.saga_log_entries import WHOLE
from services.bus.port import Stored
from services.cli import console
from services.cli.fleet_connection import FleetAccess
from services.cli.text import tables
from services.fleet_client.pool_watch import NodePlace, PoolChange
from services.fleet_client.saga_progress import progress
from services.operator_text.event_text import describe_stored
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError
from services.primitives.race import race
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState

NODES_SHOWN_MAX: Final = 16
"""Nodes whose steps are shown."""

STATE_WORDS: Final = {"active": "in service", "terminated": "gone"}


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

    def __init__(self, board: ProgressBoard) -> None:
        self._sagas: dict[str, SagaState] = {}
        self._board = board
        self._launching: list[str] = []
        self.active: set[str] = set()

    def take(self, change: PoolChange) -> None:
        """Take in a change of the pool."""
        for saga in self._folded(change):
            self._show(self._sagas[saga])
        if change.whole:
            self.active.clear()
        for each in change.nodes:
            self.active.discard(each.node)
            if each.state == "active":
                self.active.add(each.node)
                self._board.show(each.node, 1.0, "in service")

    def _folded(self, change: PoolChange) -> list[str]:
        """The sagas that have gone on, but those that have just begun."""
        moved: dict[str, None] = {}
        for stored in change.entries:
            parsed = subjects.parse_saga(stored.subject)
            known = self._sagas.get(parsed.saga) if parsed else None
            if parsed is None or (known is not None and stored.sequence <= known.sequence):
                continue
            state = fold_stored(known, stored)
            if state is not None:
                self._sagas[parsed.saga] = state
                if change.whole or (parsed.step, parsed.status) != (WHOLE, "started"):
                    moved[parsed.saga] = None
        return list(moved)

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
    reached: Callable[[], bool],
    *sources: tuple[AsyncGenerator[Any, None], Callable[[Any], None]],
) -> None:
    """Take in the items of every source until `reached`, which is checked after each item."""
    changed = asyncio.Event()

    async def follow(source: AsyncGenerator[Any, None], take: Callable[[Any], None]) -> None:
        async with aclosing(source) as items:
            async for item in items:
                take(item)
                changed.set()

    async def wait() -> None:
        while not reached():
            await changed.wait()
            changed.clear()

    waiting, *following = await race(wait(), *(follow(*each) for each in sources))
    for task in following:
        if not task.cancelled():
            task.result()
    if waiting.cancelled() and not reached():
        raise NavarchError("the fleet stopped before this was done; navarch status shows it")


class _Places:
    """Where the nodes of a pool are, as they change."""

    def __init__(self, pool: str, *, may_go: bool = False) -> None:
        """`may_go`: the pool may be removed."""
        self._pool = pool
        self._may_go = may_go
        self.states: dict[str, str] = {}
        self.is_known = False
        self.removed = False

    def take(self, change: PoolChange) -> list[NodePlace]:
        """Take in a change; the nodes whose state is another than before."""
        if change.removed and not self._may_go:
            raise NavarchError(f"{self._pool} was removed: navarch pool list shows the pools")
        self.removed = change.removed
        self.is_known = self.is_known or change.whole
        places = list(change.nodes)
        if change.whole:
            there = {each.node for each in places}
            gone = [each for each in self.states if each not in there]
            places += [NodePlace(node=each, state="terminated") for each in gone]
        found = [each for each in places if self.states.get(each.node, "terminated") != each.state]
        for each in found:
            self.states[each.node] = each.state
        return found


async def show_launches(fleet: FleetAccess, pool: str, wanted: int) -> None:
    """Show the progress of each node until `wanted` nodes are in service."""
    with progress_board() as board:
        launches, places = LaunchProgress(board), _Places(pool)

        def take(change: PoolChange) -> None:
            places.take(change)
            launches.take(change)

        await _follow_until(
            lambda: places.is_known and len(launches.active) >= wanted,
            (fleet.follow_pool(pool), take),
            (fleet.follow_events(pool=pool, node="", since=None), _print_failures),
        )


async def show_resize(fleet: FleetAccess, pool: str, wanted: int, *, quiet: bool = False) -> None:
    """Show each node's state until `wanted` nodes are in service and no node leaves.

    `quiet`: show nothing.
    """
    places = _Places(pool)
    spares: set[str] = set()

    def take(change: PoolChange) -> None:
        for each in change.nodes:
            (spares.add if each.spare else spares.discard)(each.node)
        for each in places.take(change):
            if each.node not in spares and not quiet:
                console.write(f"  {each.node:<24} {STATE_WORDS.get(each.state, each.state)}")

    def resized() -> bool:
        found = [state for node, state in places.states.items() if node not in spares]
        return places.is_known and found.count("active") == wanted and "leaving" not in found

    await _follow_until(resized, (fleet.follow_pool(pool), take))


async def show_removal(fleet: FleetAccess, pool: str) -> None:
    """Show each node's state until the pool's record is deleted."""
    places = _Places(pool, may_go=True)

    def take(change: PoolChange) -> None:
        for each in places.take(change):
            word = "gone" if each.state == "terminated" else each.state
            console.write(f"  {each.node:<24} {word}")

    await _follow_until(lambda: places.removed, (fleet.follow_pool(pool), take))
    for node, state in places.states.items():
        if state != "terminated":
            console.write(f"  {node:<24} gone")
