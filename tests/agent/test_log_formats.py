"""Text formats of kernel logs: a fault is the same whatever program printed the line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.faults.kernel_log_scanner import KernelLogScanner
from agent.operator_tools import ParseCounts, parse, parse_file
from agent.sources.log_formats import parse_text

TEXT = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
JOURNAL = {
    "MESSAGE": TEXT,
    "PRIORITY": "3",
    "_TRANSPORT": "kernel",
    "_SOURCE_MONOTONIC_TIMESTAMP": "12500000",
}


@pytest.mark.parametrize(
    ("raw", "facility", "stamp_us"),
    [
        (TEXT, 0, -1),
        (f"[   12.500000] {TEXT}", 0, 12_500_000),
        (f"[   12.500000] [  T321] {TEXT}", 0, 12_500_000),
        (f"[Mon Nov 21 01:02:03 2026] {TEXT}", 0, -1),
        (f"<3>[   12.500000] {TEXT}", 0, 12_500_000),
        (f"<11>[   12.500000] {TEXT}", 1, 12_500_000),
        (f"kern  :err   : [   12.500000] {TEXT}", 0, 12_500_000),
        (f"user  :err   : [   12.500000] {TEXT}", 1, 12_500_000),
        (f"Nov 21 01:02:03 node-7 kernel: {TEXT}", 0, -1),
        (f"Nov 21 01:02:03 node-7.rack.example kernel: [   12.500000] {TEXT}", 0, 12_500_000),
        (f"Nov 21 01:02:03 node-7 trainer[99]: {TEXT}", 1, -1),
        (f"2026-11-21T01:02:03,123456+00:00 {TEXT}", 0, -1),
        (f"2026-11-21T01:02:03.123456+00:00 node-7 kernel: {TEXT}", 0, -1),
        (f"2026-11-21T01:02:03+0000 node-7 kernel: {TEXT}", 0, -1),
        (f"2026-11-21T01:02:03+0000 node-7 logger[5]: {TEXT}", 1, -1),
        (f"3,100,5000000,-;{TEXT}", 0, 5_000_000),
        # journalctl: -k --no-hostname, -o short-monotonic, short-full, short-unix, coloured
        (f"Nov 21 01:02:03 kernel: {TEXT}", 0, -1),
        (f"Nov 21 01:02:03 trainer[99]: {TEXT}", 1, -1),
        (f"[   12.500000] node-7 kernel: {TEXT}", 0, 12_500_000),
        (f"[   12.500000] kernel: {TEXT}", 0, 12_500_000),
        (f"[   12.500000] node-7 trainer[99]: {TEXT}", 1, 12_500_000),
        (f"Sat 2026-11-21 01:02:03 UTC node-7 kernel: {TEXT}", 0, -1),
        (f"Sat 2026-11-21 01:02:03.123456 CEST node-7 kernel: {TEXT}", 0, -1),
        (f"1795222923.123456 node-7 kernel: {TEXT}", 0, -1),
        (f"1795222923.123456 node-7 trainer[99]: {TEXT}", 1, -1),
        (f"Nov 21 01:02:03 node-7 kernel: \x1b[1;31m{TEXT}\x1b[0m", 0, -1),
        (f"\x1b[32m[   12.500000] \x1b[0m\x1b[31m{TEXT}\x1b[0m", 0, 12_500_000),
        (f"kernel: [   12.500000] {TEXT}", 0, 12_500_000),
        (f"kernel: {TEXT}", 0, -1),
        # RFC 5424
        (f"<3>1 2026-11-21T01:02:03.1+00:00 node-7 kernel - - - {TEXT}", 0, -1),
        (f'<3>1 2026-11-21T01:02:03Z node-7 kernel - - [a@1 b="c\\]"][d@2] {TEXT}', 0, -1),
        (f"<11>1 2026-11-21T01:02:03Z node-7 trainer 99 - - {TEXT}", 1, -1),
        # container runtimes
        (f"2026-11-21T01:02:03.123456789Z stdout F [   12.500000] {TEXT}", 0, 12_500_000),
        (f"2026-11-21T01:02:03.1Z stderr P Nov 21 01:02:03 node-7 kernel: {TEXT}", 0, -1),
        (f"dmesg-1  | [   12.500000] {TEXT}", 0, 12_500_000),
        (f"[pod/dmesg-x7/follow] [   12.500000] {TEXT}", 0, 12_500_000),
        (json.dumps({"log": f"[   12.500000] {TEXT}\n", "stream": "stdout"}), 0, 12_500_000),
        # JSON
        (json.dumps(JOURNAL), 0, 12_500_000),
        (json.dumps(JOURNAL | {"_TRANSPORT": "syslog"}), 1, 12_500_000),
        (json.dumps(JOURNAL | {"MESSAGE": list(TEXT.encode())}), 0, 12_500_000),
        (f"data: {json.dumps(JOURNAL)}", 0, 12_500_000),
        (json.dumps({"pri": 3, "time": 12.5, "msg": TEXT}), 0, 12_500_000),
        (json.dumps({"fac": "user", "pri": "err", "time": 12.5, "msg": TEXT}), 1, 12_500_000),
    ],
)
def test_text_forms_give_the_same_text(raw: str, facility: int, stamp_us: int):
    """Dmesg, journalctl and syslog fronts come off; what a process wrote is recognised."""
    line = parse_text(raw.encode())
    assert line is not None
    assert (line.text, line.facility, line.timestamp_us) == (TEXT, facility, stamp_us)


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_no_line_raises(data: bytes):
    """Whatever the line is, parsing it gives a value."""
    for raw in (data, b"{" + data, b'{"MESSAGE":' + data + b"}", b"<3>1 " + data):
        line = parse_text(raw)
        if line is not None:
            KernelLogScanner().scan(line)


def test_nested_wrappers_end():
    """A log line wrapped in JSON more often than any runtime does is dropped, not recursed into."""
    line = TEXT
    for _ in range(6):
        line = json.dumps({"log": line})
    assert parse_text(line.encode()) is None
    assert parse_text(b'{"log":' * 5000) is not None


def test_the_summary_counts_what_was_not_understood():
    """A fault in an unknown form is reported as unread instead of vanishing."""
    counts = ParseCounts()
    lines = [
        f"[   12.500000] {TEXT}",
        "[   12.600000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "[   12.700000] usb 1-1: new device",
        "[   12.800000] NVRM: Xid 79 at PCI address 0000:3b:00",
        f"Nov 21 01:02:03 node-7 trainer[99]: {TEXT}",
    ]
    faults = list(parse((each.encode() for each in lines), counts))
    assert [79] == [each["code"] for each in faults]
    assert (5, 1, 1, 1, 1) == (
        counts.lines,
        counts.faults,
        counts.unread,
        counts.other_driver_lines,
        counts.from_processes,
    )
    assert "1 lines name an XID and could not be parsed" in counts.summary()


def test_dmesg_json_is_one_document(tmp_path):
    """`dmesg --json` prints an object over many lines; each entry is a line of the log."""
    entries = [
        {"pri": 6, "time": 0.0, "msg": "Linux version 6.1"},
        {"pri": 3, "time": 12.5, "msg": TEXT},
    ]
    file = tmp_path / "dmesg.json"
    file.write_text(json.dumps({"dmesg": entries}, indent=3))
    written: list[str] = []
    reported: list[str] = []
    parse_file(str(file), written.append, reported.append)
    assert [79] == [json.loads(each)["code"] for each in written]
    assert reported[0].startswith("2 lines read: 1 faults")
