"""Bounds what one node's agent holds of EVENTS, so that it cannot evict the history of others.

INTAKE limits how fast a node's facts come into EVENTS, but not how many it has there: one agent's
credentials can fill the stream, which then drops its oldest messages. So when half of it is used,
the surplus of every node that holds more than its share is removed, and reported.

A node that stores more than an agent can send, for longer than what it may have kept explains, is
disconnected.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.node_disconnections import DisconnectAnswer, DisconnectRequest
from schemas.node_events import FACTS_OF_AGENTS
from schemas.topology import EVENTS, FACTS_WAITING_MAX, INTAKE
from services.bus.port import Bus
from services.bus.protocol.endpoint_replies import reply_data
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError

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
FACTS_PER_SECOND_MAX: Final = 100.0
"""More than an agent sends for long: it limits equal faults, and how many differ."""
EXCESS_MAX: Final = 25_000.0
"""Facts beyond that rate: more than an agent sends at once that was cut off from the bus."""
LOOKS_MIN: Final = 3
"""Looks in a row at which a node is beyond the rate, before it is disconnected."""
FULL_LOOKS_MAX: Final = 180
"""Looks, half an hour of them, at which INTAKE had no room for a node, before it is disconnected.
What an agent kept while it was cut off takes three minutes to pass."""
DISCONNECT_SECONDS_MAX: Final = 5.0


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


class Flow(NamedTuple):
    """Describes what a node stores beyond an agent's rate."""

    excess: float
    """Facts beyond it; what it stores less is deducted."""
    looks: int
    """Looks in a row at which it was beyond it."""

    @property
    def is_flood(self) -> bool:
        """Return whether no agent of ours sends so much."""
        return self.excess > EXCESS_MAX and self.looks >= LOOKS_MIN


Node = tuple[str, str]
"""Pool and name."""


def facts_by_node(counts: Mapping[str, int]) -> dict[Node, int]:
    """Return how many facts each node holds. Pure."""
    found: dict[Node, int] = defaultdict(int)
    for subject, count in counts.items():
        if (parsed := subjects.parse_node(subject)) is not None:
            found[parsed.pool, parsed.node] += count
    return dict(found)


def next_flows(
    flows: Mapping[Node, Flow],
    before: Mapping[Node, int],
    now: Mapping[Node, int],
    seconds: float,
) -> dict[Node, Flow]:
    """The flows after `seconds` in which nodes that held `before` came to hold `now`. Pure."""
    found: dict[Node, Flow] = {}
    for node, count in now.items():
        old = flows.get(node, Flow(0.0, 0))
        beyond = count - before.get(node, 0) - FACTS_PER_SECOND_MAX * seconds
        if old.excess + beyond > 0:
            found[node] = Flow(old.excess + beyond, old.looks + 1 if beyond > 0 else 0)
    return found


def next_full(full: Mapping[Node, int], waiting: Mapping[str, int]) -> dict[Node, int]:
    """Return at how many looks INTAKE had no room for a node, less those at which it had. Pure.

    `waiting`: how many facts each subject has there at this look.
    """
    now = facts_by_node({each: 1 for each, n in waiting.items() if n >= FACTS_WAITING_MAX})
    counts = {each: full.get(each, 0) + (1 if each in now else -1) for each in {*full, *now}}
    return {node: count for node, count in counts.items() if count > 0}


