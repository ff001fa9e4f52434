"""Writes archives of streams as nats-server reads them, with whatever a stranger would put in."""

import io
import tarfile
from collections.abc import Iterable
from typing import Final, TypeAlias

Member: TypeAlias = tuple[tarfile.TarInfo, bytes]
"""What describes a member of an archive, and its content."""
IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
"""The head of a framed stream, which the server's S2 takes as well as its own."""
UNCOMPRESSED: Final = 1
CHUNK_BYTES: Final = 65_000
POLYNOMIAL: Final = 0x82F63B78
"""The one of CRC-32C, with its bits in the other order."""


def _table() -> list[int]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        found.append(value)
    return found


TABLE: Final = _table()


def masked_checksum(data: bytes) -> int:
    """Return the checksum of a chunk as the frame has it."""
    crc = 0xFFFFFFFF
    for each in data:
        crc = TABLE[(crc ^ each) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """Return bytes in uncompressed chunks."""
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    return IDENTIFIER + b"".join(
        bytes([UNCOMPRESSED])
        + (len(each) + 4).to_bytes(3, "little")
        + masked_checksum(each).to_bytes(4, "little")
        + each
        for each in chunks
    )


def archive(members: Iterable[Member]) -> bytes:
    """Return the archive of a stream with these members."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as file:
        for member, data in members:
            file.addfile(member, io.BytesIO(data))
    return framed(packed.getvalue())


def plain(name: str, data: bytes) -> Member:
    """Return a member that is a file."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    return member, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    """Return a member that is a link, or of another kind than a file."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""
