"""Implements the agent's tools for operators: `parse` a log, `inject` a drill, `--check` a host."""

import math
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.code_names import name_of
from agent.faults.kernel_log_scanner import ExceptionLines, KernelLogScanner, ReportedLine
from agent.faults.xid_patterns import RecognisedFault, mentions_gpu, recognise
from agent.maintenance.diagnostics.health_checks import CHECKS, program_of
from agent.maintenance.reset_and_reboot import reboot_command, reset_command
from agent.observations import KERNEL_FACILITY, GpuInventory, KernelLogLine
from agent.settings import AgentConfig
from agent.sources.cloud.cloud_detection import DMI, detect
from agent.sources.host_metrics import PROC
from agent.sources.kernel_log_parser import parse_kmsg
from agent.sources.log_formats import parse_text, read_entries
from agent.sources.nvml import Nvml, NvmlUnavailable
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.messages import encode
from schemas.node_events import CheckResult
from schemas.subjects import node_command
from services.bus.port import Bus
from services.primitives.errors import ConfigurationError, NavarchError

Connect = Callable[[], Awaitable[Bus]]

TAIL_BYTES: Final = 65_536
UNDATED_LINE_SECONDS: Final = 0.001
FAULT_MENTION: Final = re.compile(
    r"\bS?Xid\b|fallen off the bus|GPU (?:is|has been) lost|GPU_IS_LOST", re.IGNORECASE
)
"""Words of a line that reports a fault, whatever its form."""
PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
HOST_NAMESPACE: Final = "pid:[4026531836]"
"""The kernel's number of the initial namespace, whose process IDs its log lines name."""

DRILL_TEXTS: Final = {
    79: "GPU has fallen off the bus.",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP!",
}


@dataclass(slots=True)
class ParseCounts:
    """Counts what `parse` read, for the summary line."""

    lines: int = 0
    faults: int = 0
    unread: int = 0
    """Lines that name an XID, an SXID or a lost GPU in an unknown format."""
    other_driver_lines: int = 0
    """Lines that mention the driver and report no fault."""
    from_processes: int = 0
    """Driver-like lines that a process wrote: they prove nothing."""

    def summary(self) -> str:
        """Return the counts in one sentence."""
        text = f"{self.lines} lines read: {self.faults} faults"
        if self.unread:
            text += f", {self.unread} lines name an XID and could not be parsed (report them)"
        text += f", {self.other_driver_lines} other lines mention the driver"
        if self.from_processes:
            text += f", {self.from_processes} ignored because a process wrote them"
        return text


def parse(lines: Iterable[bytes], counts: ParseCounts | None = None) -> Iterator[dict[str, Any]]:
    """Yield the faults that the agent would report from a kernel log."""
    counts = ParseCounts() if counts is None else counts
    scanner, exceptions = KernelLogScanner(), ExceptionLines()
    now, ready = 0.0, list[tuple[int, ReportedLine]]()
    numbers: dict[int, int] = {}
    for raw in lines:
        counts.lines += 1
        line = parse_text(raw)
        if line is None:
            continue
        # Where lines have no time, their number is used.
        now = line.timestamp_us / 1e6 if line.timestamp_us >= 0 else now + UNDATED_LINE_SECONDS
        found = list(exceptions.due(now))
        sighting = scanner.scan(line)
        if sighting is None:
            _count_unreported(line, counts)
        else:
            numbers[id(line)] = counts.lines
            found += exceptions.take(line, sighting, now)
        ready += ((numbers[id(each[0])], each) for each in found)
        if exceptions.next_due is None:
            yield from _in_order(ready, counts)
            ready.clear()
            numbers.clear()
    ready += ((numbers[id(each[0])], each) for each in exceptions.due(math.inf))
    yield from _in_order(ready, counts)


def _in_order(
    ready: Iterable[tuple[int, ReportedLine]], counts: ParseCounts
) -> Iterator[dict[str, Any]]:
    """Yield faults in the order of their lines, of which the first of an exception was held."""
    for _, reported in sorted(ready, key=lambda each: each[0]):
        yield _fault(*reported, counts)


