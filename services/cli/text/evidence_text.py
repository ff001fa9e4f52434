"""Formats evidence as a summary and as files, for operators and vendor support. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from schemas.duration import format_duration
from schemas.evidence_bundles import EvaluatedFault, EvidenceBundle
from schemas.gpu_samples import GpuSample
from schemas.messages import encode
from services.bus.port import Stored
from services.cli.text import tables
from services.cli.text.styles import INDENT
from services.cli.text.table_layout import columns
from services.fleet_client.node_timeline import timeline_rows
from services.operator_text.quantities import gpu_hours
from services.operator_text.safe_text import escape_line

LINES_SHOWN_MAX: Final = 20
FAULTS_SHOWN_MAX: Final = 20
README: Final = "README.txt"
FILES: Final[dict[str, str]] = {
    README: "this summary",
    "kernel.log": "the kernel log lines behind the faults, verbatim",
    "faults.json": "every fault, decoded, with its verdict",
    "samples.jsonl": "GPU readings around the fault, one sample per line",
    "gpus.json": "index, UUID, serial number and PCI address of every GPU",
    "checks.json": "boot checks and diagnostics",
    "timeline.txt": "what happened, with milliseconds",
    "timeline.jsonl": "the same messages in full",
    "bundle.json": "everything in one file",
}


def stamp(at: datetime | None) -> str:
    """Return a time in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC" if at else "-"


def files(bundle: EvidenceBundle) -> dict[str, bytes]:
    """Return the files of a bundle, by name."""
    lines = (f"{stamp(each.time)}  {escape_line(each.line)}" for each in bundle.kernel_lines)
    kernel = "".join(f"{each}\n" for each in lines)
    parts: dict[str, bytes] = {
        "kernel.log": kernel.encode(),
        "faults.json": _pretty(b"[" + b",".join(encode(each) for each in bundle.faults) + b"]"),
        "samples.jsonl": b"".join(encode(each) + b"\n" for each in bundle.samples),
        "gpus.json": _pretty(msgspec.json.encode(bundle.gpus)),
        "checks.json": _pretty(b"[" + b",".join(encode(each) for each in bundle.checks) + b"]"),
        "timeline.txt": f"{timeline_text(bundle)}\n".encode(),
        "timeline.jsonl": b"".join(msgspec.json.encode(each) + b"\n" for each in bundle.timeline),
        "bundle.json": _pretty(encode(bundle)),
    }
    listed = "\n".join(f"  {name:<16} {what}" for name, what in FILES.items())
    readme = f"{summary(bundle)}\n\nFILES\n{listed}\n"
    return {README: readme.encode(), **parts}


def _pretty(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=2) + b"\n"


def timeline_text(bundle: EvidenceBundle) -> str:
    """The timeline as `navarch timeline` prints it."""
    stored = [
        Stored(each.subject, msgspec.json.encode(each.message), each.sequence, each.time)
        for each in bundle.timeline
    ]
    return tables.timeline(timeline_rows(stored), colour=False)


# --- the summary ---------------------------------------------------------------------------------


