"""Decodes any stored event, sample or saga entry by its subject.

The server lets each publisher write to its own subjects only, so the subject decides: a message
whose content names another node, pool, saga or event than its subject is invalid.
"""

from typing import Final, Protocol

from schemas import subjects
from schemas.event_subjects import event_subject
from schemas.fleet_events import FleetEvent, fleet_codec
from schemas.messages import Codec, Invalid, Message, UnknownType, message_type
from schemas.names import InvalidNameError
from schemas.node_events import NodeEvent, node_codec
from schemas.pool_events import PoolEvent, pool_codec
from schemas.saga_log_entries import STATUSES, WHOLE, SagaEntry, StepEntry, saga_codec

NODE_PREFIX: Final = subjects.NODE_EVENTS.partition("*")[0]
"""Of nearly all messages."""


class StoredMessage(Protocol):
    """A subject and the bytes stored on it."""

    @property
    def subject(self) -> str: ...  # noqa: D102

    @property
    def data(self) -> bytes: ...  # noqa: D102


def event_source(stored: StoredMessage) -> str:
    """The subject without the event's name: the node or pool that it is about."""
    return stored.subject.partition(".event.")[0]


def decode_stored(stored: StoredMessage) -> Message | UnknownType | Invalid:
    """Decode a message with the codec of its subject; it must agree with its subject."""
    message = _codec(stored.subject).decode(stored.data)
    if not isinstance(message, Message):
        return message
    try:
        named = message_subject(message)
    except InvalidNameError as error:
        return Invalid(message_type(type(message)), str(error))
    if named != stored.subject:
        reason = f"its content belongs on {named}, but it came on {stored.subject}"
        return Invalid(message_type(type(message)), reason)
    return message


def _codec(subject: str) -> Codec:
    if subject.startswith(NODE_PREFIX):
        return node_codec
    if subjects.parse_saga(subject):
        return saga_codec
    if subjects.parse_pool_event(subject):
        return pool_codec
    if subjects.parse_fleet_event(subject):
        return fleet_codec
    return node_codec


def message_subject(message: Message) -> str:
    """The subject on which a message is published."""
    match message:
        case NodeEvent() | PoolEvent() | FleetEvent():
            return event_subject(message)
        case SagaEntry():
            step = message.step if isinstance(message, StepEntry) else WHOLE
            return subjects.saga_entry(message.saga, step, STATUSES[type(message)])
        case _:
            return ""
