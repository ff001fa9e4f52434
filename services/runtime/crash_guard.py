"""Sets aside a message that ends every process that handles it.

A redelivered message that was not answered is a suspect: while a process handles one, LEASES names
that process beside it. Any answer removes the names, also where it comes late because the bus was
away, and so does handling that lasts. The names that stay are of processes that died over it.

A process holds many messages when it dies, so the more processes a message has behind it, the fewer
such messages are handled at once. The last is handled alone, and proves what it does.
"""

import asyncio
import hashlib
import json
import logging
import shlex
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.lease_records import SetAsideRecord, SuspectRecord
from schemas.stream_specs import DurableSpec
from schemas.topology import LEASES
from services.bus.port import Bus, Stored
from services.bus.record_bucket import RecordBucket, Versioned
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry, UnreadableRecord
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

DEATHS_MAX: Final = 4
"""Processes that died over a suspect before it is set aside; the first death names no suspect."""
AT_ONCE: Final = (0, 64, 8, 1)
"""Suspects handled at once, by the processes that died over each; 0: any number."""
TURNS: Final = AT_ONCE[1]
INNOCENT_SECONDS: Final = 2.0
"""A suspect that is handled for so long, while the process does other work, is none."""
DOUBT_SECONDS: Final = 10.0
"""Before a message is set aside: processes that lost only the bus answer late."""
SUSPECT_TTL_SECONDS: Final = 3_600
SET_ASIDE_TTL_SECONDS: Final = 7 * 86_400
LOOK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
LAST_SECONDS: Final = 1.0
"""For the last answers of a process that stops."""
CALLS_MAX: Final = 32
"""Calls about suspects at once: a process that died may leave thousands, and leases are renewed in
the same bucket."""
DATA_SHOWN_MAX: Final = 2_000
"""Length of a message that is written out in the command that replays it."""


@dataclass(slots=True, eq=False)
class Suspect:
    """A message whose handling ended without an answer before."""

    key: str
    deaths: int
    """Processes that died over it."""
    turns: int = 0
    """What it holds of TURNS."""
    lasting: asyncio.Task[None] | None = None

    @property
    def fatal(self) -> bool:
        """Return whether the message is to be set aside."""
        return self.deaths >= DEATHS_MAX


class Turns:
    """Limits how many suspects are handled at once, in the order of their arrival."""

    def __init__(self) -> None:
        self._free = TURNS
        self._queue = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, count: int) -> None:
        """Wait until so many are free."""
        async with self._queue:
            while self._free < count:
                self._changed.clear()
                await self._changed.wait()
            self._free -= count

    def give(self, count: int) -> None:
        """Give them back."""
        self._free += count
        self._changed.set()


