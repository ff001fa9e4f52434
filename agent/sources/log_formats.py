"""Reads a kernel log as other programs print it: dmesg, journalctl, syslog, containers.

Used by `navarch-agent parse`; the running agent reads /dev/kmsg records alone. Pure, and nothing
raises, whatever the bytes are. A line that a process wrote, and not the kernel, keeps a facility
other than the kernel's.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec

from agent.observations import KERNEL_FACILITY, USER_FACILITY, KernelLogLine
from agent.sources.kernel_log_parser import LINE_CHARS_MAX, parse_kmsg, unescape

JSON_CHARS_MAX: Final = 65_536
"""A journal entry with all its fields; the kernel's own text is at most `LINE_CHARS_MAX` of it."""
PREFIXES_MAX: Final = 8
LISTED_MAX: Final = 16
"""Values of a list in a document that are looked at."""
NESTING_MAX: Final = 3
"""A journal entry in a container's JSON log, in an event stream."""

JOURNAL_FIELDS: Final = frozenset(
    {
        *("MESSAGE", "PRIORITY", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER"),
        *("_PID", "_SOURCE_MONOTONIC_TIMESTAMP", "_TRANSPORT"),
    }
)
"""Fields of a journal entry that are read."""

_PROPERTY = re.compile(rb" [A-Z_][A-Z0-9_]*=")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
_MONOTONIC = re.compile(
    r"\s*\[\s*(\d{1,12})\.(\d{1,9})(?:\s*<[\s\d.]{1,30}>)?\s*\]\s?"  # also dmesg -d, short-delta
)
_LEVEL = re.compile(r"\s*<(\d{1,3})>")
_DECODED = re.compile(r"\s*(kern|user|daemon|auth|syslog|local\d)\s*:\s*\w+\s*:\s*")
_CALLER = re.compile(r"\s*\[\s*[TC]\d+\]\s?")
_DATE = re.compile(r"\s*\[\w{3} \w{3} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)? \d{4}\]\s?")
_CONTAINER = re.compile(
    r"\s*(?:\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [FP] "  # Kubernetes (CRI)
    r"|[\w./-]+\s+\|\s"  # docker compose logs
    r"|\[(?:pod|container)/[^\]\s]+\]\s"  # kubectl logs --prefix
    r"|data: (?=\{))"  # journalctl -o json-sse
)
_SYSLOG_STAMP = re.compile(
    r"\s*(?:\w{3} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?"  # short, RFC 3164
    r"|(?:\w{3} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?:[A-Z]|[+-]\d)[\w+:-]*"  # short-full
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*?\]?"  # ISO 8601
    r"|\d{9,11}\.\d{3,9})\s+"  # short-unix
)
_RFC_5424 = re.compile(
    r"1 (?:\d{4}-\S+|-) \S+ (\S+) \S+ \S+ (?:-|(?:\[(?:[^\]\\]|\\.)*\])+) ?(?:\ufeff)?"
)
_HOST = r"(?:[\w.:-]*[\w.-]\s+)?"
_NAME = r"[\w./@()\\+~-]+"
"""A program, or a unit of systemd (journalctl -o with-unit): `app-foo\\x2dbar.scope`."""
_NAMED = rf"([^\s\[\]]+(?=\[\d+\]:)|{_NAME})(?:\[\d+\])?:\s+"
_SOURCE = re.compile(_HOST + _NAMED)
_SOURCE_ALONE = re.compile(_NAMED)
_SURE_SOURCE = re.compile(rf"{_HOST}(kernel|{_NAME}(?=\[\d+\]))(?:\[\d+\])?:\s+")
_FIELD_FRONT = re.compile(r"\"\s*:\s*\"?$|^\s*[A-Z_]+=$|,[^;]*;$")
"""A field of a document of which this line is a part, or a damaged record of /dev/kmsg."""
_QUOTES = re.compile(r"\baudit\b|\b(?:comm|exe|proctitle)=")
"""Of an audit line, which quotes the names of processes."""
_DMESG_KEYS: Final = frozenset({"pri", "fac", "time"})
_DIGITS = re.compile(r"[0-9]{1,19}")
_DRIVER = re.compile(r"(?:NVRM|nvidia-nvswitch\d*):\s")
"""Where a form names no source, the driver's own prefix follows the time stamp."""
_FILE = re.compile(r"[\w./-]*(?:log|messages|dmesg|journal)[\w.-]*:(?:\d+[:-])?(?=\S)")
"""A file's name, and the line's number, before a line that `grep` prints."""
_PROCESS = re.compile(r"\S\[\d+\]:|\b(?:user|daemon|auth|authpriv|cron|mail|syslog|local\d)[.:]")
"""A process, or a facility of processes, among the words before the driver's own prefix."""
_WRITER_KEYS: Final = frozenset(
    {"_PID", "pid", "process", "program", "appname", "app_name", "ident", "identifier", "facility"}
    | {"SYSLOG_IDENTIFIER"}
)
_KERNEL_WORDS: Final = frozenset({"kernel", "kern", "-", "", "0", "None"})
LINE_BYTES_MAX: Final = 1_048_576
"""A longer line is read in parts, so that no input fills the memory."""
DOCUMENT_BYTES_MAX: Final = 67_108_864
"""The kernel's ring buffer holds far less."""

