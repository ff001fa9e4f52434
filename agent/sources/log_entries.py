"""Cuts what other programs print into entries, one for each line of the kernel log.

Most programs print a line for an entry; journalctl and dmesg also print one over many lines, or
many in one JSON document. Such entries become JSON on one line, as `journalctl -o json` prints it,
for `log_formats`. What cannot be cut is passed on line by line, so that it is counted.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec

from agent.sources.kernel_log_parser import LINE_CHARS_MAX
from agent.sources.log_formats import JOURNAL_FIELDS

LINE_BYTES_MAX: Final = 1_048_576
"""A longer line is read in parts, so that no input fills the memory."""
DOCUMENT_BYTES_MAX: Final = 67_108_864
"""The kernel's ring buffer holds far less."""

_ENTRY = re.compile(
    rb"(?:\w{3} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\[]{0,40}\[s=[0-9a-f]+;|__CURSOR=s="
)
"""First line of an entry of `journalctl -o verbose` and `-o export`."""
_FIELD = re.compile(rb"(?: {4})?([A-Z_][A-Z0-9_]{0,63})=(.*)", re.DOTALL)


def read_entries(opened: BinaryIO) -> Iterator[bytes]:
    """Yield each entry of a log."""
    lines = iter(lambda: opened.readline(LINE_BYTES_MAX), b"")
    fields: dict[str, str] | None = None
    for each in lines:
        line = each.removeprefix(b"\x1e")  # journalctl -o json-seq
        text, begins = line.rstrip(), _ENTRY.match(line) is not None
        if fields is not None:
            if begins or not text:
                yield msgspec.json.encode(fields)
                fields = None
            elif found := _FIELD.fullmatch(text):
                name = found.group(1).decode()
                if name in JOURNAL_FIELDS:
                    fields[name] = found.group(2)[:LINE_CHARS_MAX].decode("utf-8", "replace")
                continue
        if begins:
            fields = {}
        elif text in (b"{", b"["):
            yield from _entries_of(_document(line, lines))
        elif text.startswith((b'{"dmesg"', b'{ "dmesg"', b"[{")):
            yield from _entries_of(_whole(line, opened))
        else:
            yield line
    if fields is not None:
        yield msgspec.json.encode(fields)


def _whole(line: bytes, opened: BinaryIO) -> bytes:
    """Read the rest of a line that is longer than other lines may be."""
    if len(line) < LINE_BYTES_MAX or line.endswith(b"\n"):
        return line
    return line + opened.readline(DOCUMENT_BYTES_MAX)


def _document(first: bytes, lines: Iterator[bytes]) -> bytes:
    """Read on to the bracket that closes a document: all between is indented."""
    read, size = [first], len(first)
    for line in lines:
        read.append(line)
        size += len(line)
        if not line[:1].isspace() or size > DOCUMENT_BYTES_MAX:
            break
    return b"".join(read)


def _entries_of(document: bytes) -> Iterator[bytes]:
    try:
        found: Any = msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError):
        yield from document.replace(b"},", b"},\n").splitlines()
        return
    if isinstance(found, dict) and isinstance(found.get("dmesg"), list):
        found = found["dmesg"]
    for each in found if isinstance(found, list) else [found]:
        yield msgspec.json.encode(each)
