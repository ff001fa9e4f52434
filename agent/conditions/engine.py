"""The state machine of conditions: seen long enough it holds, unseen long enough it is over. Pure.

A reader gives what it sees, and what it cannot read and why. What cannot be read neither begins
nor ends: it is unknown. Time is what passes between two steps, not the clock's, which may jump.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from agent.conditions.declared import BY_NAME, Declared, ReaderName
from schemas.held_conditions import MESSAGE_CHARS_MAX, HeldCondition, Reading

Key = tuple[str, int]
"""A condition's name, and its GPU."""
STEP_SECONDS_MAX: Final = 30.0
"""Of a longer pause between two steps (a host asleep, an agent that was stopped), this counts."""
TRACKS_MAX: Final = 1_024


class Seen(NamedTuple):
    """A condition as a reader sees it now."""

    message: str
    metrics: Mapping[str, Reading] = {}
    word: str = ""
    """Subcode of a condition without one of its own; another word is another condition."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one reader says at once."""

    reader: ReaderName
    seen: Mapping[Key, Seen] = field(default_factory=dict)
    unread: Mapping[int, str] = field(default_factory=dict)
    """GPU -> why it cannot be read; -1: all of them, and the host."""


class Track(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A condition that is seen, or that held and is seen no more for a short while."""

    name: str
    gpu: int
    since: float
    """Epoch seconds."""
    seen_seconds: float = 0.0
    gone_seconds: float = 0.0
    counter: int = 0
    """Of its begin; 0: it does not hold yet."""
    word: str = ""
    message: str = ""
    metrics: dict[str, Reading] = {}

    @property
    def declared(self) -> Declared:
        """Return its row of the table."""
        return BY_NAME[self.name]


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, or the host (-1), that a reader cannot read."""

    reader: ReaderName
    gpu: int
    since: float
    why: str


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is known of every condition; what is in order leaves no trace."""

    counter: int = 0
    """Grows with each begin and end, also over restarts and boots."""
    tracks: tuple[Track, ...] = ()
    unread: tuple[Unread, ...] = ()


@dataclass(frozen=True, slots=True)
class ConditionChange:
    """A condition that begins to hold, or is over."""

    track: Track
    counter: int
    over: bool


def started(before: Conditions, now: float, *, same_boot: bool) -> Conditions:
    """Return what is known when the agent starts; a boot begins with nothing."""
    kept = tuple(each for each in before.tracks if each.name in BY_NAME) if same_boot else ()
    unread = before.unread if same_boot else ()
    return Conditions(counter=_next(before.counter, now), tracks=kept, unread=unread)


def step(
    before: Conditions,
    observed: Observed,
    now: float,
    elapsed: float,
    begins: Mapping[str, float] | None = None,
) -> tuple[Conditions, tuple[ConditionChange, ...]]:
    """Apply what a reader says; `begins`: seconds in place of the table's, by name."""
    if not (before.tracks or before.unread or observed.seen or observed.unread):
        return before, ()
    elapsed = min(max(elapsed, 0.0), STEP_SECONDS_MAX)
    changes: list[ConditionChange] = []
    tracks: list[Track] = []
    counter = before.counter
    rest = dict(observed.seen)
    for old in before.tracks:
        key = (old.name, old.gpu)
        if old.declared.reader != observed.reader or (
            key not in rest and _is_unread(old, observed.unread)
        ):
            tracks.append(old)
        elif key in rest and (not old.counter or rest[key].word == old.word):
            tracks.append(_lasting(old, rest.pop(key), elapsed))
        elif old.counter:
            gone = old.gone_seconds + elapsed
            if key in rest or gone >= old.declared.ends_seconds:
                counter = _next(counter, now)
                changes.append(ConditionChange(old, counter, over=True))
            else:
                tracks.append(msgspec.structs.replace(old, gone_seconds=gone))
    room = TRACKS_MAX - len(tracks)
    tracks += [_new(*key, seen, now) for key, seen in list(rest.items())[:room]]
    for place, track in enumerate(tracks):
        wait = (begins or {}).get(track.name, track.declared.begins_seconds)
        fresh = track.declared.reader == observed.reader and not track.counter
        if fresh and track.seen_seconds >= wait:
            counter = _next(counter, now)
            tracks[place] = msgspec.structs.replace(track, counter=counter)
            changes.append(ConditionChange(tracks[place], counter, over=False))
    unread = _all_unread(before.unread, observed, now)
    return Conditions(counter=counter, tracks=tuple(tracks), unread=unread), tuple(changes)


def held(state: Conditions) -> tuple[HeldCondition, ...]:
    """Return what holds, and what cannot be read."""
    unknown = (
        HeldCondition(
            name=each.reader,
            gpu=each.gpu,
            since=round(each.since, 3),
            unknown=True,
            message=each.why[:MESSAGE_CHARS_MAX],
        )
        for each in state.unread
    )
    return (*(held_of(each) for each in state.tracks if each.counter), *unknown)


def held_of(track: Track) -> HeldCondition:
    """Return a condition as it is published."""
    row = track.declared
    return HeldCondition(
        name=row.name,
        gpu=track.gpu,
        since=round(track.since, 3),
        counter=track.counter,
        kind=row.kind,
        code=row.code,
        subcode=row.subcode or track.word,
        severe=row.severe,
        message=track.message[:MESSAGE_CHARS_MAX],
        metrics=track.metrics,
    )


def _next(counter: int, now: float) -> int:
    """Return a counter that grows even where the one on disk was lost: it follows the clock."""
    return max(counter + 1, int(now * 1000))


def _new(name: str, gpu: int, seen: Seen, now: float) -> Track:
    return Track(
        name=name,
        gpu=gpu,
        since=now,
        word=seen.word,
        message=seen.message,
        metrics=dict(seen.metrics),
    )


def _lasting(old: Track, seen: Seen, elapsed: float) -> Track:
    if old.counter:
        return msgspec.structs.replace(old, gone_seconds=0.0) if old.gone_seconds else old
    return msgspec.structs.replace(
        old,
        seen_seconds=old.seen_seconds + elapsed,
        word=seen.word,
        message=seen.message,
        metrics=dict(seen.metrics),
    )


def _is_unread(track: Track, unread: Mapping[int, str]) -> bool:
    row = track.declared
    if -1 in unread:
        return not (row.of_reader and row.scope == "host")
    return track.gpu in unread and not row.of_reader


def _all_unread(before: tuple[Unread, ...], observed: Observed, now: float) -> tuple[Unread, ...]:
    others = tuple(each for each in before if each.reader != observed.reader)
    since = {each.gpu: each.since for each in before if each.reader == observed.reader}
    mine = tuple(
        Unread(reader=observed.reader, gpu=gpu, since=since.get(gpu, now), why=why)
        for gpu, why in sorted(observed.unread.items())
    )
    return (*others, *mine)
