"""Decides what failed launches block: the scope, until when, and which launch probes it. Pure.

A failure blocks a scope according to its kind: one offering without capacity, a type that a zone
lacks, a quota, a whole account. After a wait a single launch probes the block; if it fails for the
same reason the wait doubles, and if it succeeds the block is deleted.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, get_args

from msgspec.structs import replace

from schemas.enums import ProviderErrorKind
from schemas.launch_offers import Offering
from schemas.offering_records import BlockRecord, BlockScope
from services.provisioner.provider_client.provider_errors import RULES

PROBE_SECONDS: Final = 120.0
"""After this another launch may probe: the first may have died. A launch that takes longer has been
accepted by then, or will be refused for another reason than capacity."""
REASON_CHARS_MAX: Final = 300
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_=-]")
CONFIGURATION_CHARS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTarget:
    """An offering, and the rest of what a failure may block it by."""

    offering: Offering
    model: str
    """The model that quota is counted by."""
    pool: str
    configuration: str = ""
    """Digest of the pool's launch configuration."""


@dataclass(frozen=True, slots=True)
class Free:
    """Nothing blocks it."""


@dataclass(frozen=True, slots=True)
class ProbeDue:
    """The offering is blocked, and the launch that claims these keys may probe it."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """The offering is blocked at least until then."""

    until: datetime
    record: BlockRecord
    """The block that lasts longest."""


BlockState = Free | ProbeDue | Blocked


def configuration_digest(text: bytes) -> str:
    """Return a short digest of an encoded configuration."""
    return hashlib.sha256(text).hexdigest()[:CONFIGURATION_CHARS]


def block_scope(kind: ProviderErrorKind, named: str = "") -> BlockScope:
    """Return what a failure blocks: the scope that it names, else that of its kind."""
    scope = named or RULES[kind].scope
    match scope:
        case "offering" | "type" | "subnet" | "quota" | "account" | "configuration":
            return scope
        case _:
            # A call that keeps failing: the provider does not answer.
            return "account"


def block_key(scope: BlockScope, target: BlockTarget) -> str:
    """Return the key in OFFERINGS under which a scope blocks an offering."""
    parts = _parts(scope, target)
    return ".".join(("blocked", scope, *(_UNFIT.sub("-", part) or "_" for part in parts)))


def _parts(scope: BlockScope, target: BlockTarget) -> tuple[str, ...]:
    of = target.offering
    match scope:
        case "offering":
            return of.provider, of.region, of.zone, of.instance_type, of.market
        case "type":
            return of.provider, of.region, of.zone, of.instance_type
        case "subnet":
            return of.provider, of.region, of.zone
        case "quota":
            return of.provider, of.region, target.model, of.market
        case "account":
            return (of.provider,)
        case "configuration":
            named = (of.provider, of.region, of.instance_type)
            return target.pool, target.configuration, *named


SCOPES: Final[tuple[BlockScope, ...]] = get_args(BlockScope)


def find_blocks(
    target: BlockTarget, memory: Mapping[str, BlockRecord]
) -> tuple[tuple[str, BlockRecord], ...]:
    """Return the blocks of an offering, with their keys."""
    keys = (block_key(scope, target) for scope in SCOPES)
    return tuple((key, memory[key]) for key in keys if key in memory)


def block_state(found: Iterable[tuple[str, BlockRecord]], by: str, now: datetime) -> BlockState:
    """Return the state of an offering with these blocks for the launch with the key `by`."""
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
    """Return the record with a launch's probe; None if another probes it, or it is too soon."""
    if _until(record, by, now) > now:
        return None
    return replace(record, probe=by, probe_until=now + timedelta(seconds=PROBE_SECONDS))


def release_probe(record: BlockRecord, by: str) -> BlockRecord:
    """Return the record without the probe of a launch that has found out nothing."""
    return replace(record, probe="", probe_until=None) if record.probe == by else record


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailure:
    """A launch call that failed."""

    kind: ProviderErrorKind
    reason: str
    scope: str = ""
    """The scope that the error names; empty: that of its kind."""
    retry_after: float | None = None
    began: datetime
    by: str
    """Key of the launch."""


def record_failure(
    old: BlockRecord | None, target: BlockTarget, failure: LaunchFailure, now: datetime
) -> BlockRecord:
    """Return the record after a failure; concurrent calls count once."""
    if old is not None and old.probe != failure.by and old.failed_at >= failure.began:
        return old
    again = old is not None and old.kind == failure.kind
    failures = old.failures + 1 if old is not None and again else 1
    rule = RULES[failure.kind]
    wait = min(rule.block_seconds * 2.0 ** min(failures - 1, 30), rule.block_max_seconds)
    scope = block_scope(failure.kind, failure.scope)
    of = target.offering
    narrow = scope in ("offering", "type", "configuration")
    return BlockRecord(
        scope=scope,
        provider=of.provider,
        region="" if scope == "account" else of.region,
        zone=of.zone if scope in ("offering", "type", "subnet") else "",
        instance_type=of.instance_type if narrow else "",
        model=target.model if scope == "quota" else "",
        market=of.market if scope in ("offering", "quota") else "",
        pool=target.pool if scope == "configuration" else "",
        kind=failure.kind,
        reason=failure.reason[:REASON_CHARS_MAX],
        since=old.since if old is not None and again else now,
        failed_at=now,
        failures=failures,
        probe_at=now + timedelta(seconds=max(wait, failure.retry_after or 0.0)),
    )
