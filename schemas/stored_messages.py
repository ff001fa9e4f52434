"""Decodes any stored event or saga entry by its subject."""

from typing import Protocol

from schemas import subjects
from schemas.fleet_events import fleet_codec
from schemas.messages import Invalid, Message, UnknownType
from schemas.node_events import node_codec
from schemas.pool_events import pool_codec
from schemas.saga_log_entries import saga_codec


class StoredMessage(Protocol):
    """A subject and the bytes stored on it."""

    @property
    def subject(self) -> str: ...  # noqa: D102

    @property
    def data(self) -> bytes: ...  # noqa: D102


def decode_stored(stored: StoredMessage) -> Message | UnknownType | Invalid:
    """Decode a message with the codec of its subject."""
    if subjects.parse_saga(stored.subject):
        return saga_codec.decode(stored.data)
    if subjects.parse_pool_event(stored.subject):
        return pool_codec.decode(stored.data)
    if subjects.parse_fleet_event(stored.subject):
        return fleet_codec.decode(stored.data)
    return node_codec.decode(stored.data)
