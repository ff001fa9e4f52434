"""Recognises GPU faults in kernel log text: XID, SXID, fallen off the bus, lost.

Turns text into a `RecognisedFault` with the metrics that health policies use. The health policy
rates a code. Pure; no text raises.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from agent.faults import nvlink_registers
from agent.faults.nvlink_registers import decode
from agent.observations import find_pci
from schemas.enums import NVLINK5_CODES, NVLINK_CODE, RECOVERY_ACTION_CODE, FaultKind
from schemas.node_events import Metric

MESSAGE_CHARS_MAX: Final = 1024
REGISTERS_MAX: Final = 8
EXCEPTION_CODE: Final = 13


@dataclass(frozen=True, slots=True)
class RecognisedFault:
    """One fault recognised in a line."""

    kind: FaultKind
    message: str
    code: int = 0
    pci: str = ""
    """`0000:3b:00`; empty where the line names no device."""
    subcode: str = ""
    metrics: dict[str, Metric] = field(default_factory=dict)
    detail_only: bool = False
    """A further line (registers, severity) about an SXID that was already recognised."""
    leads: bool = False
    """One of the lines of an XID 13 ahead of the one that names the process."""


_LEAD = r"^\W{0,4}(?:\[[^\]]{0,40}\]\s*)?"
_XID = re.compile(
    _LEAD + r"NVRM:\s*(?:\w+\s+)?Xid\s*(?:\(([^)]{1,80})\))?\s*:\s*(\d{1,6})(?!\d)\s*,?\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_SXID = re.compile(
    _LEAD + r"(?:NVRM:\s*)?nvidia-nvswitch(\d*)\s*:\s*SXid\s*"
    r"(?:\(([^)]{1,80})\))?\s*:\s*(\d{1,6})(?!\d)\s*,?\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_PCI_SHORT = re.compile(r"^(?:PCI:)?([0-9a-f]{4}):([0-9a-f]{2})$", re.IGNORECASE)
_NVRM = re.compile(_LEAD + r"(?:NVRM|nvidia)\b", re.IGNORECASE)
_FALLEN = re.compile(r"fallen off the bus", re.IGNORECASE)
_LOST = re.compile(
    r"GPU (?:is|has been) lost|GPU lost from the bus|NV_ERR_GPU_IS_LOST", re.IGNORECASE
)
_INSTANCE = re.compile(r"\bGPU-I:([0-9a-f]{1,4})", re.IGNORECASE)
_PID = re.compile(r"^pid=\s*'?([^,']{1,40}?)'?\s*(?:,\s*|$)", re.IGNORECASE)
_NAME = re.compile(r"^name=\s*([^,]{0,80}?)\s*(?:,\s*|$)", re.IGNORECASE)
_CHANNEL = re.compile(r"\bCh(?:annel)?(?:ID)?[ :]+(?:0x)?([0-9a-f]{1,8})\b", re.IGNORECASE)
_UNIT = re.compile(r"^([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*(?:/[A-Z0-9_]+)?|MSE Degraded)\b")
_SEVERITY = re.compile(r"\b(non-?\s?fatal|link fatal|fatal)\b", re.IGNORECASE)
_LINK = re.compile(r"\blink\s+(-?\d{1,3})\b", re.IGNORECASE)
_INJECTED = re.compile(r"\bi([01])\b")
_CROSS = re.compile(r"\b(XC[01])\b")
_REGISTERS = re.compile(r"\(\s*(0x[0-9a-f]{1,16}(?:[\s,]+0x[0-9a-f]{1,16})*)\s*\)", re.IGNORECASE)
_RESETS = re.compile(r"\bRST:\s*(Yes|No)\b(?:[,\s]+D-RST:\s*(Yes|No)\b)?", re.IGNORECASE)
_RECOVERY = re.compile(
    r"changed from\s+0x([0-9a-f]{1,8})\s*\(([^)]{0,60})\)\s*"
    r"to\s+0x([0-9a-f]{1,8})\s*\(([^)]{1,60})\)",
    re.IGNORECASE,
)
_SXID_DETAIL = re.compile(r"^(?:Severity \d|Data \{|Engine instance)", re.IGNORECASE)
_EXCEPTION = re.compile(r"\bGraphics (SM (?:Warp|Global) Exception\b.{0,160}|Exception: ESR\b)")
_MISMATCH = re.compile(r"API mismatch: the client has (?:the )?version", re.IGNORECASE)
_DEVICE_LINE = re.compile(
    _LEAD + r"NVRM:\s*(?:The NVIDIA GPU|GPU at|GPU)\s+(.{1,60})", re.IGNORECASE | re.DOTALL
)


def mentions_gpu(text: str) -> bool:
    """Return whether a line may be about a GPU; a cheap filter, since almost no line is."""
    return "NVRM" in text or "nvidia" in text or "Xid" in text


def recognise(text: str) -> RecognisedFault | None:
    """Return the fault of a kernel log line; None: none."""
    if not mentions_gpu(text):
        return None
    message = _printable(text)
    if found := _XID.match(text):
        return _xid(found.group(1) or "", int(found.group(2)), found.group(3), message)
    if found := _SXID.match(text):
        return _sxid(found, message)
    if not _NVRM.match(text):
        return None
    if _FALLEN.search(text):
        return RecognisedFault(kind="fallen_off_bus", pci=find_pci(text), message=message)
    if _LOST.search(text):
        return RecognisedFault(kind="gpu_lost", pci=find_pci(text), message=message)
    if _MISMATCH.search(text):
        return RecognisedFault(kind="probe_failed", subcode="mismatch", message=message)
    return None


def mentioned_device(text: str) -> str:
    """PCI address of the GPU that an information line is about.

    Drivers spread some messages over lines and name the GPU in the first alone.
    """
    if "NVRM" not in text:
        return ""
    found = _DEVICE_LINE.match(text)
    return find_pci(found.group(1)) if found else ""


def _where(text: str) -> str:
    """Parse the PCI address in the parentheses: `PCI:0000:3b:00`, `0000:03:00`, `0003:00`."""
    if short := _PCI_SHORT.match(text.strip()):
        return f"0000:{int(short.group(1), 16) & 0xFF:02x}:{short.group(2).lower()}"
    return find_pci(text)


def _xid(where: str, code: int, rest: str, message: str) -> RecognisedFault:
    metrics: dict[str, Metric] = {"xid_code": code}
    if found := _INSTANCE.search(where):
        metrics["gpu_instance"] = int(found.group(1), 16)
    if found := _PID.match(rest):
        if found.group(1).isascii() and found.group(1).isdigit():
            metrics["pid"] = int(found.group(1)[:18])
        rest = rest[found.end() :]
    if found := _NAME.match(rest):
        if found.group(1) and not found.group(1).startswith(("<", "(")):
            metrics["process"] = _printable(found.group(1))
        rest = rest[found.end() :]
    if found := _CHANNEL.search(rest):
        metrics["channel"] = found.group(1).lower()
    if found := _RESETS.search(rest):
        metrics["reset_required"] = found.group(1).lower() == "yes"
        if found.group(2):
            metrics["drain_reset_required"] = found.group(2).lower() == "yes"
    leads = _EXCEPTION.search(rest) if code == EXCEPTION_CODE else None
    if leads:
        # The driver names whatever process runs while it writes them.
        metrics = {"xid_code": code}
        if leads.group(1).startswith("SM"):
            metrics["exception"] = _printable(leads.group(1))
    return RecognisedFault(
        kind="xid",
        code=code,
        pci=_where(where),
        subcode=_subcode(code, rest, metrics),
        message=message,
        metrics=metrics,
        leads=leads is not None,
    )


def _subcode(code: int, rest: str, metrics: dict[str, Metric]) -> str:
    """Read what some codes say beyond their number; add it to `metrics`."""
    if code == NVLINK_CODE:
        return _nvlink(rest, metrics)
    if code in NVLINK5_CODES:
        return _nvlink5(rest, metrics)
    found = _RECOVERY.search(rest) if code == RECOVERY_ACTION_CODE else None
    if found is None:
        return ""
    subcode = _printable(found.group(4).strip())
    metrics["recovery_action"] = subcode
    metrics["recovery_action_code"] = int(found.group(3), 16)
    metrics["recovery_action_was"] = _printable(found.group(2).strip())
    return subcode


def _nvlink(rest: str, metrics: dict[str, Metric]) -> str:
    """Read `NVLink: fatal error detected on link 6(0x10000, 0x0, …)`; return the class."""
    if found := _LINK.search(rest):
        metrics["nvlink"] = int(found.group(1))
    found = _REGISTERS.search(rest)
    if found is None:
        return ""
    registers = re.split(r"[\s,]+", found.group(1))[:REGISTERS_MAX]
    metrics["registers"] = " ".join(registers).lower()
    values = [_register(each) for each in registers]
    if nvlink_registers.needs_fabric_reset(values):
        metrics["fabric_reset_required"] = True
    return nvlink_registers.classify(values) or ""


def _nvlink5(rest: str, metrics: dict[str, Metric]) -> str:
    """Read `NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000001 …)`; return the unit."""
    rest = rest.strip()
    unit = _UNIT.match(rest)
    if found := _SEVERITY.search(rest):
        metrics["severity"] = _severity(found.group(1))
    if found := _LINK.search(rest):
        metrics["nvlink"] = int(found.group(1))
    if found := _CROSS.search(rest):
        metrics["cross_contain"] = found.group(1)
    if found := _INJECTED.search(rest):
        metrics["injected"] = found.group(1) == "1"
    if found := _REGISTERS.search(rest):
        registers = re.split(r"[\s,]+", found.group(1))[:REGISTERS_MAX]
        metrics["intr_info"] = _register(registers[0])
        if len(registers) > 1:
            metrics["error_status"] = _register(registers[1])
        metrics["registers"] = " ".join(registers).lower()
    name = unit.group(1) if unit else ""
    info, status = metrics.get("intr_info", 0), metrics.get("error_status", -1)
    if name and isinstance(info, int) and isinstance(status, int):
        decoded = decode(name, info, status)
        if decoded is not None:
            metrics["resolution"] = decoded.resolution
            metrics["investigate"] = decoded.investigate
            metrics["decoded_severity"] = decoded.severity
    return name


def _sxid(found: "re.Match[str]", message: str) -> RecognisedFault:
    switch, where, code, rest = found.groups()
    rest = rest.strip()
    metrics: dict[str, Metric] = {"sxid_code": int(code)}
    if switch:
        metrics["nvswitch"] = int(switch[:6])
    detail = bool(_SXID_DETAIL.match(rest))
    subcode = ""
    if not detail:
        if severity := _SEVERITY.search(rest.split(",", 1)[0]):
            subcode = _severity(severity.group(1))
            metrics["severity"] = subcode
            metrics["fatal"] = subcode == "fatal"
        if link := _LINK.search(rest):
            metrics["nvlink"] = int(link.group(1))
    return RecognisedFault(
        kind="sxid",
        code=int(code),
        pci=_where(where or ""),
        subcode=subcode,
        message=message,
        metrics=metrics,
        detail_only=detail,
    )


def _severity(word: str) -> str:
    word = word.lower().replace(" ", "-")
    return "nonfatal" if word.startswith("non") else word


def _register(text: str) -> int:
    """Read a register; JSON readers keep 53 bits, and these have 32."""
    return int(text, 16) & 0xFFFF_FFFF


def _printable(text: str) -> str:
    """Cut, and keep to one line that can be sent as JSON."""
    text = text[:MESSAGE_CHARS_MAX].strip()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text).strip()
