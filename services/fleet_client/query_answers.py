"""Decodes what services answer to queries."""

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from schemas.fleet_queries import NodeView, PoolView
from schemas.messages import LimitedDecoder
from services.primitives.errors import AnswerError

T = TypeVar("T")


@cache
def _decoder(kind: Any) -> LimitedDecoder[Any]:
    return LimitedDecoder(kind)


def decode_answer(
    kind: type[T], data: bytes | msgspec.Raw, query: str, who: str = "pool-manager"
) -> T:
    """Decode what a service answered; AnswerError if it is not an answer to this query."""
    try:
        found: T = _decoder(cast("Any", kind)).decode(data)
    except msgspec.DecodeError as error:
        raise AnswerError(
            f"the {who} answered the query {query} with something that is no answer to it "
            f"({error}): check that this command and the {who} are the same release, and with "
            "`nats micro ls` that nothing else answers its queries"
        ) from error
    return found


def decode_nodes(items: Sequence[msgspec.Raw]) -> list[NodeView]:
    """Decode the items of the query `nodes`."""
    return [decode_answer(NodeView, each, "nodes") for each in items]


def decode_pools(items: list[msgspec.Raw]) -> list[PoolView]:
    """Decode the items of the query `pools`."""
    return [decode_answer(PoolView, each, "pools") for each in items]
