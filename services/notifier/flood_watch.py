"""Bounds what one node's agent holds of EVENTS, so that it cannot evict the history of others.

nats-server limits neither messages per second nor, in one stream, some subjects alone: one agent's
credentials can fill the stream, which then drops its oldest messages. So when half of it
is used, the surplus of every node that holds more than its share is removed, and reported.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.permissions import agent_facts
from schemas.topology import EVENTS
from services.bus.port import Bus
from services.primitives.clock import Clock

USED_SHARE: Final = 0.5
"""Below this share of its size the stream drops nothing soon: one connection was measured to store
40 MB/s, which takes 25 s for the other half."""
GROWTH_MIN: Final = 1_000
"""Messages since the last look at each subject: listing them takes 0.3 s at 10,000 nodes."""
FACTS_MAX: Final = 1_000
"""Facts that one node holds, of all kinds together."""
FACTS_KEPT: Final = 200
"""The newest of each kind that a node keeps which holds more."""
SHOWN_SECONDS: Final = 600.0


class Surplus(NamedTuple):
    """A node that holds more than its share."""

    pool: str
    node: str
    facts: int
    """How many it holds."""
    subjects: tuple[str, ...]
    """Those under which it holds more than it keeps."""


def find_surplus(counts: Mapping[str, int]) -> list[Surplus]:
    """Nodes that hold too much, by how many facts each subject has. Pure."""
    held: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for subject, count in counts.items():
        if (parsed := subjects.parse_node(subject)) is not None:
            held[parsed.pool, parsed.node][subject] = count
    return [
        Surplus(pool, node, total, tuple(each for each, count in own.items() if count > FACTS_KEPT))
        for (pool, node), own in sorted(held.items())
        if (total := sum(own.values())) > FACTS_MAX
    ]


class FloodWatch:
    """Removes what nodes hold beyond their share."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Nothing is removed yet."""
        self._bus = bus
        self._clock = clock
        self._seen = -GROWTH_MIN
        """The stream's last sequence when the nodes were looked at."""
        self._shown: dict[str, tuple[CurrentFailure, float]] = {}
        """Node -> its flood, and until when it is shown."""

    async def look(self, used_bytes: int, last_sequence: int) -> list[CurrentFailure]:
        """Remove the surplus, if EVENTS is filling; return the floods of the last minutes."""
        if last_sequence < self._seen:  # another stream
            self._seen = -GROWTH_MIN
        filling = used_bytes >= USED_SHARE * EVENTS.bytes_max
        if filling and last_sequence - self._seen >= GROWTH_MIN:
            for each in find_surplus(await self._counts()):
                await self._remove(each)
            self._seen = last_sequence
        now = self._clock.monotonic()
        self._shown = {node: shown for node, shown in self._shown.items() if shown[1] > now}
        return [failure for failure, _ in self._shown.values()]

    async def _counts(self) -> dict[str, int]:
        """How many facts of agents each subject has."""
        counts: dict[str, int] = {}
        for fact in agent_facts():
            wanted = subjects.node_event_wildcard(fact)
            counts |= await self._page(wanted, 0)
        return counts

    async def _page(self, wanted: str, offset: int) -> dict[str, int]:
        body = {"subjects_filter": wanted, "offset": offset}
        info: dict[str, Any] = await self._bus.admin(f"STREAM.INFO.{EVENTS.name}", body)
        found: dict[str, int] = info["state"].get("subjects") or {}
        if found and offset + len(found) < int(info.get("total", 0)):
            found = found | await self._page(wanted, offset + len(found))
        return found

    async def _remove(self, surplus: Surplus) -> None:
        for each in surplus.subjects:
            await self._bus.admin(
                f"STREAM.PURGE.{EVENTS.name}", {"filter": each, "keep": FACTS_KEPT}
            )
        until = self._clock.monotonic() + SHOWN_SECONDS
        self._shown[surplus.node] = flooding(surplus), until


def flooding(surplus: Surplus) -> CurrentFailure:
    """What is reported of a node that holds too much."""
    node = surplus.node
    return CurrentFailure(
        failure="message-flood",
        about=f"node {node}",
        reason=(
            f"its agent has stored {surplus.facts} facts, and EVENTS, which all nodes share, is "
            f"filling: all but its newest {FACTS_KEPT} of each kind are removed"
        ),
        remedy=(
            f"look at what is sent with `navarch events --node {node} --since 10m`; where the "
            f"agent is at fault, stop it, or replace the node with `navarch replace {node}`. If "
            "it goes on, its credentials are used elsewhere: see Known gaps in docs/security.md"
        ),
    )
