"""What is remembered of launches that failed: what is blocked, until when, who tries again. Pure.

A failure blocks as much as its kind says: one offering that has no capacity, a type that a zone has
not, a quota, a whole account. After a wait one launch, and one alone, tries what is blocked; should
it fail of the same, the wait doubles, and when it succeeds the block is gone.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.enums import ProviderErrorKind
from schemas.launch_offers import Offering
from schemas.offering_records import BlockRecord, BlockScope
from services.provisioner.provider_client.provider_errors import RULES

PROBE_SECONDS: Final = 120.0
"""After this another may try: the one that tried may have died. A launch that takes longer has long
been accepted, or will be refused for something else than capacity."""
REASON_CHARS_MAX: Final = 300
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_=-]")
CONFIGURATION_CHARS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTarget:
    """An offering, and whatever else a failure may block it by."""

    offering: Offering
    model: str
    """What quota counts it under."""
    pool: str
    configuration: str = ""
    """Tells one configuration of the pool from the next."""


@dataclass(frozen=True, slots=True)
class Free:
    """Nothing is known against it."""


@dataclass(frozen=True, slots=True)
class ProbeDue:
    """It is blocked, and may be tried again by whoever claims these keys."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """It is blocked until then at least."""

    until: datetime
    record: BlockRecord
    """What blocks it longest."""


BlockState = Free | ProbeDue | Blocked


def configuration_digest(text: bytes) -> str:
    """Short for a configuration as it is written out."""
    return hashlib.sha256(text).hexdigest()[:CONFIGURATION_CHARS]


def block_scope(kind: ProviderErrorKind, told: str = "") -> BlockScope:
    """What a failure blocks: what it says itself, else what its kind does."""
    scope = told or RULES[kind].scope
    match scope:
        case "offering" | "type" | "subnet" | "quota" | "account" | "configuration":
            return scope
        case _:
            # What nothing else is known of, and lasts: the provider does not answer.
            return "account"


def block_key(scope: BlockScope, about: BlockTarget) -> str:
    """The key in OFFERINGS of what a scope blocks of an offering."""
    parts = _parts(scope, about)
    return ".".join(("blocked", scope, *(_UNFIT.sub("-", part) or "_" for part in parts)))


def _parts(scope: BlockScope, about: BlockTarget) -> tuple[str, ...]:
    of = about.offering
    match scope:
        case "offering":
            return of.provider, of.region, of.zone, of.instance_type, of.market
        case "type":
            return of.provider, of.region, of.zone, of.instance_type
        case "subnet":
            return of.provider, of.region, of.zone
        case "quota":
            return of.provider, of.region, about.model, of.market
        case "account":
            return (of.provider,)
        case "configuration":
            named = (of.provider, of.region, of.instance_type)
            return about.pool, about.configuration, *named


SCOPES: Final[tuple[BlockScope, ...]] = (
    "offering",
    "type",
    "subnet",
    "quota",
    "account",
    "configuration",
)


def find_blocks(
    about: BlockTarget, memory: Mapping[str, BlockRecord]
) -> tuple[tuple[str, BlockRecord], ...]:
    """Whatever blocks an offering, with its keys."""
    keys = (block_key(scope, about) for scope in SCOPES)
    return tuple((key, memory[key]) for key in keys if key in memory)


def block_state(found: Iterable[tuple[str, BlockRecord]], by: str, now: datetime) -> BlockState:
    """How an offering with these blocks stands for a launch; `by`: its key."""
    found = tuple(found)
    if not found:
        return Free()
    until, record = max(
        ((_until(each, by, now), each) for _, each in found), key=lambda pair: pair[0]
    )
    if until > now:
        return Blocked(until, record)
    return ProbeDue(tuple(key for key, _ in found))


def _until(record: BlockRecord, by: str, now: datetime) -> datetime:
    taken = record.probe not in ("", by) and record.probe_until is not None
    if taken and record.probe_until is not None and record.probe_until > now:
        return record.probe_until
    return record.probe_at


def claim_probe(record: BlockRecord, by: str, now: datetime) -> BlockRecord | None:
    """The record once a launch tries what it blocks; None where another does, or it is too soon."""
    if _until(record, by, now) > now:
        return None
    return replace(record, probe=by, probe_until=now + timedelta(seconds=PROBE_SECONDS))


def release_probe(record: BlockRecord, by: str) -> BlockRecord:
    """The record once a launch has found out nothing about what it blocks."""
    return replace(record, probe="", probe_until=None) if record.probe == by else record


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailure:
    """A call that failed."""

    kind: ProviderErrorKind
    reason: str
    scope: str = ""
    """What it says itself that it blocks; empty: as its kind does."""
    retry_after: float | None = None
    began: datetime
    by: str
    """Key of the launch that called."""


def record_failure(
    old: BlockRecord | None, about: BlockTarget, failure: LaunchFailure, now: datetime
) -> BlockRecord:
    """The record once a call has failed; calls that were under way together count once."""
    if old is not None and old.probe != failure.by and old.failed_at >= failure.began:
        return old
    again = old is not None and old.kind == failure.kind
    failures = old.failures + 1 if old is not None and again else 1
    rule = RULES[failure.kind]
    wait = min(rule.block_seconds * 2.0 ** min(failures - 1, 30), rule.block_max_seconds)
    scope = block_scope(failure.kind, failure.scope)
    of = about.offering
    narrow = scope in ("offering", "type", "configuration")
    return BlockRecord(
        scope=scope,
        provider=of.provider,
        region="" if scope == "account" else of.region,
        zone=of.zone if scope in ("offering", "type", "subnet") else "",
        instance_type=of.instance_type if narrow else "",
        model=about.model if scope == "quota" else "",
        market=of.market if scope in ("offering", "quota") else "",
        pool=about.pool if scope == "configuration" else "",
        kind=failure.kind,
        reason=failure.reason[:REASON_CHARS_MAX],
        since=old.since if old is not None and again else now,
        failed_at=now,
        failures=failures,
        probe_at=now + timedelta(seconds=max(wait, failure.retry_after or 0.0)),
    )