_ENTRY = re.compile(
    rb"(?:\w{3} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\[]{0,40}\[s=[0-9a-f]+;|__CURSOR=s="
)
"""First line of an entry of `journalctl -o verbose` and `-o export`."""
_FIELD = re.compile(rb"(?: {4})?([A-Z_][A-Z0-9_]{0,63})=(.*)", re.DOTALL)


def parse_text(raw: bytes) -> KernelLogLine | None:
    """Read one line of text; None: an empty line, or a property line of a kmsg dump."""
    return _parse(raw, NESTING_MAX)


def _parse(raw: bytes, nesting: int) -> KernelLogLine | None:
    if _PROPERTY.match(raw):
        return None
    record = parse_kmsg(raw)
    if record is not None:
        return record
    text = raw[:JSON_CHARS_MAX].decode("utf-8", "replace").rstrip("\r\n")
    text = _COLOUR.sub("", text) if "\x1b" in text else text
    while found := _CONTAINER.match(text):
        text = text[found.end() :]
    if text.lstrip().startswith("{"):
        return _from_json(text, nesting)
    return _from_plain_text(text[:LINE_CHARS_MAX])


def _from_plain_text(text: str) -> KernelLogLine | None:
    """Take dates, host names, levels and time stamps off the front, in any order."""
    facility, stamp_us, priority, certain = KERNEL_FACILITY, -1, 6, False
    for _ in range(PREFIXES_MAX):
        source: re.Match[str] | None = None
        if found := _MONOTONIC.match(text):
            stamp_us = _microseconds(found)
            source = _SURE_SOURCE.match(text, found.end())
        elif found := _LEVEL.match(text):
            priority, facility = int(found.group(1)) & 7, int(found.group(1)) >> 3
            source = _RFC_5424.match(text, found.end())
        elif found := _DECODED.match(text):
            facility = KERNEL_FACILITY if found.group(1) == "kern" else USER_FACILITY
        elif found := _SYSLOG_STAMP.match(text):
            if not _DRIVER.match(text, found.end()):
                source = _SOURCE_ALONE.match(text, found.end()) or _SOURCE.match(text, found.end())
        elif not (found := _DATE.match(text) or _CALLER.match(text) or _FILE.match(text)):
            found = source = _SURE_SOURCE.match(text)
            if found is None:
                break
        certain = certain or source is not None or stamp_us >= 0 or found.re is _DATE
        if source is not None:
            facility = KERNEL_FACILITY if source.group(1) in ("kernel", "-") else USER_FACILITY
            found = source
        text = text[found.end() :]
    if not certain:
        text, facility, stamp_us = _without_front(text, facility)
    return _line(text, stamp_us, priority, facility)


def _without_front(text: str, facility: int) -> tuple[str, int, int]:
    """Take a front of an unknown form off: a console's prompt, a host's name, `key="value` pairs.

    Give the rest, its facility and its time stamp. A part of a document stays: what its other
    fields say of the writer is not known. So does what the kernel quotes of a process.
    """
    found = _DRIVER.search(text)
    front = text[: found.start()] if found is not None else ""
    if found is None or not front or _FIELD_FRONT.search(front) or _QUOTES.search(front):
        return text, facility, -1
    stamp = _MONOTONIC.search(front)
    stamp_us = _microseconds(stamp) if stamp is not None else -1
    if _PROCESS.search(front):
        facility = USER_FACILITY
    text = text[found.start() :]
    return text.rstrip().removesuffix('"') if '"' in front else text, facility, stamp_us


