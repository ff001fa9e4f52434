"""What a sweep of the providers is asked, and what it answers. Pure data."""

from typing import Literal

import msgspec

from schemas.messages import UtcTime

SweepVerb = Literal["adopt", "terminate", "forget", "note"]
"""`adopt`: record what stands without a record, or whose launch nobody has finished. `terminate`:
remove what should not stand. `forget`: close the record of what its provider lists no more. `note`:
say in a running instance's record that its provider does not list it, or does again."""


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody asks for a sweep, or what one would do."""

    by: str = ""


class SweepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a sweep does, did or would do."""

    verb: SweepVerb
    pool: str
    instance: str
    provider: str
    provider_id: str = ""
    reason: str
    waits_seconds: float = 0.0
    """So long it is left alone yet, because whoever works on it may be about to finish; 0: now."""
    held_back: str = ""
    """Why it is not done at all; empty: it is."""
    outcome: str = ""
    """What came of it; empty: it was only planned."""
    dollars_per_hour: float = 0.0


class SweepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep did or would do, in the order of the provider and the record."""

    replica: str
    """Who sweeps."""
    at: UtcTime
    performed: bool
    lines: tuple[SweepLine, ...] = ()
    unlisted: dict[str, str] = {}
    """Provider -> why it could not be listed: of its instances nothing is concluded."""
    fleet_known: bool = True
    """False: the bus does not know its fleet yet, and nothing at any provider is touched."""
