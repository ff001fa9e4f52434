"""Parses records of /dev/kmsg; `log_formats` parses what other programs print. Never raises."""

import re
from typing import Final

from agent.observations import KernelLogLine

LINE_CHARS_MAX: Final = 8192
"""A kmsg record is never longer; further text is ignored."""


_PREFIX = re.compile(rb"(\d{1,9}),(\d{1,20}),(\d{1,20})(?:,[^;\n]*)?;")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")


def parse_kmsg(record: bytes) -> KernelLogLine | None:
    """Read one record of /dev/kmsg: `prefix,sequence,microseconds,flags;text`, and its properties.

    None: not a record, or only a property line.
    """
    head = _PREFIX.match(record)
    if head is None:
        return None
    end = record.find(b"\n")
    text = record[head.end() : LINE_CHARS_MAX if end < 0 else min(end, LINE_CHARS_MAX)]
    prefix, sequence, stamp_us = head.groups()
    number = int(prefix)
    return KernelLogLine(
        unescape(text.decode("utf-8", "replace")),
        int(sequence),
        int(stamp_us),
        number & 7,
        number >> 3,
    )


def split_records(data: bytes) -> tuple[list[bytes], bytes]:
    """Cut a chunk of kmsg records into records; the rest is an unfinished line.

    Property lines (` KEY=value`) stay with their record where they are in the same chunk.
    """
    *lines, rest = data.split(b"\n")
    records: list[bytes] = []
    for line in lines:
        if line.startswith(b" ") and records:
            records[-1] += b"\n" + line
        elif line:
            records.append(line)
    return records, rest


def unescape(text: str) -> str:
    r"""Undo the kernel's `\x0a` for what is not printable."""
    if "\\x" not in text:
        return text
    # Escapes are bytes of UTF-8, so they are joined as bytes and decoded together.
    raw = _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), text)
    try:
        return raw.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return raw
