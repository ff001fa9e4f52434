"""Reads what a driver really prints when programs fail: one fault for each, and the right process.

The lines are those of an NVIDIA H200 (driver 580.159.04, kernel 6.18) whose programs wrote to
address 0 and to a wild one, to a misaligned one, beyond their shared memory, called an address
that is no code, ran `trap`, failed an assertion; one of PyTorch indexed out of range. In the
second file, of which most lines are left out, all SMs met the misaligned address.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

from agent.faults.kernel_log_scanner import (
    HELD_MAX,
    HOLD_SECONDS,
    HOLD_SECONDS_MAX,
    ExceptionLines,
    KernelLogScanner,
)
from agent.faults.xid_patterns import RecognisedFault, recognise
from agent.observations import KernelLogLine
from agent.operator_tools import ParseCounts, parse
from services.bus.nats.nats_bus import NatsBus
from tests.agent.conftest import AgentHost, contents, events

DATA = Path(__file__).with_name("data")
PCI = "0000:00:06"
PROGRAMS = (DATA / "xid-h200-programs.kmsg").read_bytes()
ALL_SMS = (DATA / "xid-h200-all-sms.kmsg").read_bytes()
FIRST = f"NVRM: Xid (PCI:{PCI}): 13, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): X"
LAST = f"NVRM: Xid (PCI:{PCI}): 13, pid=629, name=prog, Graphics Exception: channel 0x0000000a"


def parsed(log: bytes) -> tuple[list[dict[str, Any]], ParseCounts]:
    """The faults of a log, and what was counted."""
    counts = ParseCounts()
    return list(parse(log.splitlines(keepends=True), counts)), counts


def test_every_failed_program_is_one_fault_with_its_process():
    """XID 13 has three lines, and one where another XID follows; each names who failed."""
    found, counts = parsed(PROGRAMS)
    assert [(each["code"], each["metrics"]["pid"]) for each in found] == [
        (31, 607),
        (31, 620),
        (13, 629),
        (13, 638),
        (13, 647),
        (43, 647),
        (43, 660),
        (43, 669),
        (31, 678),
        (31, 689),
        (43, 722),
    ]
    said = [each["metrics"]["exception"].rpartition(": ")[2] for each in found[2:5]]
    assert said == ["Misaligned Address", "Illegal Instruction Parameter", "Misaligned PC"]
    assert (counts.unread, counts.other_driver_lines) == (0, 2)


def test_a_process_that_only_ran_at_the_time_is_not_blamed():
    """Lines of many SMs name any process that runs meanwhile; only the last line is believed."""
    found, _ = parsed(ALL_SMS)
    blamed = [(e["code"], e["metrics"]["pid"], e["metrics"]["process"]) for e in found]
    assert blamed == [(13, 876, "prog"), (43, 876, "prog")]


def test_lines_without_times_are_joined_too():
    """`dmesg -t` prints none."""
    bare = b"".join(each.partition(b";")[2] for each in PROGRAMS.splitlines(keepends=True))
    assert [e["code"] for e in parsed(bare)[0]] == [e["code"] for e in parsed(PROGRAMS)[0]]


class Joined:
    """Exception lines that come at given times."""

    def __init__(self) -> None:
        self.lines = ExceptionLines()
        self.scanner = KernelLogScanner()
        self.number = 0

    def says(self, text: str, at: float) -> list[tuple[int, int]]:
        """Sequence and process of what is reported at a line."""
        self.number += 1
        line = KernelLogLine(text, sequence=self.number)
        found = self.scanner.scan(line)
        assert found is not None
        return self.read(self.lines.take(line, found, at))

    @staticmethod
    def read(reported: Any) -> list[tuple[int, int]]:
        """Return the sequence and process of each reported fault."""
        return [(line.sequence, found.metrics.get("pid", 0)) for line, found in reported]


def test_an_exception_without_a_process_is_reported_all_the_same():
    """The last line may not come; what was handled ends ahead of the line that is held."""
    joined = Joined()
    assert joined.says(FIRST, 0.0) == []
    assert (joined.lines.first_sequence, joined.lines.next_due) == (1, HOLD_SECONDS)
    assert joined.read(joined.lines.due(HOLD_SECONDS / 2)) == []
    assert joined.read(joined.lines.due(HOLD_SECONDS)) == [(1, 0)]
    assert (joined.lines.first_sequence, joined.lines.next_due) == (None, None)
    assert joined.says(LAST, 9.0) == [(2, 629)]


def test_lines_that_go_on_are_waited_for_and_not_for_ever():
    """Each line prolongs the wait, up to a limit."""
    joined = Joined()
    at = 0.0
    while at < HOLD_SECONDS_MAX:
        assert joined.says(FIRST, at) == []
        assert joined.read(joined.lines.due(at)) == []
        at += HOLD_SECONDS / 2
    assert joined.read(joined.lines.due(HOLD_SECONDS_MAX)) == [(1, 0)]


def test_another_gpu_and_a_fault_of_the_hardware_join_nothing():
    """Only a program's XID of the same GPU says whose exception it was."""
    joined = Joined()
    assert joined.says(FIRST, 0.0) == []
    assert joined.says(LAST.replace(PCI, "0000:07:00"), 0.1) == [(2, 629)]
    assert joined.says(f"NVRM: Xid (PCI:{PCI}): 79, pid=5, GPU has fallen off", 0.2) == [(3, 5)]
    assert joined.says(LAST, 0.3) == [(4, 629)]


