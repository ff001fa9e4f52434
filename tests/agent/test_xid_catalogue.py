"""Every code of the catalogues in every form drivers wrote it, and the whole NVLink 5 table."""

import csv
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from agent.code_names import name_of
from agent.faults.kernel_log_scanner import KernelLogScanner
from agent.faults.nvlink_registers import decode
from agent.faults.xid_patterns import recognise
from agent.sources.log_formats import parse_text
from services.settings.packaged_files import resource

TABLE: Final = Path(__file__).parent / "data" / "nvlink5-decode.csv"
PCI: Final = "0000:3b:00"


def catalogue(name: str) -> dict[int, dict[str, Any]]:
    """Read a catalogue that ships in config/."""
    codes = yaml.safe_load(resource(name).read_text(encoding="utf-8"))["codes"]
    return {each["code"]: each for each in codes}


XIDS: Final = catalogue("xid-catalog.yaml")
SXIDS: Final = catalogue("sxid-catalog.yaml")

XID_FORMS: Final = [
    "NVRM: Xid (PCI:0000:3b:00): {code}, pid=1234, name=python, {text}",
    "NVRM: Xid (PCI:0000:3B:00): {code}, pid='<unknown>', name=<unknown>, {text}",
    "NVRM: Xid (PCI:0000:3b:00.0): {code}, {text}",
    "NVRM: Xid (0000:3b:00): {code}, {text}",
    "NVRM: Xid (003b:00): {code}, 0003 00000000 00008297",
    "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): {code}, pid=7, name=a b c, {text}",
    "NVRM: Xid (PCI:0000:3b:00): {code}",
    "[nvidia] NVRM: Xid (PCI:0000:3b:00): {code}, Ch 0000001e, {text}",
]
SXID_FORMS: Final = [
    "nvidia-nvswitch3: SXid (PCI:0000:3b:00.0): {code}, Fatal, Link 32 {text}",
    "nvidia-nvswitch: SXid (PCI:0000:3b:00.0): {code}, Non-fatal, Link 46 {text} (First)",
    "NVRM: nvidia-nvswitch0: SXid (PCI:0000:3b:00): {code}, {text}",
]
FRONTS: Final = [
    "{line}",
    "[12345.678901] {line}",
    "[12345.678901] [  T321] {line}",
    "<3>[12345.678901] {line}",
    "kern  :err   : [12345.678901] {line}",
    "Nov 21 01:02:03 node-7 kernel: {line}",
    "2026-11-21T01:02:03.123456+00:00 node-7 kernel: {line}",
    "3,100,5000000,-;{line}",
    "3,100,5000000,-,caller=T9;{line}",
]


@pytest.mark.parametrize("code", sorted(XIDS))
def test_every_live_xid_is_read_in_every_form(code: int):
    """Code and address come out of each form a line has had, behind each front it may have."""
    text = XIDS[code]["description"]
    lines = [form.format(code=code, text=text) for form in XID_FORMS]
    found = [
        KernelLogScanner().scan(parsed)
        for line in lines
        for front in FRONTS
        if (parsed := parse_text(front.format(line=line).encode())) is not None
    ]
    assert [(e.kind, e.code, e.pci, e.metrics["xid_code"]) for e in found if e is not None] == [
        ("xid", code, PCI, code)
    ] * len(XID_FORMS) * len(FRONTS)
    assert name_of("xid", code) != f"XID {code}"


@pytest.mark.parametrize("code", sorted(SXIDS))
def test_every_sxid_is_read_in_every_form(code: int):
    """The same for the switches' codes, with the severity that the line gives."""
    found = [recognise(form.format(code=code, text=SXIDS[code]["name"])) for form in SXID_FORMS]
    assert [(e.kind, e.code, e.pci, e.subcode) for e in found if e is not None] == [
        ("sxid", code, PCI, "fatal"),
        ("sxid", code, PCI, "nonfatal"),
        ("sxid", code, PCI, ""),
    ]
    assert name_of("sxid", code) != f"SXID {code}"


def table() -> list[dict[str, str]]:
    """Read NVIDIA's decoding table (October 2025), reduced to what is decided by it."""
    with TABLE.open(encoding="ascii", newline="") as file:
        return list(csv.DictReader(file))


def registers(mask: str) -> list[int]:
    """Give values that a mask of the table covers: what it leaves open all 0, and all 1."""
    return [int(mask.replace("-", open_), 2) for open_ in "01"] if mask else []


