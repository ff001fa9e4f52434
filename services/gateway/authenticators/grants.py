"""Decides which role and pools a caller gets for its identity provider's claims. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

import msgspec

from schemas.gateway_settings import GatewayRole

ANYONE_KNOWN: Final = "*"


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A role, for callers of whom one value matches."""

    match: Annotated[str, msgspec.Meta(min_length=1)]
    """A group or name, or a pattern (`team-*`); `*`: every caller that is known."""
    role: GatewayRole
    """What the caller may do: docs/http-api.md."""
    pools: tuple[str, ...] = ()
    """Names, or patterns, of the pools that it may see and change; empty: every pool."""


Grants = Annotated[tuple[Grant, ...], msgspec.Meta(min_length=1)]
"""In order: the first that matches counts."""


def granted(grants: Sequence[Grant], values: Sequence[str]) -> Grant | None:
    """The first grant that matches one of the values; None: no role."""
    for grant in grants:
        if grant.match == ANYONE_KNOWN or any(fnmatchcase(each, grant.match) for each in values):
            return grant
    return None