def _fault(line: KernelLogLine, sighting: RecognisedFault, counts: ParseCounts) -> dict[str, Any]:
    counts.faults += 1
    fault: dict[str, Any] = {
        "code": sighting.code,
        "name": name_of(sighting.kind, sighting.code),
        "kind": sighting.kind,
        "pci": sighting.pci,
    }
    if sighting.subcode:
        fault["subcode"] = sighting.subcode
    if line.sequence >= 0:
        fault["sequence"] = line.sequence
    fault["metrics"] = sighting.metrics
    fault["line"] = sighting.message
    return fault


def _count_unreported(line: KernelLogLine, counts: ParseCounts) -> None:
    if not mentions_gpu(line.text):
        return
    if line.facility != KERNEL_FACILITY or line.text.startswith("audit:"):
        counts.from_processes += 1
    elif FAULT_MENTION.search(line.text) and recognise(line.text) is None:
        counts.unread += 1
    else:
        counts.other_driver_lines += 1


def parse_file(file: str, write: Callable[[str], object], report: Callable[[str], object]) -> int:
    """Print the faults in a file (`-`: standard input) as JSON lines, and then a summary.

    Return the exit status: 1 where a line names a fault and could not be parsed.
    """
    counts = ParseCounts()
    path = Path("/dev/stdin") if file == "-" else Path(file)
    with path.open("rb") as opened:
        for fault in parse(read_entries(opened), counts):
            write(msgspec.json.encode(fault).decode())
    report(counts.summary())
    return 1 if counts.unread else 0


def inject(config: AgentConfig, code: int, gpu: int, *, text: str = "") -> str:
    """Write an XID line to the kernel log, as a driver would; return the line.

    In /dev/kmsg it has the facility of a process, which an agent accepts only with
    NAVARCH_KMSG_ANY_FACILITY=1.
    """
    what = text or DRILL_TEXTS.get(code, "drill")
    line = f"NVRM: Xid (PCI:{_pci_of(config, gpu)}): {code}, pid=0, name=drill, {what}"
    path = Path(config.kmsg)
    if path.exists() and stat.S_ISCHR(path.stat().st_mode):
        record = f"<3>{line}\n".encode()
    else:
        sequence = last_sequence(path) + 1
        stamp_us = time.monotonic_ns() // 1000
        record = f"3,{sequence},{stamp_us},-;{line}\n".encode()
    # One write, so that a reader never sees half a record.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, record)
    finally:
        os.close(handle)
    return line


def unread_drill(config: AgentConfig) -> str:
    """Return why this host's agent will not read what `inject` writes; empty: it will."""
    path = Path(config.kmsg)
    is_device = path.exists() and stat.S_ISCHR(path.stat().st_mode)
    if not is_device or config.kmsg_any_facility:
        return ""
    return (
        "an agent without NAVARCH_KMSG_ANY_FACILITY=1 ignores this line, as one that a process "
        "wrote; set it for the drill, in the agent's environment and here, and restart the agent"
    )


def _pci_of(config: AgentConfig, gpu: int) -> str:
    try:
        inventory = Nvml(config.nvml_library).open()
    except NvmlUnavailable as error:
        raise ConfigurationError(f"the PCI address of GPU {gpu} is unknown: {error}") from error
    for each in inventory.gpus:
        if each.index == gpu:
            return each.pci
    raise ConfigurationError(f"no GPU {gpu}: this host shows {len(inventory.gpus)}")


def last_sequence(path: Path) -> int:
    """Return the sequence of the last record in a kernel log file; -1: it has none."""
    if not path.exists():
        return -1
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        lines = [parse_kmsg(each) for each in file.read().split(b"\n")]
    return max((each.sequence for each in lines if each is not None), default=-1)


def _ok(name: str, detail: str) -> CheckResult:
    return CheckResult(name=name, ok=True, detail=detail)


def _not_ok(name: str, detail: str) -> CheckResult:
    return CheckResult(name=name, ok=False, detail=detail)


async def check(config: AgentConfig, connect: Connect) -> list[CheckResult]:
    """Check whether this host can run the agent."""
    return [
        _check_nvml(config),
        _check_kernel_log(config),
        _check_processes(Path(config.proc)),
        _check_state(config),
        _check_cloud(config),
        _check_tools(),
        _check_reset_and_reboot(config),
        await _check_bus(config, connect),
    ]


