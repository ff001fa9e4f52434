"""How far several nodes are: bars on a terminal, a line for each change elsewhere."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from services.cli import console

if TYPE_CHECKING:
    from services.cli.bus_client import Fleet


class Board:
    """What was shown of each node."""

    def __init__(self, bars: Any = None) -> None:
        """`bars`: rich's, on a terminal."""
        self._bars = bars
        self._shown: dict[str, str] = {}
        self._tasks: dict[str, Any] = {}

    def show(self, node: str, share: float, text: str) -> None:
        """Show how far a node is, of 1, and what it waits for."""
        if self._bars is not None:
            if node not in self._tasks:
                self._tasks[node] = self._bars.add_task(node, total=1.0, text=text)
            self._bars.update(self._tasks[node], completed=share, text=text)
        elif self._shown.get(node) != text:
            console.write(f"  {node:<24} {share:>4.0%}  {text}")
        self._shown[node] = text


@contextmanager
def board() -> Iterator[Board]:
    """A board for as long as nodes come up."""
    if not console.colour():
        yield Board()
        return
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description:<24}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns) as bars:
        yield Board(bars)


@asynccontextmanager
async def bad_news(fleet: "Fleet", pool: str) -> AsyncGenerator[None, None]:
    """Print what goes wrong in a pool meanwhile, as it happens."""
    task = asyncio.create_task(_tell(fleet, pool))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _tell(fleet: "Fleet", pool: str) -> None:
    from schemas.stored_messages import decode_stored  # noqa: PLC0415
    from services.cli.text import tables  # noqa: PLC0415
    from services.operator_text.event_text import describe  # noqa: PLC0415

    async for stored in fleet.events(pool=pool, node="", since=None):
        text = describe(decode_stored(stored))
        if text.tone == "bad":
            console.write(tables.event_line(stored.time, text, colour=console.colour()))
