"""Reads kernel log lines in every form people meet them: kmsg records, dmesg and journalctl text.

The first stage of a fault's way: bytes become a `Line`. What a line means is decided in `xid`.
Pure: nothing here reads a file, and nothing raises, whatever the bytes are.
"""

import re
from typing import Final, NamedTuple

KERNEL_FACILITY: Final = 0
USER_FACILITY: Final = 1
LINE_CHARS_MAX: Final = 8192
"""A kmsg record is never longer; text beyond it is not looked at."""


class Line(NamedTuple):
    """One kernel log message; a tuple, since one is made of every line there is."""

    text: str
    sequence: int = -1
    """-1: the form has none (text)."""
    timestamp_us: int = -1
    """Since boot; -1: the form has none."""
    priority: int = 6
    facility: int = KERNEL_FACILITY
    """0: the kernel itself. Anything else was written by a process and proves nothing."""


_PREFIX = re.compile(rb"(\d{1,9}),(\d{1,20}),(\d{1,20})(?:,[^;\n]*)?;")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_STAMP = re.compile(r"\s*\[\s*(\d{1,12})\.(\d{1,9})\]\s?")
_DATE_STAMP = re.compile(r"\s*\[\w{3} \w{3} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)? \d{4}\]\s?")
_ISO_STAMP = re.compile(r"\s*(?:\[)?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*?\]?\s")
_SYSLOG_DATE = re.compile(r"\s*\w{3} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?\s")
_SYSLOG_SOURCE = re.compile(r"\s*(?:[\w.:-]+\s+)?([\w./@-]+)(?:\[\d+\])?:\s")
_DRIVER = re.compile(r"(?:NVRM|nvidia-nvswitch\d*):\s")
"""Where a form names no source, this is the message's own beginning and not one."""
_DECODED = re.compile(r"\s*(kern|user|daemon|auth|syslog|local\d)\s*:\s*\w+\s*:\s*")
_RAW_LEVEL = re.compile(r"\s*<(\d{1,3})>")
_CALLER = re.compile(r"\s*\[\s*[TC]\d+\]\s?")
_PREFIX_PASSES_MAX: Final = 6


def parse_kmsg(record: bytes) -> Line | None:
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
    return Line(
        _unescape(text.decode("utf-8", "replace")),
        int(sequence),
        int(stamp_us),
        number & 7,
        number >> 3,
    )


def parse_text(raw: bytes) -> Line | None:
    """Read one line of dmesg, journalctl, kern.log or a kmsg dump; None: an empty or property line.

    Dates, host names, levels and stamps are taken off the front in whatever order they stand. A
    line that a process and not the kernel wrote keeps a facility other than the kernel's.
    """
    if raw.startswith(b" ") and b"=" in raw and b"[" not in raw:
        return None
    record = parse_kmsg(raw)
    if record is not None:
        return record
    text = raw[:LINE_CHARS_MAX].decode("utf-8", "replace").rstrip("\r\n")
    facility, stamp_us, priority = KERNEL_FACILITY, -1, 6
    for _ in range(_PREFIX_PASSES_MAX):
        if found := _STAMP.match(text):
            stamp_us = int(found.group(1)) * 1_000_000 + int(found.group(2)[:6].ljust(6, "0"))
        elif found := _RAW_LEVEL.match(text):
            priority, facility = int(found.group(1)) & 7, int(found.group(1)) >> 3
        elif found := _DECODED.match(text):
            facility = KERNEL_FACILITY if found.group(1) == "kern" else USER_FACILITY
        elif found := _SYSLOG_DATE.match(text) or _ISO_STAMP.match(text):
            source = _SYSLOG_SOURCE.match(text, found.end())
            if source is not None and not _DRIVER.match(text, found.end()):
                facility = KERNEL_FACILITY if source.group(1) == "kernel" else USER_FACILITY
                found = source
        elif not (found := _DATE_STAMP.match(text) or _CALLER.match(text)):
            break
        text = text[found.end() :]
    text = _unescape(text).strip()
    if not text:
        return None
    return Line(text=text, timestamp_us=stamp_us, priority=priority, facility=facility)


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


def _unescape(text: str) -> str:
    r"""Undo the kernel's `\x0a` for what is not printable."""
    if "\\x" not in text:
        return text
    # Escapes are bytes of UTF-8, so they are joined as bytes and decoded together.
    raw = _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), text)
    try:
        return raw.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return raw
