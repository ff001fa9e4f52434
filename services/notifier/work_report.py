"""Publishes what a drain waits for: on a change, soon at first, later at most once a minute."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from schemas import subjects
from schemas.node_events import FACTS, NodeEvent, WorkRemains
from schemas.node_work import RemainingWork
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from schemas.value_limits import NAME_CHARS_MAX, time_outside
from services.bus.port import Bus
from services.notifier.workload.workload_notifier import NodeReference, NodeWorkload, RunningWork
from services.operator_text.workload_words import work_words
from services.primitives.backoff import doubled
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.primitives.redaction import redacted
from services.runtime.event_publisher import publish_event

E = TypeVar("E", bound=NodeEvent)
log = logging.getLogger(__name__)

REPORT_FIRST_SECONDS: Final = 5.0
"""Least time between the first two events about a drain: why work stays is known a moment after it
was asked to leave. Each later one waits twice as long."""
REPORT_SECONDS: Final = 60.0
"""The longest of these times."""
REMAINING_MAX: Final = 5
"""Jobs listed in one event, which also has their number."""


async def last_event(bus: Bus, kind: type[E], pool: str, node: str) -> E | None:
    """None: there is none that can be read."""
    stored = await bus.last(EVENTS.name, subjects.node_event(pool, node, FACTS[kind]))
    event = decode_stored(stored) if stored is not None else None
    return event if isinstance(event, kind) else None


class WorkReport:
    """Describes what one drain waits for."""

    def __init__(
        self, bus: Bus, clock: Clock, node: NodeReference, saga: str, until: datetime | None
    ) -> None:
        """`until`: when what is left is evicted."""
        self._bus = bus
        self._clock = clock
        self._node = node
        self._saga = saga
        self._until = until
        self._latest = NodeWorkload(drained=False)
        self._changed = asyncio.Event()

    def update(self, answer: NodeWorkload) -> None:
        """Take what the workload system says now."""
        if _seen(answer) != _seen(self._latest):
            self._latest = answer
            self._changed.set()

    async def run(self) -> None:
        """Publish changes; never returns."""
        published = NodeWorkload(drained=False)
        events = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            latest, now = self._latest, self._clock.now()
            event = work_remains(self._node, self._saga, self._until, latest, now)
            if event is None or _seen(latest) == _seen(published):
                continue
            try:
                await publish_event(self._bus, event)
                published = latest
            except BusError as error:
                log.warning("what a drain waits for is not published: %s", error)
                self._changed.set()
            events += 1
            await self._clock.sleep(doubled(REPORT_FIRST_SECONDS, events, REPORT_SECONDS))


async def read_remaining_work(bus: Bus, pool: str, node: str, saga: str, at: datetime) -> str:
    """Return what a saga's drain waits for at a moment, as last published; empty: nothing was."""
    remains = await last_event(bus, WorkRemains, pool, node)
    return work_words(remains, at) if remains is not None and remains.saga == saga else ""


def _seen(answer: NodeWorkload) -> tuple[object, ...]:
    """What an event would say."""
    return answer.running[:REMAINING_MAX], answer.total, answer.detail


def listed_work(
    running: Sequence[RunningWork], most: int = REMAINING_MAX
) -> tuple[RemainingWork, ...]:
    """The first few, as an event lists them. Pure."""
    return tuple(
        RemainingWork(
            id=each.id[:NAME_CHARS_MAX],
            owner=each.owner[:NAME_CHARS_MAX],
            started_at=_storable(each.started_at),
            ends_at=_storable(each.ends_at),
            checkpoint_at=_storable(each.checkpoint_at),
        )
        for each in running[:most]
    )


def _storable(at: datetime | None) -> datetime | None:
    """The time; None where no event may hold it: work that ends in 9999 has no time limit."""
    if at is None or at.tzinfo is None or time_outside(at):
        return None
    return at


def work_remains(
    node: NodeReference, saga: str, until: datetime | None, answer: NodeWorkload, now: datetime
) -> WorkRemains | None:
    """The event; None where the workload system names no work. Pure."""
    if not answer.running:
        return None
    work = listed_work(answer.running)
    total = max(answer.total, len(answer.running))
    detail = " ".join(redacted(answer.detail).split())[:NAME_CHARS_MAX]
    about = msgspec.json.encode((work, total, until, *([detail] if detail else ())))
    digest = hashlib.blake2b(about, digest_size=6).hexdigest()
    return WorkRemains(
        id=f"work-remains-{saga}-{digest}",
        pool=node.pool,
        node=node.node,
        time=now,
        saga=saga,
        work=work,
        total=total,
        until=until,
        detail=detail,
    )