def _check_nvml(config: AgentConfig) -> CheckResult:
    if config.gpu_count == 0:
        return _ok("nvml", "no GPUs are expected")
    try:
        inventory: GpuInventory = Nvml(config.nvml_library).open()
    except NvmlUnavailable as error:
        return _not_ok("nvml", f"{error}: is the NVIDIA driver loaded?")
    found = len(inventory.gpus)
    expected = config.gpu_count
    detail = f"driver {inventory.driver_version}, {found} GPUs"
    if inventory.failures:
        return _not_ok("nvml", f"{detail}; {inventory.failures[0].text}")
    if found == 0 or (expected is not None and found != expected):
        return _not_ok("nvml", f"{detail}, expected {expected or 'at least one'}")
    return _ok("nvml", detail)


def _check_reset_and_reboot(config: AgentConfig) -> CheckResult:
    """Report how this host is reset and rebooted; a host that can do neither is replaced."""
    reset = reset_command(config, os.environ)
    resets = (
        f"GPUs are reset by {reset[0]}" if reset else "cannot reset GPUs: nvidia-smi is missing"
    )
    reboot, problem = reboot_command(config, os.environ, root=os.geteuid() == 0)
    reboots = f"rebooted by {' '.join(reboot)}" if reboot else f"cannot reboot: {problem}"
    return _ok("reset and reboot", f"{resets}; {reboots}")


def _check_kernel_log(config: AgentConfig) -> CheckResult:
    try:
        os.close(os.open(config.kmsg, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        remedy = "run as root or with CAP_SYSLOG" if isinstance(error, PermissionError) else ""
        return _not_ok("kernel log", f"{error}. {remedy}".strip())
    return _ok("kernel log", f"{config.kmsg} can be read")


def _check_processes(proc: Path, namespace: Path = PID_NAMESPACE) -> CheckResult:
    """Report whether a fault can name its job, which is optional."""
    remedy = "so faults name no job: share the host's process ids, or set NAVARCH_PROC to its /proc"
    try:
        own = namespace.readlink().name == HOST_NAMESPACE
        (proc / "1" / "cgroup").read_bytes()
    except OSError as error:
        return _ok("processes", f"{error}, {remedy}")
    if not own and proc == PROC:
        return _ok("processes", f"the host's processes are not visible here, {remedy}")
    return _ok("processes", f"{proc} shows the job of each process")


def _check_state(config: AgentConfig) -> CheckResult:
    path = Path(config.state_dir)
    probe = path / ".check"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        return _not_ok("state", f"{error}; set NAVARCH_STATE_DIR")
    return _ok("state", f"{path} can be written")


def _check_cloud(config: AgentConfig) -> CheckResult:
    """Report the cloud whose notices are read, if any."""
    cloud = detect(DMI) if config.cloud == "auto" else config.cloud
    if cloud in ("", "none"):
        return _ok("cloud", "no spot or maintenance notices are expected")
    return _ok("cloud", f"notices of {cloud} are read")


def _check_tools() -> CheckResult:
    """Report which diagnostics have their tool on this host; all are optional."""
    here = [each.name for each in CHECKS if program_of(each)]
    missing = [each.name for each in CHECKS if each.name not in here]
    detail = f"installed: {', '.join(here) or 'none'}; missing: {', '.join(missing) or 'none'}"
    return _ok("diagnostics", detail)


async def diagnose(
    config: AgentConfig, connect: Connect, request: DiagnoseRequest, seconds: float
) -> Diagnosis:
    """Request diagnostics from this node's agent over the bus, and return its reply."""
    bus = await connect()
    try:
        subject = node_command(config.pool, config.node, "diagnose")
        reply = await bus.request(subject, encode(request), timeout_seconds=seconds)
    finally:
        await bus.close()
    return msgspec.json.decode(reply.data, type=Diagnosis)


async def _check_bus(config: AgentConfig, connect: Connect) -> CheckResult:
    try:
        bus = await connect()
        await bus.close()
    except (NavarchError, OSError) as error:
        return _not_ok("bus", f"{config.nats_url}: {error}")
    return _ok("bus", f"{config.nats_url} answers")