def test_more_gpus_than_there_is_room_for_are_reported_at_once():
    """Lines are held up to a bound, and further GPUs are reported without waiting."""
    joined = Joined()
    held = [joined.says(FIRST.replace(PCI, f"0000:{n:02x}:00"), 0.0) for n in range(HELD_MAX + 2)]
    assert held == [[]] * HELD_MAX + [[(HELD_MAX + 1, 0)], [(HELD_MAX + 2, 0)]]


@pytest.mark.parametrize(
    ("text", "leads"),
    [
        (FIRST, True),
        (FIRST.replace("13, ", "13, pid=882, name=a, odd name, "), True),
        (FIRST.replace("Warp", "Global"), True),
        (f"NVRM: Xid (PCI:{PCI}): 13, Graphics Exception: ESR 0x519730=0xb 0x519734=0x0", True),
        (LAST, False),
        (f"NVRM: Xid (PCI:{PCI}): 13, Graphics Exception: ChID 0008, Class 0000c3c0", False),
        (f"NVRM: Xid (PCI:{PCI}): 31, pid=1, name=Graphics SM Warp Exception on", False),
    ],
)
def test_which_lines_come_ahead_of_the_last(text: str, leads: bool):
    """Lines of the SMs come ahead; they name no process that could be trusted."""
    found = recognise(text)
    assert isinstance(found, RecognisedFault)
    assert found.leads == leads
    assert not (leads and "pid" in found.metrics)


async def test_a_failed_program_is_one_event_of_both_sources(host: AgentHost, bus: NatsBus):
    """Both sources report as on the H200: one XID 13, and for a call to no code 13 and 43."""
    await host.start()
    await host.logged("NVML reports XIDs of 4 GPUs")
    pci = host.gpus[0].pci
    texts = [
        each.partition(b";")[2].decode().strip().replace(PCI, pci) for each in PROGRAMS.split(b"\n")
    ]
    misaligned, no_code = texts[4:7], texts[10:13]
    assert all(": 13, " in each for each in misaligned)
    host.write(*misaligned)
    host.order("xid 1 0 13")
    await events(bus, host.node, 3)
    host.write(*no_code)
    host.order("xid 1 0 13", "xid 2 0 43", "xid 3 1 119")
    found = contents(await events(bus, host.node, 6))
    faults = [each for each in found if "fault" in each["type"]]
    assert [(e["code"], e["metrics"].get("pid"), e["source"]) for e in faults] == [
        (13, 629, "kmsg"),
        (13, 647, "kmsg"),
        (43, 647, "kmsg"),
        (119, None, "nvml"),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_held_exception_outlives_the_agent(host: AgentHost, bus: NatsBus, number: int):
    """A line that is held when the agent ends is read again by the next one; once in all."""
    await host.start()
    pci = host.gpus[0].pci
    mark = f"NVRM: Xid (PCI:{pci}): 119, the mark"
    host.write(mark, FIRST.replace(PCI, pci))
    await events(bus, host.node, 3)
    await host.stop(number)
    await host.start()
    await events(bus, host.node, 6)
    host.write(mark)
    found = contents(await events(bus, host.node, 7))
    assert [each["code"] for each in found if "fault" in each["type"]] == [119, 13, 119]
