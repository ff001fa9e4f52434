"""Declares what `navarch why` answers."""

from typing import Literal

import msgspec

from schemas.present_answers import Block
from services.fleet_client.history_text import HistoryLine


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the whole answer of `navarch why`."""

    about: str
    kind: Literal["node", "pool", "saga"]
    summary: str
    lines: tuple[HistoryLine, ...] = ()
    omitted: int = 0
    """Number of older lines that are not shown."""
    now: tuple[str, ...] = ()
    """What it waits for, and since when."""
    blocked: tuple[Block, ...] = ()
    """The same by gate, as the pool-manager answered it: until when, and the command."""
    next: str = ""
    """What follows."""
    evidence: str = ""
    """The command that shows the evidence about a node that was unhealthy."""
