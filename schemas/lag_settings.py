"""Declares from which delay on a service lags behind its messages."""

from typing import Annotated

import msgspec

from schemas.duration import Duration


class LagSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defines when operators are notified that a service lags behind its messages."""

    messages: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """Number of messages that no replica has received."""
    age: Duration = Duration(60)
    """Age of the oldest of them."""
    interval: Duration = Duration(10)
    """Interval between two checks."""