class FloodWatch:
    """Removes what nodes hold beyond their share, and has floods disconnected."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._seen = -GROWTH_MIN
        """The stream's last sequence when surpluses were removed."""
        self._counted = -GROWTH_MIN
        """The stream's last sequence when facts were counted."""
        self._held: dict[Node, int] | None = None
        """How many facts each node held then; None: not known."""
        self._held_at = 0.0
        self._flows: dict[Node, Flow] = {}
        self._full: dict[Node, int] = {}
        """Looks at which INTAKE had no room for a node."""
        self._shown: dict[str, tuple[CurrentFailure, float]] = {}
        """Node -> its flood, and until when it is shown."""

    async def look(
        self, used_bytes: int, last_sequence: int, waiting: int = 0
    ) -> list[CurrentFailure]:
        """Remove surpluses, if EVENTS is filling; return the floods of the last minutes.

        `waiting`: how many facts INTAKE has.
        """
        await self._follow_full(waiting)
        if last_sequence < self._counted:  # another stream
            self._seen = self._counted = -GROWTH_MIN
            self._held, self._flows = None, {}
        filling = used_bytes >= USED_SHARE * EVENTS.bytes_max
        due = filling and last_sequence - self._seen >= GROWTH_MIN
        if due or last_sequence - self._counted >= GROWTH_MIN:
            counts = await self._counts()
            await self._follow_flows(facts_by_node(counts))
            if due:
                for each in find_surplus(counts):
                    await self._remove(each)
                    counts |= dict.fromkeys(each.subjects, FACTS_KEPT)
                self._seen = last_sequence
            self._held, self._counted = facts_by_node(counts), last_sequence
        now = self._clock.monotonic()
        self._shown = {node: shown for node, shown in self._shown.items() if shown[1] > now}
        return [failure for failure, _ in self._shown.values()]

    async def _follow_flows(self, held: dict[Node, int]) -> None:
        """Have nodes disconnected that flood for long."""
        now = self._clock.monotonic()
        if self._held is not None:
            self._flows = next_flows(self._flows, self._held, held, now - self._held_at)
        self._held_at = now
        for node, flow in list(self._flows.items()):
            if flow.is_flood:
                await self._disconnect(node, stored_beyond(flow))

    async def _follow_full(self, waiting: int) -> None:
        """Report nodes of which the server refuses facts; have those that go on disconnected."""
        found = await self._page(">", 0, INTAKE.name) if waiting >= FACTS_WAITING_MAX else {}
        self._full = next_full(self._full, found)
        for node, looks in list(self._full.items()):
            if looks > FULL_LOOKS_MAX:
                await self._disconnect(node, refused_for(looks))
            elif looks >= LOOKS_MIN:
                self._show(node[1], refusing(node[1]))

    async def _disconnect(self, node: Node, reason: str) -> None:
        request = DisconnectRequest(pool=node[0], node=node[1], reason=reason)
        try:
            reply = await self._bus.request(
                subjects.query("disconnect-node"),
                msgspec.json.encode(request),
                timeout_seconds=DISCONNECT_SECONDS_MAX,
            )
            answer = msgspec.json.decode(reply_data(reply), type=DisconnectAnswer)
        except (NavarchError, msgspec.DecodeError) as error:
            answer = DisconnectAnswer(disconnected=False, reason=str(error))
        if answer.disconnected:  # the provisioner reports it until it is readmitted
            self._flows.pop(node, None)
            self._full.pop(node, None)
            self._shown.pop(node[1], None)
        else:
            self._show(node[1], not_disconnected(node[1], reason, answer.reason))

    def _show(self, node: str, failure: CurrentFailure) -> None:
        self._shown[node] = failure, self._clock.monotonic() + SHOWN_SECONDS

    async def _counts(self) -> dict[str, int]:
        """How many facts of agents each subject has."""
        counts: dict[str, int] = {}
        for fact in FACTS_OF_AGENTS:
            wanted = subjects.node_event_wildcard(fact)
            counts |= await self._page(wanted, 0)
        return counts

    async def _page(self, wanted: str, offset: int, stream: str = EVENTS.name) -> dict[str, int]:
        body = {"subjects_filter": wanted, "offset": offset}
        info: dict[str, Any] = await self._bus.admin(f"STREAM.INFO.{stream}", body)
        found: dict[str, int] = info["state"].get("subjects") or {}
        if found and offset + len(found) < int(info.get("total", 0)):
            found = found | await self._page(wanted, offset + len(found), stream)
        return found

    async def _remove(self, surplus: Surplus) -> None:
        for each in surplus.subjects:
            await self._bus.admin(
                f"STREAM.PURGE.{EVENTS.name}", {"filter": each, "keep": FACTS_KEPT}
            )
        self._show(surplus.node, flooding(surplus))


def stored_beyond(flow: Flow) -> str:
    """Return why a node is disconnected that stores more than an agent sends."""
    return (
        f"its agent stored {flow.excess:.0f} facts beyond {FACTS_PER_SECOND_MAX:.0f} a second, "
        "which no agent sends by itself"
    )


def refused_for(looks: int) -> str:
    """Return why a node is disconnected of which the server refuses facts all the time."""
    return (
        f"at {looks} looks the server had no room for more of its agent's facts, which no agent "
        "brings about by itself"
    )


def refusing(node: str) -> CurrentFailure:
    """Return what is reported of a node that sends more than the server takes of one node."""
    return CurrentFailure(
        failure="message-flood",
        about=f"node {node}",
        reason=(
            f"its agent sends facts faster than the server takes them of one node: "
            f"{FACTS_WAITING_MAX} of a kind each half second. The rest is refused and stays with "
            "the agent; other nodes are not delayed"
        ),
        remedy=(
            f"look at what is sent with `navarch events --node {node} --since 10m`; where the "
            f"agent is at fault, stop it, or replace the node with `navarch replace {node}`"
        ),
    )


def flooding(surplus: Surplus) -> CurrentFailure:
    """Return what is reported of a node that holds too much."""
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
            f"agent is at fault, stop it, or replace the node with `navarch replace {node}`"
        ),
    )


def not_disconnected(node: str, reason: str, why: str) -> CurrentFailure:
    """Return what is reported of a flood that goes on."""
    return CurrentFailure(
        failure="message-flood",
        about=f"node {node}",
        reason=f"{reason}. It is not disconnected: {why}",
        remedy=(
            f"look at what is sent with `navarch events --node {node} --since 10m`; stop its "
            f"agent, or replace the node with `navarch replace {node}`"
        ),
    )