def _microseconds(stamp: re.Match[str]) -> int:
    return int(stamp.group(1)) * 1_000_000 + int(stamp.group(2)[:6].ljust(6, "0"))


def _from_json(text: str, nesting: int) -> KernelLogLine | None:
    """Read an entry of `journalctl -o json`, `dmesg --json` or a container's JSON log."""
    try:
        entry = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _from_plain_text(text[:LINE_CHARS_MAX])
    return _from_entry(entry, text, nesting) if isinstance(entry, dict) else None


def _from_entry(entry: dict[str, Any], text: str, nesting: int) -> KernelLogLine | None:
    if isinstance(log := entry.get("log"), str):
        return _parse(log.encode(), nesting - 1) if nesting else None
    if "MESSAGE" not in entry and not ("msg" in entry and _DMESG_KEYS & entry.keys()):
        return _from_wrapped(entry, text, nesting)
    if "msg" in entry:
        number = _number(entry.get("pri"), 6)
        facility = number >> 3 if entry.get("fac") is None else _facility(entry["fac"])
        stamp = entry.get("time")
        stamp_us = int(stamp * 1e6) if isinstance(stamp, float | int) and stamp >= 0 else -1
        return _line(_text(entry["msg"]), stamp_us, number & 7, facility)
    stamp_us = _number(entry.get("_SOURCE_MONOTONIC_TIMESTAMP"), -1)
    priority, facility = _number(entry.get("PRIORITY"), 6), _journal_facility(entry)
    return _line(_text(entry["MESSAGE"]), stamp_us, priority, facility)


def _from_wrapped(entry: dict[str, Any], text: str, nesting: int) -> KernelLogLine | None:
    """Read the entry, or the line, that a log service wraps in fields of its own."""
    if not nesting:
        return None
    values = [each for value in entry.values() for each in _flat(value)]
    for value in values:
        line: KernelLogLine | None = None
        if isinstance(value, dict):
            line = _from_entry(value, text, nesting - 1)
        elif isinstance(value, str) and _DRIVER.search(value):
            line = _parse(value.encode(), nesting - 1)
        if line is not None and _DRIVER.search(line.text) and line.text != text:
            writers = {str(entry[key]) for key in _WRITER_KEYS & entry.keys()}
            return line if writers <= _KERNEL_WORDS else line._replace(facility=USER_FACILITY)
    return _line(text, -1, 6, KERNEL_FACILITY)  # an unknown document: what it says is counted


def _flat(value: Any) -> list[Any]:
    return value[:LISTED_MAX] if isinstance(value, list) else [value]


def _journal_facility(entry: dict[str, Any]) -> int:
    """Without `_TRANSPORT` (--output-fields), an entry that names no process is the kernel's."""
    match entry.get("_TRANSPORT"):
        case "kernel":
            return _number(entry.get("SYSLOG_FACILITY"), KERNEL_FACILITY)
        case None if "_PID" not in entry and entry.get("SYSLOG_IDENTIFIER", "kernel") == "kernel":
            return KERNEL_FACILITY
    return USER_FACILITY


def _line(text: str, stamp_us: int, priority: int, facility: int) -> KernelLogLine | None:
    text = unescape(text[:LINE_CHARS_MAX]).strip()
    if not text:
        return None
    return KernelLogLine(text=text, timestamp_us=stamp_us, priority=priority & 7, facility=facility)


def _text(value: Any) -> str:
    """Give a journal field as text: a string, or an array of bytes where it is not UTF-8."""
    if isinstance(value, list):
        return bytes(each & 0xFF for each in value if isinstance(each, int)).decode(
            errors="replace"
        )
    return _COLOUR.sub("", value) if isinstance(value, str) else ""


def _number(value: Any, missing: int) -> int:
    return int(value) if _DIGITS.fullmatch(str(value)) else missing


def _facility(name: Any) -> int:
    return KERNEL_FACILITY if name in ("kern", 0, "0") else USER_FACILITY


def read_entries(opened: BinaryIO) -> Iterator[bytes]:
    """Yield each entry of a log.

    Most programs print a line for an entry; journalctl and dmesg also print one over many lines, or
    many in one JSON document. Such entries become JSON on one line, as `journalctl -o json` prints
    it, for `log_formats`. What cannot be cut is passed on line by line, so that it is counted.
    """
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
