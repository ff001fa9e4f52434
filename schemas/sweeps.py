"""Requests for sweeps, and their results."""

from typing import Literal

import msgspec

from schemas.value_limits import Float, Name, Seconds, UtcTime

SweepVerb = Literal["adopt", "terminate", "forget", "note", "orphan"]
"""`adopt`: record an instance without a record or with an unfinished launch. `terminate`: remove an
instance that should not exist. `forget`: close the record of an instance that its provider no
longer lists. `note`: record that the provider does not list a running instance, or does again.
`orphan`: an instance of this fleet that the store has lost; left alone until a command names it."""


class SweepRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Requests a sweep or its dry run."""

    adopt: tuple[str, ...] = ()
    """Orphans, by instance name or provider ID, that become nodes of their pools."""
    terminate: tuple[str, ...] = ()
    """Orphans that are terminated."""
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""


class SweepLine(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one action of a sweep."""

    verb: SweepVerb
    pool: str
    instance: str
    provider: str
    provider_id: str = ""
    reason: str
    waits_seconds: Seconds = 0.0
    """Wait before acting, because a replica may be about to finish its work; 0: none."""
    held_back: str = ""
    """Why it is not performed; empty: it is."""
    outcome: str = ""
    """Its result; empty: planned only."""
    dollars_per_hour: Float = 0.0
    authority: str = ""
    """Of a termination: by whose order it is, or is sought."""
    gate: str = ""
    """What holds a proposed removal back."""
    since: UtcTime | None = None
    """Since when it is held back."""


class SweepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Actions of a sweep, ordered by provider and record."""

    replica: str
    """The replica that sweeps."""
    at: UtcTime
    performed: bool
    lines: tuple[SweepLine, ...] = ()
    unlisted: dict[str, str] = {}
    """Provider -> why listing failed; its instances are left alone."""
    fleet_known: bool = True
    """False: the fleet's ID is unknown yet, and no instance is touched."""
