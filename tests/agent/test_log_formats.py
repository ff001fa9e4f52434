"""Text formats of kernel logs: a fault is the same whatever program printed the line."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.faults.kernel_log_scanner import KernelLogScanner
from agent.operator_tools import ParseCounts, parse, parse_file
from agent.sources.log_formats import parse_text, read_entries

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
        (f"Sat 2026-11-21 04:02:03 +03 node-7 kernel: {TEXT}", 0, -1),
        (f"Fri 2026-11-20 22:02:03 -03 node-7 trainer[99]: {TEXT}", 1, -1),
        (f"Sat 2026-11-21 06:47:03.123456 +0545 node-7 kernel: {TEXT}", 0, -1),
        (f"[   12.500000                ] node-7 kernel: {TEXT}", 0, 12_500_000),
        (f"[   12.500000 <    1.000000 >] node-7 kernel: {TEXT}", 0, 12_500_000),
        (f"[   12.500000 <    1.000000 >] node-7 trainer[99]: {TEXT}", 1, 12_500_000),
        (f"[   12.500000 <    0.000005>] {TEXT}", 0, 12_500_000),
        (f"Sat 2026-11-21 05:02:03 +04 node-7 init.scope[1]: {TEXT}", 1, -1),
        (f"Sat 2026-11-21 01:02:03 UTC node-7 app-foo\\x2dbar:1.scope[7]: {TEXT}", 1, -1),
        (f"Nov 21 01:02:03 node-7 (systemd)[99]: {TEXT}", 1, -1),
        (f"[   12.500000] node-7 (systemd)[99]: {TEXT}", 1, 12_500_000),
        # talosctl, busybox logread, serial consoles, wall, cluster shells, grep
        (f"10.0.0.7: kern: err: [2026-11-21T01:02:03.5Z]: {TEXT}", 0, -1),
        (f"10.0.0.7: user: err: [2026-11-21T01:02:03.5Z]: {TEXT}", 1, -1),
        (f"Nov 21 01:02:03 node-7 kern.err kernel: [   12.500000] {TEXT}", 0, 12_500_000),
        (f"Nov 21 01:02:03 node-7 user.err trainer: {TEXT}", 1, -1),
        (f"node-7 login: [   12.500000] {TEXT}", 0, 12_500_000),
        (f" kernel:[   12.500000] {TEXT}", 0, 12_500_000),
        (f"node-7: [   12.500000] {TEXT}", 0, 12_500_000),
        (f"/var/log/kern.log-1:88:Nov 21 01:02:03 node-7 kernel: {TEXT}", 0, -1),
        (f"kern.log:Nov 21 01:02:03 node-7 trainer[99]: {TEXT}", 1, -1),
        (f'time="2026-11-21T01:02:03Z" level=error msg="{TEXT}"', 0, -1),
        (f"[  +0.000005] {TEXT}", 0, -1),
        # log services
        (json.dumps({"jsonPayload": JOURNAL, "resource": {"type": "node"}}), 0, 12_500_000),
        (json.dumps({"jsonPayload": JOURNAL | {"_TRANSPORT": "stdout"}}), 1, 12_500_000),
        (json.dumps({"textPayload": TEXT}), 0, -1),
        (json.dumps({"_source": {"message": f"[   12.500000] {TEXT}"}}), 0, 12_500_000),
        (json.dumps({"events": [{"id": 1}, {"message": TEXT}]}), 0, -1),
        (json.dumps({"message": TEXT, "program": "trainer"}), 1, -1),
        (json.dumps({"message": TEXT, "program": "kernel"}), 0, -1),
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
        (json.dumps(JOURNAL | {"SYSLOG_FACILITY": "3"}), 3, 12_500_000),  # written to /dev/kmsg
        (json.dumps({"__CURSOR": "s=1", "_BOOT_ID": "b", "MESSAGE": TEXT}), 0, -1),
        (json.dumps({"SYSLOG_IDENTIFIER": "trainer", "MESSAGE": TEXT}), 1, -1),
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
    """Parsing gives a value, whatever the line is."""
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


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"[   12.500000] {TEXT}", 0),
        ("[   12.6] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15", 0),
        ("[   12.8] NVRM: Xid 79 at PCI address 0000:3b:00", 1),
        ("[   12.8] nvidia-nvswitch0: SXid 12028 nonfatal", 1),
        ("[   12.8] pcieport: nvidia 0000:3b:00.0 has fallen off the bus", 1),
        (f"Nov 21 01:02:03 node-7 trainer[99]: {TEXT}", 0),
    ],
)
def test_a_fault_that_is_not_parsed_is_an_exit_status(tmp_path: Path, line: str, status: int):
    """A script that reads a log learns that a fault was missed; other lines do not matter."""
    file = tmp_path / "log"
    file.write_text(f"{line}\n", encoding="utf-8")
    assert parse_file(str(file), str, str) == status


TEXT_OF_PROCESS = TEXT.replace("79", "94")
VERBOSE = f"""Sat 2026-11-21 05:02:03.123456 +04 [s=319426e6;i=1;b=aaaa;m=bebc20]
    _HOSTNAME=node-7
    _TRANSPORT=kernel
    SYSLOG_IDENTIFIER=kernel
    MESSAGE={TEXT}
