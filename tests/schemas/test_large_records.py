"""Large records are stored compressed, and every decoder of records reads them."""

import gzip
from typing import ClassVar

import msgspec
import pytest

from schemas.messages import (
    COMPRESSED_FROM_BYTES,
    DECOMPRESSED_BYTES_MAX,
    GZIP_MAGIC,
    Record,
    decoder,
    encode,
    encode_record,
)


class Small(Record, frozen=True, kw_only=True):
    """The record that this release knows."""

    is_packed_when_large: ClassVar[bool] = True
    text: str = ""


class Later(Record, frozen=True, kw_only=True):
    """The record that a newer release writes."""

    is_packed_when_large: ClassVar[bool] = True
    text: str = ""
    more: int = 7


@pytest.mark.parametrize("length", [0, COMPRESSED_FROM_BYTES - 100, 4 * COMPRESSED_FROM_BYTES])
def test_a_record_is_read_as_it_was_written(length: int) -> None:
    """Decoding returns the record, from bytes and from a part of another document."""
    of = decoder(Small)
    record = Small(text="x" * length)
    data = encode_record(record)

    assert (len(data) < COMPRESSED_FROM_BYTES, data.startswith(GZIP_MAGIC)) == (
        True,
        length > COMPRESSED_FROM_BYTES,
    )
    assert [of.decode(data), of.decode(msgspec.Raw(data))] == [record, record]


def test_a_compressed_record_of_a_newer_release_is_read() -> None:
    """A field that this release does not know is left out."""
    record = Later(text="x" * COMPRESSED_FROM_BYTES)

    assert decoder(Small).decode(encode_record(record)) == Small(text=record.text)


@pytest.mark.parametrize(
    "data",
    [
        GZIP_MAGIC,
        GZIP_MAGIC + b"\xff" * 40,
        gzip.compress(encode(Small(text="x" * 400)))[:-9],
        gzip.compress(b" " * (DECOMPRESSED_BYTES_MAX + 1)),
    ],
    ids=["empty", "damaged", "cut off", "too large"],
)
def test_what_cannot_be_decompressed_is_refused(data: bytes) -> None:
    """The decoder raises its own error, as for any other record that cannot be read."""
    with pytest.raises(msgspec.DecodeError):
        decoder(Small).decode(data)
