"""The envelope of every message, and the codecs that decode them by type.

Each message is a JSON object with `type` (`io.navarch.<source>.event.v1.<name>`), `id`, `time` and
`cause` (the id of the message that led to it). Evolution is add-only: a new field has a default, a
field never changes its type or meaning. Unknown fields are ignored; an unknown type is a value
(`UnknownType`), not an error; a known type with invalid content is `Invalid`, with the reason.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from schemas.duration import decode_hook, encode_hook
from schemas.newer_records import without_unknown
from schemas.value_limits import Name, UtcTime, limited

S = TypeVar("S")
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises; a text that is not UTF-8 and one nested too deep have their own errors."""

UNKNOWN_FIELD: Final = "Object contains unknown field"
"""In msgspec's words."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Declares the fields of every message."""

    id: Name
    """Unique in its stream and derived from the cause, so that publishing is idempotent."""
    time: UtcTime
    """When it happened, by the publisher's clock."""
    cause: Name = ""
    """ID of the message that led to this one; empty for a first cause."""


def _types_of(source: str) -> Callable[[str], str]:
    """Return what makes the type of a publisher's message of the name of its class."""

    def type_of(name: str) -> str:
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        return f"io.navarch.{source}.event.v1.{words}"

    return type_of


AGENT, HEALTH_MONITOR = _types_of("agent"), _types_of("health_monitor")
POOL_MANAGER, PROVISIONER = _types_of("pool_manager"), _types_of("provisioner")
NOTIFIER, METRICS, SAGA = _types_of("notifier"), _types_of("metrics"), _types_of("saga")
RUNTIME, GATEWAY = _types_of("runtime"), _types_of("gateway")
"""Types of the messages of each publisher: `io.navarch.<publisher>.event.v1.<name of the class>`. A
class that is renamed names its type itself, as that never changes."""


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


GZIP_MAGIC: Final = b"\x1f\x8b"
COMPRESSED_FROM_BYTES: Final = 256 * 1024
"""A larger record is stored compressed: `nats kv get POOLS pool.NAME --raw | gunzip` shows it."""
COMPRESSION_LEVEL: Final = 1
DECOMPRESSED_BYTES_MAX: Final = 16 * 1024 * 1024

_envelope = msgspec.json.Decoder(_Envelope)
_encoder = msgspec.json.Encoder(enc_hook=encode_hook)


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message or a record as JSON."""
    return _encoder.encode(message)


def encode_record(record: "Record") -> bytes:
    """Encode a record as a bucket keeps it: as JSON, or as compressed JSON where it is large."""
    plain = encode(record)
    if len(plain) < COMPRESSED_FROM_BYTES:
        return plain
    return gzip.compress(plain, COMPRESSION_LEVEL, mtime=0)


def _plain(data: bytes | msgspec.Raw) -> bytes | msgspec.Raw:
    """Decompress a large record; raise msgspec.DecodeError where that fails."""
    if bytes(memoryview(data)[: len(GZIP_MAGIC)]) != GZIP_MAGIC:
        return data
    inflating = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = inflating.decompress(data, DECOMPRESSED_BYTES_MAX)
    except zlib.error as error:
        raise msgspec.DecodeError(f"not gzip: {error}") from error
    if not inflating.eof:
        raise msgspec.DecodeError(f"cut off, or beyond {DECOMPRESSED_BYTES_MAX} bytes")
    return plain


def publisher(kind: type[Message]) -> str:
    """Return who publishes a type: `io.navarch.<publisher>.event.v1.<name>`."""
    return str(kind.__struct_config__.tag).split(".")[2].replace("_", "-")


class LimitedDecoder(Generic[S]):
    """Decodes one kind of value, and refuses date-times outside the limits."""

    def __init__(self, kind: type[S]) -> None:
        """Decode `kind`."""
        self._decoder = msgspec.json.Decoder(kind, dec_hook=decode_hook)

    def decode(self, data: bytes | msgspec.Raw) -> S:
        """Decode JSON; raise msgspec.DecodeError with the reason."""
        try:
            return limited(self._decoder.decode(data))
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from error


class Codec:
    """Decodes the messages of one family; separates unknown from invalid."""

    def __init__(self, types: Iterable[type[Message]]) -> None:
        """Decode `types` and nothing else."""
        self._decoders: dict[str, LimitedDecoder[Any]] = {
            message_type(each): LimitedDecoder(each) for each in types
        }

    def decode(self, data: bytes) -> Message | UnknownType | Invalid:
        """Decode one message; never raises."""
        try:
            tag = _envelope.decode(data).type
        except UNREADABLE as error:
            return Invalid("", f"not a message: {error}")
        decoder = self._decoders.get(tag)
        if decoder is None:
            return UnknownType(tag)
        try:
            message = decoder.decode(data)
        except msgspec.DecodeError as error:
            return Invalid(tag, str(error))
        assert isinstance(message, Message)
        if not message.id.isprintable():
            # It becomes a header of what follows from this message.
            return Invalid(tag, "Expected printable characters - at `$.id`")
        return message


def message_type(cls: type[Message]) -> str:
    """Return the type string of a message class."""
    tag = cls.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def last_word(cls: type[Message]) -> str:
    """Return the last token of the subject of an event of this class: its type's last word."""
    return message_type(cls).rpartition(".")[2].replace("_", "-")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record is the value of a bucket's key. Add-only, like messages."""

    is_packed_when_large: ClassVar[bool] = False
    """Whether its writer compresses it where it is large: a service, never an agent. Any other is
    not unpacked, because 30 kB of an agent's could be 16 MiB."""


class RecordDecoder(LimitedDecoder[Any]):
    """Decodes one kind of record, also one that a newer release has written."""

    def __init__(self, kind: type[Record]) -> None:
        """Decode `kind`."""
        super().__init__(kind)
        self._kind = kind
        self._unpacks = kind.is_packed_when_large

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        """Decode JSON; what this release does not know of a record is left out."""
        # Once: what is packed within what is packed would be unpacked without end.
        plain = _plain(data) if self._unpacks else data
        try:
            return super().decode(plain)
        except msgspec.ValidationError as error:
            if UNKNOWN_FIELD not in str(error):
                raise
        known = without_unknown(msgspec.json.decode(plain), self._kind)
        return super().decode(msgspec.json.encode(known))


def decoder(kind: type[Record]) -> LimitedDecoder[Any]:
    """Return a decoder for one kind of record."""
    return RecordDecoder(kind)