def summary(bundle: EvidenceBundle, width: int = 0) -> str:
    """Return what happened to which machine, on one page; `width`: of the terminal."""
    title = f"FAULT REPORT  {bundle.node} (pool {bundle.pool}): {bundle.fault_signature}"
    parts = [
        escape_line(title),
        _facts("WHAT HAPPENED", _outage_facts(bundle)),
        _facts("MACHINE", _machine(bundle)),
        _gpus(bundle, width),
        _kernel_log(bundle),
        _faults(bundle, width),
        _readings(bundle, width),
        _checks(bundle),
        _omitted(bundle),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(title: str, facts: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {key:<20} {escape_line(value)}" for key, value in facts if value]
    return "\n".join([title, *lines])


def _outage_facts(bundle: EvidenceBundle) -> list[tuple[str, str]]:
    verdict = bundle.verdict
    facts = [("out of service since", stamp(bundle.unhealthy_at))]
    if verdict is not None:
        facts += [
            ("judged", f"{verdict.status}: {verdict.reason}"),
            ("by rule", f"{verdict.rule or '-'} (health policy {verdict.policy or '-'})"),
            ("action", verdict.action),
        ]
    match bundle.outcome:
        case "open":
            ended = "not yet: this is the state so far"
        case "recovered":
            ended = "recovered without remediation"
        case "replaced":
            ended = f"replaced by {bundle.new_node}, in service since {stamp(bundle.restored_at)}"
        case "reset":
            ended = f"its GPUs were reset; returned to service at {stamp(bundle.restored_at)}"
        case "rebooted":
            ended = f"rebooted; returned to service at {stamp(bundle.restored_at)}"
        case "uncordoned":
            ended = f"returned to service at {stamp(bundle.restored_at)}"
        case "removed":
            ended = f"removed without a replacement, {stamp(bundle.restored_at)}"
    facts.append(("ended", ended))
    if bundle.restored_at is not None:
        seconds = (bundle.restored_at - bundle.unhealthy_at).total_seconds()
        cost = f"{format_duration(seconds)}, {gpu_hours(bundle.lost_gpu_hours)} GPU-hours lost"
        if bundle.dollars_per_hour:
            dollars = seconds / 3600 * bundle.dollars_per_hour
            cost += f", ${dollars:.2f} paid for them"
        facts.append(("out of service for", cost))
    facts.append(("saga", bundle.saga))
    return facts


def _machine(bundle: EvidenceBundle) -> list[tuple[str, str]]:
    place = "/".join(part for part in (bundle.region, bundle.zone) if part)
    gone = bundle.terminated_at
    price = f"${bundle.dollars_per_hour:g} an hour" if bundle.dollars_per_hour else ""
    return [
        ("provider", bundle.provider),
        ("instance id", bundle.provider_id),
        ("instance type", bundle.instance_type),
        ("location", place),
        ("host name", bundle.hostname),
        ("address", bundle.address),
        ("boot id", bundle.boot_id),
        ("NVIDIA driver", bundle.driver_version),
        ("Navarch agent", bundle.agent_version),
        ("running since", stamp(bundle.running_at) if bundle.running_at else ""),
        ("terminated", stamp(gone) if gone else ""),
        ("price", price),
    ]


def _gpus(bundle: EvidenceBundle, width: int) -> str:
    if not bundle.gpus:
        return ""
    counts: dict[str, int] = {}
    for each in bundle.faults:
        key = each.fault.gpu_uuid or str(each.fault.gpu_index)
        counts[key] = counts.get(key, 0) + 1
    rows = [
        (
            str(gpu.index),
            str(counts.get(gpu.uuid) or counts.get(str(gpu.index)) or "-"),
            gpu.serial or "-",
            gpu.uuid or "-",
            gpu.pci or "-",
            gpu.name or "-",
        )
        for gpu in bundle.gpus
    ]
    head = ("gpu", "faults", "serial", "uuid", "pci", "name")
    return f"GPUS\n{_table(head, rows, width)}"


def _kernel_log(bundle: EvidenceBundle) -> str:
    if not bundle.kernel_lines:
        return ""
    shown = bundle.kernel_lines[:LINES_SHOWN_MAX]
    lines = [f"  {stamp(each.time)}  {escape_line(each.line)}" for each in shown]
    if more := len(bundle.kernel_lines) - len(shown):
        lines.append(f"  … {more} more in kernel.log")
    return "\n".join(["KERNEL LOG", *lines])


def _faults(bundle: EvidenceBundle, width: int) -> str:
    if not bundle.faults:
        return ""
    shown = bundle.faults[:FAULTS_SHOWN_MAX]
    head = ("seen", "fault", "gpu", "serial", "judged", "rule", "witness")
    text = _table(head, [_fault(each) for each in shown], width)
    if more := len(bundle.faults) - len(shown):
        text += f"\n  … {more} more in faults.json"
    return f"FAULTS\n{text}"


def _fault(evaluated: EvaluatedFault) -> tuple[str, ...]:
    fault = evaluated.fault
    return (
        stamp(fault.time),
        f"{fault.kind} {fault.code}" if fault.code else fault.kind,
        str(fault.gpu_index) if fault.gpu_index >= 0 else "-",
        fault.gpu_serial or "-",
        evaluated.result,
        evaluated.rule or "-",
        fault.source,
    )


def _readings(bundle: EvidenceBundle, width: int) -> str:
    """The last sample before the fault and the first after it, of the GPUs with faults."""
    decided = next(
        (
            each.fault
            for each in bundle.faults
            if bundle.verdict and each.fault.id == bundle.verdict.fault
        ),
        None,
    )
    moment = decided.time if decided else bundle.unhealthy_at
    before = [each for each in bundle.samples if each.time <= moment]
    after = [each for each in bundle.samples if each.time > moment]
    if not bundle.samples:
        return "READINGS\n  none: no sample was stored when the verdict was made"
    faulty = {each.fault.gpu_index for each in bundle.faults if each.fault.gpu_index >= 0}
    rows = [
        (stamp(sample.time), when, *_reading(gpu))
        for when, sample in (
            *(("before", each) for each in before[-1:]),
            *(("after", each) for each in after[:1]),
        )
        for gpu in sample.gpus
        if not faulty or gpu.index in faulty
    ]
    head = (
        "taken",
        "fault",
        "gpu",
        "°C",
        "memory °C",
        "W",
        "load %",
        "memory used",
        "ecc dbe",
        "ecc sbe",
        "pcie",
        "nvlinks",
    )
    count = f"{len(before)} samples before the fault and {len(after)} after it are in samples.jsonl"
    if not rows:
        return f"READINGS\n  {count}"
    return f"READINGS\n{_table(head, rows, width)}\n  {count}"


def _reading(gpu: GpuSample) -> tuple[str, ...]:
    memory = gpu.memory_used_bytes
    return (
        str(gpu.index),
        *(
            "-" if each is None else f"{each:g}"
            for each in (
                gpu.temperature_celsius,
                gpu.memory_temperature_celsius,
                gpu.power_watts,
                gpu.utilization_percent,
            )
        ),
        "-" if memory is None else f"{memory / 2**30:.1f} GiB",
        *(
            "-" if each is None else f"{each}"
            for each in (
                gpu.ecc_dbe_aggregate,
                gpu.ecc_sbe_aggregate,
                gpu.pcie_width,
                gpu.nvlinks_up,
            )
        ),
    )


def _checks(bundle: EvidenceBundle) -> str:
    lines = [
        f"  {stamp(each.time)}  {'passed' if check.ok else 'FAILED'}  "
        + escape_line(f"{check.name}: {check.detail}")
        for each in bundle.checks
        for check in each.checks
    ]
    return "\n".join(["CHECKS", *lines]) if lines else ""


def _omitted(bundle: EvidenceBundle) -> str:
    if not bundle.omitted:
        return ""
    named = ", ".join(f"{count} of {part}" for part, count in bundle.omitted.items())
    return escape_line(f"Omitted because of the size limit: {named}.")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return an indented table."""
    text = columns(head, rows, colour=False, width=max(width - len(INDENT), 0))
    return "\n".join(f"{INDENT}{line}" for line in text.splitlines())
