"""What a call and a stream of the HTTP API are, as values. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall(Generic[T_co]):
    """A request and the type of its answer."""

    path: str
    answer: type[T_co]
    query: Mapping[str, Any] = field(default_factory=dict)
    method: str = "GET"
    body: msgspec.Struct | None = None
    key: str | None = None
    """Of a change: its idempotency key; empty: the client makes one. None: it has none."""
    more_seconds: float = 0.0
    """How much longer than others the gateway may take for it."""


class ItemPage(Protocol[T_co]):
    """Some items, and the cursor of what follows."""

    @property
    def items(self) -> Sequence[T_co]:
        """The items."""

    @property
    def next(self) -> str | int:
        """Empty or 0: that was all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiStream(Generic[T_co]):
    """What is followed, the type of its items, and where it goes on."""

    path: str
    item: type[T_co]
    query: Mapping[str, Any] = field(default_factory=dict)
    after: int | None = None
    """The sequence of the last item seen; None: from now on, or from the whole."""
