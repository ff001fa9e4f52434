"""The envelope of every message, and the codecs that decode them by type.

Each message is a JSON object with `type` (`io.navarch.<source>.event.v1.<name>`), `id`, `time` and
`cause` (the id of the message that led to it). Evolution is add-only: a new field has a default, a
field never changes its type or meaning. Unknown fields are ignored; an unknown type is a value
(`UnknownType`), not an error; a known type with invalid content is `Invalid`, with the reason.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec

from schemas.duration import decode_hook, encode_hook

UtcTime = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time, written as RFC 3339 with a zone; Navarch writes UTC."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Fields of every message."""

    id: str
    """Unique in its stream and derived from the cause, so that publishing is idempotent."""
    time: UtcTime
    """When it happened, by the publisher's clock."""
    cause: str = ""
    """ID of the message that led to this one; empty for a first cause."""


class UnknownType(msgspec.Struct, frozen=True):
    """A message of a type that this release does not know: acknowledged and counted."""

    type: str


class Invalid(msgspec.Struct, frozen=True):
    """A message that cannot be decoded: dead-lettered with this reason."""

    type: str
    """Empty where the type cannot be read."""
    reason: str


class _Envelope(msgspec.Struct):
    type: str


_envelope = msgspec.json.Decoder(_Envelope)
_encoder = msgspec.json.Encoder(enc_hook=encode_hook)


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message or a record as JSON."""
    return _encoder.encode(message)


class Codec:
    """Decodes the messages of one family; separates unknown from invalid."""

    def __init__(self, types: Iterable[type[Message]]) -> None:
        """Decode `types` and nothing else."""
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {
            message_type(each): msgspec.json.Decoder(each, dec_hook=decode_hook) for each in types
        }

    def decode(self, data: bytes) -> Message | UnknownType | Invalid:
        """Decode one message; never raises."""
        try:
            tag = _envelope.decode(data).type
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Invalid("", f"not a message: {error}")
        decoder = self._decoders.get(tag)
        if decoder is None:
            return UnknownType(tag)
        try:
            message = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Invalid(tag, str(error))
        assert isinstance(message, Message)
        return message


def message_type(cls: type[Message]) -> str:
    """The type string of a message class."""
    tag = cls.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a bucket's key. Add-only, like messages."""


def decoder(kind: type[Record]) -> msgspec.json.Decoder[Any]:
    """A decoder for one kind of record."""
    return msgspec.json.Decoder(kind, dec_hook=decode_hook)