def statuses(text: str) -> list[int]:
    """Give error statuses that a row covers."""
    return [0, 1, 0xFFFFFFFF] if text == "any" else [int(each, 16) for each in text.split("/")]


ROWS: Final = table()


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{r['unit']} {r['error_status']} {n}" for n, r in enumerate(ROWS)]
)
def test_every_row_of_the_nvlink_table_is_decoded(row: dict[str, str]):
    """Each row's registers, in both layouts and under each name of the unit, give its meaning."""
    expected = (row["resolution"], row["investigate"], row["severity"])
    escalated = (row["escalated_resolution"], row["investigate"], row["severity"])
    for layout in ("before_r575", "since_r575"):
        cases = [(value, expected) for value in registers(row[f"intr_info_{layout}"])]
        cases += [(value, escalated) for value in registers(row[f"escalated_{layout}"])]
        for unit in row["unit"].split("/"):
            for info, meaning in cases:
                for status in statuses(row["error_status"]):
                    found = decode(unit, info, status)
                    assert found is not None
                    assert (found.resolution, found.investigate, found.severity) == meaning


@pytest.mark.parametrize("row", ROWS[::7], ids=[r["unit"] for r in ROWS[::7]])
def test_a_line_carries_what_the_table_says(row: dict[str, str]):
    """The meaning decoded from a whole kernel log line reaches the fault's metrics."""
    info, status = registers(row["intr_info_since_r575"])[0], statuses(row["error_status"])[0]
    found = recognise(
        f"NVRM: Xid (PCI:{PCI}): {row['xid']}, {row['unit']}  Nonfatal XC0 i0 Link 08 "
        f"(0x{info:08x} 0x{status:08x} 0x00000000 0x00000000 0x00000000 0x00000000)"
    )
    assert found is not None
    assert (found.code, found.metrics["resolution"], found.metrics["decoded_severity"]) == (
        int(row["xid"]),
        row["resolution"],
        row["severity"],
    )


@pytest.mark.parametrize(
    ("unit", "intr_info", "status", "resolution", "severity"),
    [
        ("RLW_REMAP", 0x82, 0x40 | 0x1, "RESET_GPU", "fatal"),
        ("RLW_REMAP", 0x82, 0x100 | 0x1, "XID_154_EVAL", "nonfatal"),
        ("RLW_REMAP", 0x82, 0x100 | 0x200, "IGNORE", "nonfatal"),
        ("SAW_MVB", 0x21, 0x20 | 0x10 | 0x8, "RESET_GPU", "fatal"),
        ("TLW_TX_PIPE1", 0, 0x80000000 | 0x4, "RESET_GPU", "fatal"),
        ("RLW_TAGSTATE", 0, 0x10000 | 0x1, "IGNORE", "nonfatal"),
        ("RLW_RXPIPE", 0x86, 0x8 | 0x2, "RESET_GPU", "nonfatal"),
        ("RLW_RXPIPE", 0x06, 0x8 | 0x2, "IGNORE", "nonfatal"),
        ("RLW_RXPIPE", 0x86, 0x80000000 | 0x8, "IGNORE", "nonfatal"),
        ("RLW_REMAP", 0x82, 0x40 | 0x1000, "RESET_GPU", "fatal"),  # 0x1000 is not listed
        ("RLW_REMAP", 0x82, 0x100 | 0x1000, None, None),
        ("RLW_REMAP", 0x82, 0, None, None),
        ("NETIR_BER_EVENT", 0, 3, "IGNORE", "nonfatal"),  # a code, not bits
        ("NETIR_MFDE_EVENT", 0, 3, "IGNORE", "nonfatal"),
        ("NETIR_MFDE_EVENT", 0, 6, None, None),
    ],
)
def test_the_worst_of_several_errors_decides(
    unit: str, intr_info: int, status: int, resolution: str | None, severity: str | None
):
    """An error status has a bit for each error; one that needs a reset is not hidden by another."""
    found = decode(unit, intr_info, status)
    meaning = (found.resolution, found.severity) if found else (None, None)
    assert meaning == (resolution, severity)


def test_what_the_table_does_not_have_is_not_decoded():
    """An unknown unit, status or reason has no meaning, and is no error."""
    assert len(ROWS) == 95
    assert decode("NEW_UNIT", 0, 1) is None
    assert decode("TREX", 0x8000000E, 0x40) is None
    assert decode("NETIR_LINK_EVT", 0b111111 << 20, 0) is None