Sat 2026-11-21 05:02:04.123456 +04 [s=319426e6;i=2;b=aaaa;m=cdfe60]
    MESSAGE={TEXT_OF_PROCESS}
    _TRANSPORT=syslog
    _CMDLINE=/usr/bin/python train.py
"""
EXPORT = f"""__CURSOR=s=319426e6;i=1;b=aaaa;m=bebc20;t=660bee;x=20a8ab8d
__REALTIME_TIMESTAMP=1795222923123456
_TRANSPORT=kernel
MESSAGE={TEXT}

__CURSOR=s=319426e6;i=2;b=aaaa;m=cdfe60;t=660bee;x=45635db6
_TRANSPORT=syslog
MESSAGE={TEXT_OF_PROCESS}

"""
JOURNALS = [JOURNAL, {"_TRANSPORT": "syslog", "_PID": "99", "MESSAGE": TEXT_OF_PROCESS}]
RING = [
    {"pri": 3, "time": 12.5, "msg": TEXT},
    {"fac": "user", "pri": "err", "time": 13.5, "msg": TEXT_OF_PROCESS},
]


@pytest.mark.parametrize(
    "log",
    [
        "\n".join(json.dumps(each, indent="\t", separators=(",", " : ")) for each in JOURNALS),
        "\n".join(json.dumps(each, indent=8) for each in JOURNALS) + "\n",
        "".join(f"\x1e{json.dumps(each)}\n" for each in JOURNALS),
        json.dumps(JOURNALS),
        json.dumps(JOURNALS, indent=2),
        VERBOSE,
        EXPORT,
        json.dumps({"dmesg": RING}),
        json.dumps({"dmesg": RING}, indent=3),
        json.dumps({"dmesg": [{"pri": 6, "time": 1.0, "msg": "x" * 2_000_000}, *RING]}),
    ],
    ids=["pretty", "spaces", "seq", "array", "jq", "verbose", "export", "line", "dmesg", "long"],
)
def test_entries_over_many_lines_are_read(log: str, tmp_path: Path):
    """The kernel's fault is found; what a process wrote is counted as that."""
    found, counted = read_log(log, tmp_path)
    assert [79] == [each["code"] for each in found]
    assert "1 faults, 0 other lines mention the driver, 1 ignored" in counted


@pytest.mark.parametrize(
    "log",
    [
        json.dumps(JOURNAL, indent=8)[:-2],
        json.dumps({"dmesg": RING[:1]}, indent=3)[:-2],
        json.dumps({"dmesg": [{"pri": 6, "msg": "x" * 9000}, *RING[:1]]})[:-9],
        "\n".join(VERBOSE.splitlines()[1:5]),
        "\n".join(EXPORT.splitlines()[1:4]),
        json.dumps({"event": {"text": "NVRM: Xid 79 at PCI address 0000:3b:00"}}),
    ],
    ids=["pretty", "dmesg", "line", "verbose", "export", "unknown"],
)
def test_what_cannot_be_cut_into_entries_is_counted(log: str, tmp_path: Path):
    """A part of an entry, or an unknown document, is not passed over in silence."""
    found, counted = read_log(log, tmp_path)
    assert [] == found
    assert "1 lines name an XID and could not be parsed" in counted


@given(st.lists(st.sampled_from([*VERBOSE.splitlines(), *EXPORT.splitlines(), "{", "[", "}", "x"])))
def test_no_line_is_lost_between_entries(lines: list[str]):
    """Each mention of the driver is counted or reported once."""
    counts = ParseCounts()
    log = io.BytesIO("\n".join(lines).encode())
    found = list(parse(read_entries(log), counts))
    named = sum(each.strip().startswith("MESSAGE=") for each in lines)
    assert named >= len(found) + counts.unread + counts.from_processes
    if named:
        assert found or counts.unread or counts.from_processes


def read_log(log: str, tmp_path: Path) -> tuple[list[dict[str, Any]], str]:
    """Parse a file; return the faults and the summary."""
    (tmp_path / "log").write_text(log)
    written: list[str] = []
    reported: list[str] = []
    parse_file(str(tmp_path / "log"), written.append, reported.append)
    return [json.loads(each) for each in written], reported[0]
