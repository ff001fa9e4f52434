"""Searches everything that a fleet stores, shows or hands to a process for a planted secret."""

import base64
import gzip
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final

from schemas.topology import OBJECT_BUCKETS
from services.bus.port import Bus

AROUND: Final = 100
GZIP: Final = b"\x1f\x8b"


def forms(secret: str) -> Iterator[bytes]:
    """The secret as it is, in hexadecimal, and in base64 wherever it begins there."""
    plain = secret.encode()
    yield plain
    yield plain.hex().encode()
    for lead in range(3):
        coded = base64.b64encode(bytes(lead) + plain)
        # Only the characters that no neighbour of the secret has a part in.
        yield coded[-(-lead * 8 // 6) : (lead + len(plain)) * 8 // 6]


def find_leaks(shown: Mapping[str, bytes], secret: str) -> list[str]:
    """Where the secret is found, with what is around it."""
    wanted = list(forms(secret))
    return [
        f"{where}: {text[max(at - AROUND, 0) : at + AROUND]!r}"
        for where, text in shown.items()
        if (at := max(text.find(each) for each in wanted)) >= 0
    ]


async def stored_texts(bus: Bus) -> AsyncIterator[tuple[str, bytes]]:
    """Every message of every stream, in memory too, and every object put together.

    Read over the bus: on the server's disk they are compressed, and objects are cut into chunks.
    """
    for stream in (await bus.admin("STREAM.NAMES", {}))["streams"]:
        for each in await bus.read(stream, ">"):
            headers = repr(dict(each.headers)).encode()
            yield (
                f"{stream} {each.sequence}",
                b"%b %b %b"
                % (
                    each.subject.encode(),
                    headers,
                    each.data,
                ),
            )
    for bucket in OBJECT_BUCKETS:
        for info in await bus.objects(bucket):
            found = await bus.get_object(bucket, info.name)
            about = f"{info.name} {dict(info.metadata)}".encode()
            yield f"{bucket.name} {info.name}", about + (found.data if found else b"")


def file_texts(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Every file under a directory, its name too; compressed ones unpacked."""
    for file in directory.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            yield str(file), b"%b\n%b" % (str(file).encode(), data)
            if data.startswith(GZIP):
                yield f"{file}, unpacked", gzip.decompress(data)


def process_texts(own: str) -> Iterator[tuple[str, bytes]]:
    """Command lines of every process, and the variables of those that name `own` in theirs."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            yield f"{place}/cmdline", (place / "cmdline").read_bytes()
            variables = (place / "environ").read_bytes()
        except OSError:
            continue
        if own.encode() in variables:
            yield f"{place}/environ", variables