class CrashGuard:
    """Keeps the suspects of one process, over all its consumers."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        service: str,
        replica: str,
        failures: FailureRegister,
        *,
        doubt_seconds: float = DOUBT_SECONDS,
    ) -> None:
        """`replica` is unique to this process."""
        self._bus = bus
        self._clock = clock
        self._service = service.partition("/")[0]  # a simulated replica's has a number
        self._replica = replica
        self._failures = failures
        self._doubt_seconds = doubt_seconds
        self._suspects = RecordBucket(bus, LEASES, SuspectRecord, lambda _: SUSPECT_TTL_SECONDS)
        self._aside = RecordBucket(bus, LEASES, SetAsideRecord, lambda _: SET_ASIDE_TTL_SECONDS)
        self._turns = Turns()
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._removals: dict[asyncio.Task[None], None] = {}
        self._replays: dict[str, str] = {}
        """Digest of a message that was set aside -> its key."""

    async def begin(self, durable: DurableSpec, stored: Stored) -> Suspect:
        """Name this process beside a suspect, when it is the suspect's turn.

        Where LEASES cannot be read or written it is handled all the same.
        """
        suspect = Suspect(f"{self._service}.suspect.{durable.name}.{stored.sequence}", 0)
        with suppress(BusError, Retry):
            found = await self._read(suspect, stored)
            if suspect.fatal:
                await self._clock.sleep(self._doubt_seconds)
                found = await self._read(suspect, stored)
            if suspect.fatal:
                return suspect
            if at_once := AT_ONCE[suspect.deaths]:
                await self._turns.take(TURNS // at_once)
                suspect.turns = TURNS // at_once
            await self._name(suspect.key, stored, found)
        suspect.lasting = asyncio.create_task(self._last(suspect))
        return suspect

    async def _read(self, suspect: Suspect, stored: Stored) -> Versioned[SuspectRecord]:
        async with self._calls:
            found = await self._suspects.read(suspect.key)
        suspect.deaths = len(set(_named(found.record, stored)) - {self._replica})
        return found

    async def _name(self, key: str, stored: Stored, known: Versioned[SuspectRecord]) -> None:
        def named(old: SuspectRecord | None) -> SuspectRecord:
            processes = tuple(dict.fromkeys((*_named(old, stored), self._replica)))
            return SuspectRecord(stored=stored.time, processes=processes)

        async with self._calls:
            await self._suspects.change(key, named, known)

    async def _last(self, suspect: Suspect) -> None:
        # A blocked loop does not come back here: such handling counts until the process is killed.
        await self._clock.sleep(INNOCENT_SECONDS)
        suspect.lasting = None
        self._release(suspect)

    def end(self, suspect: Suspect) -> None:
        """Forget a suspect whose handling ended with an answer, whichever it was."""
        if suspect.lasting is not None:
            suspect.lasting.cancel()
            suspect.lasting = None
            self._release(suspect)

    def _release(self, suspect: Suspect) -> None:
        self._run(self._released(suspect))

    async def _released(self, suspect: Suspect) -> None:
        """Give its turns once it is no longer named: what comes next may end the process."""
        removal = asyncio.create_task(self._removed(suspect.key))
        await asyncio.wait({removal}, timeout=self._doubt_seconds)
        self._turns.give(suspect.turns)
        await removal

    def _remove(self, key: str) -> None:
        self._run(self._removed(key))

    def _run(self, removal: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(removal)
        self._removals[task] = None
        task.add_done_callback(lambda done: self._removals.pop(done, None))

    async def _removed(self, key: str) -> None:
        while True:
            with suppress(BusError):
                async with self._calls:
                    await self._bus.delete(LEASES, key)
                return
            await self._clock.sleep(RETRY_SECONDS)

    async def set_aside(
        self, durable: DurableSpec, stored: Stored, deaths: int, *, replayed: bool
    ) -> None:
        """Record a message as set aside, with the commands that follow; or raise BusError."""
        key = f"{self._service}.set-aside.{durable.name}.{stored.sequence}"
        record = SetAsideRecord(
            about=f"message {stored.sequence} of {stored.subject}",
            digest=_digest(stored),
            reason=(
                f"{deaths + 1} processes of {self._service} died while they handled it for "
                f"{durable.name}; it is set aside, and everything else goes on"
            ),
            remedy=(
                f"find the cause in the logs of {self._service} before each end; the message is "
                f"the dead letter on `{subjects.dead(durable.stream, durable.name)}`. "
                f"{_replay(stored) if replayed else 'It need not be replayed'}, and end this "
                f"report with `nats kv del {LEASES.name} {key}`"
            ),
        )
        await self._aside.change(key, lambda _: record)
        await self.look()

    def settled(self, stored: Stored) -> None:
        """End the failure of a message that was set aside, if this one replays it."""
        if self._replays and (key := self._replays.pop(_digest(stored), "")):
            self._remove(key)
        elif not stored.headers:
            # Published by an operator: another process may have set it aside since the last look.
            self._run(self._end_replay(stored))

    async def _end_replay(self, stored: Stored) -> None:
        while True:
            with suppress(BusError):
                await self.look()
                break
            await self._clock.sleep(RETRY_SECONDS)
        if key := self._replays.pop(_digest(stored), ""):
            await self._removed(key)

    def _failure(self, key: str, record: SetAsideRecord) -> CurrentFailure:
        self._replays[record.digest] = key
        return CurrentFailure(
            failure="message-set-aside",
            about=record.about,
            reason=record.reason,
            remedy=record.remedy,
        )

    async def look(self) -> None:
        """Report what is set aside, by whichever process, until it is replayed or dismissed."""
        found = []
        for entry in await self._bus.entries(LEASES, f"{self._service}.set-aside.>"):
            with suppress(UnreadableRecord):
                found.append(self._failure(entry.key, self._aside.decode(entry)))
        self._failures.update("messages set aside", found)

    async def run(self) -> None:
        """Look for ever; at the end, bring the last answers out."""
        try:
            while True:
                try:
                    await self.look()
                except BusError as error:
                    log.info("what is set aside is not known: %s", error)
                await self._clock.sleep(LOOK_SECONDS)
        finally:
            if self._removals:
                await asyncio.wait(self._removals, timeout=LAST_SECONDS)


def _named(record: SuspectRecord | None, stored: Stored) -> tuple[str, ...]:
    """The processes named beside this message, and not beside an earlier one of its sequence."""
    return record.processes if record is not None and record.stored == stored.time else ()


def _digest(stored: Stored) -> str:
    return hashlib.sha256(stored.subject.encode() + b"\n" + _plain(stored.data)).hexdigest()


def _plain(data: bytes) -> bytes:
    """A message as ASCII without needless spaces: the same for each way of writing it."""
    try:
        return json.dumps(json.loads(data), separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data


def _replay(stored: Stored) -> str:
    # Alerts show one line with single spaces: in the command, others are written as escapes.
    text = _plain(stored.data).decode("utf-8", "replace").replace("  ", " \\u0020")
    if len(text) > DATA_SHOWN_MAX:
        return f"Once it is removed, publish the letter's `data` on `{stored.subject}`"
    return f"Once it is removed, run `{shlex.join(['nats', 'pub', stored.subject, text])}`"
