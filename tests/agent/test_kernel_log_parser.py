"""Kernel log forms: what a line says is the same however it was written down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.faults.kernel_log_scanner import KernelLogScanner
from agent.faults.xid_patterns import recognise
from agent.observations import KernelLogLine
from agent.sources.kernel_log_parser import parse_kmsg, split_records
from agent.sources.log_formats import parse_text

TEXT = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (f"3,100,5000000,-;{TEXT}", KernelLogLine(TEXT, 100, 5_000_000, 3, 0)),
        (f"3,100,5000000,-;{TEXT}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n", None),
        (f"6,7,8,-,caller=T123;{TEXT}", KernelLogLine(TEXT, 7, 8, 6, 0)),
        (f"11,7,8,c;{TEXT}", KernelLogLine(TEXT, 7, 8, 3, 1)),
        ("6,1,2,-;two\\x0alines", KernelLogLine("two\nlines", 1, 2, 6, 0)),
        ("6,1,2,-;caf\\xc3\\xa9", KernelLogLine("café", 1, 2, 6, 0)),
        ("6,1,2,-;", KernelLogLine("", 1, 2, 6, 0)),
    ],
)
def test_a_kmsg_record_is_read(record: str, expected: KernelLogLine | None):
    """Prefix, sequence and stamp are read; property lines and escapes are not part of the text."""
    if expected is None:
        expected = KernelLogLine(TEXT, 100, 5_000_000, 3, 0)
    assert parse_kmsg(record.encode()) == expected


@pytest.mark.parametrize(
    "record",
    [b"", b"\n", b" SUBSYSTEM=pci", b"6,1;x", b"x,1,2,-;x", b"6,-1,2,-;x", b"6,1,2,-", b"\xff\xfe"],
)
def test_what_is_no_record_is_none(record: bytes):
    """A malformed line is not a record, and not an error."""
    assert parse_kmsg(record) is None


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes):
    """Reading gives a value whatever bytes come."""
    scanner = KernelLogScanner()
    for line in (parse_kmsg(data), parse_text(data), parse_kmsg(b"3,1,2,-;" + data)):
        if line is not None:
            scanner.scan(line)
    split_records(data)


PIECES = [
    "NVRM:", "Xid", "(PCI:0000:3b:00)", ": ", "79", "145", "154", ",", "pid=", "name=",
    "Link ", "0x1", "(0x1 0x2)", "nvidia-nvswitch3: ", "SXid ", "20034", "Fatal", "RLW_REMAP", " ",
    "changed from 0x0 (None) to 0x2 (Drain P2P)", "fallen off the bus", "٣", "\\xff", "\ud800",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_mangled_fault_line_raises(text: str):
    """Pieces of real lines in any order never raise, and what is made of them is sound JSON."""
    sighting = recognise(text)
    if sighting is not None:
        sighting.message.encode()
        assert 0 <= sighting.code <= 999_999


@given(
    st.lists(st.binary(min_size=1, max_size=20).filter(lambda b: b"\n" not in b), max_size=8),
    st.integers(0, 100),
)
def test_records_cut_anywhere_come_out_whole(lines: list[bytes], cut: int):
    """Where a chunk ends does not change the records, properties aside."""
    lines = [line for line in lines if not line.startswith(b" ")]
    data = b"".join(line + b"\n" for line in lines)
    first, rest = split_records(data[:cut])
    second, rest = split_records(rest + data[cut:])
    assert (first + second, rest) == (lines, b"")
