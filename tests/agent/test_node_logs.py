"""An agent answers about its log and the kernel's, as a process on a real server."""

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta

import msgspec

from agent.node_logs import NodeLogs
from agent.observations import KernelLogLine
from schemas import subjects
from schemas.log_excerpts import LogExcerpt, LogRequest
from schemas.messages import encode
from schemas.permissions import AGENT_BYTES_MAX
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.primitives.errors import NoResponders
from services.runtime.log_answers import LogMemory
from tests.agent.conftest import WAIT_SECONDS, XID_79, AgentHost, contents, events
from tests.redteam.hostile import HOSTILE, UNSAFE

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
FLOOD = 2_000
"""Requests at once."""


async def asked(host: AgentHost, bus: NatsBus, request: LogRequest) -> LogExcerpt:
    """Return the agent's answer to a request for its log."""
    subject = subjects.node_command("training", host.node, "logs")
    reply = await bus.request(subject, encode(request), timeout_seconds=WAIT_SECONDS)
    assert len(reply.data) <= AGENT_BYTES_MAX
    return msgspec.json.decode(reply.data, type=LogExcerpt)


async def test_an_agent_answers_its_lines_and_the_kernels_about_the_driver(
    host: AgentHost, bus: NatsBus
) -> None:
    """The kernel's lines from before a restart come too; its other lines stay on the node."""
    await host.start(NAVARCH_LOG_LEVEL="INFO")
    host.write("usb 1-1: a password is hunter2", XID_79.format(pci="0000:61:00"), "eth0: link up")
    await events(bus, host.node, 3)
    found = await asked(host, bus, LogRequest())
    kernel = [each.text for each in found.lines if each.origin == "kernel"]
    assert (found.source, found.refused) == (host.node, "")
    assert kernel == [XID_79.format(pci="0000:61:00")]
    assert any(each.text.startswith("fault {") for each in found.lines if not each.origin)
    assert [each.text for each in (await asked(host, bus, LogRequest(kernel=True))).lines] == kernel

    await host.stop()
    host.write("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
    await host.start()
    await events(bus, host.node, 4)
    again = await asked(host, bus, LogRequest(kernel=True))
    assert [each.text for each in again.lines] == [
        *kernel,
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
    ]
    assert await host.stop() == 0


async def test_hostile_kernel_lines_are_answered_as_text_and_within_a_message(
    host: AgentHost, bus: NatsBus
) -> None:
    """Huge lines, controls and invalid UTF-8, as a process may write them."""
    await host.start()
    await events(bus, host.node, 2)
    count = len(HOSTILE)
    for text in HOSTILE.values():
        host.write("NVRM: " + (text.replace("\n", " ") * 8_000)[:8_000])
    with host.kmsg.open("ab") as log:
        log.write(b"14,%d,%d,-;NVRM: \xff\xfe\x80 \\x1b[31m\n" % (count, count))
    host.write(skip=1)
    host.write(XID_79.format(pci="0000:61:00"))
    await events(bus, host.node, 3)
    found = await asked(host, bus, LogRequest(kernel=True))
    assert found.lines[-1].text == XID_79.format(pci="0000:61:00")
    assert found.lines[-2].origin == "user"
    assert "\\u001b[31m" in found.lines[-2].text
    assert not any(UNSAFE.search(each.text) for each in found.lines)
    assert found.left_out > 0


async def test_a_flood_of_requests_delays_no_fault(host: AgentHost, bus: NatsBus) -> None:
    """The server hands over a few, and the fault is published."""
    await host.start()
    await events(bus, host.node, 2)
    flood = asyncio.gather(
        *(asked(host, bus, LogRequest()) for _ in range(FLOOD)), return_exceptions=True
    )
    await asyncio.sleep(0)
    host.write(XID_79.format(pci="0000:61:00"))
    (fault,) = contents((await events(bus, host.node, 3))[2:])
    answers = await flood
    assert fault["code"] == 79
    assert {type(each) for each in answers} == {LogExcerpt, NoResponders}
    assert await host.stop() == 0


class Clock(SystemClock):
    """A host that has run for 100 s; each look at a clock takes some time."""

    def __init__(self) -> None:
        self.set_by = 0.0
        self._looks = itertools.count()

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.set_by, microseconds=next(self._looks))

    def monotonic(self) -> float:
        return 100.0 + next(self._looks) / 1e6


async def kept(logs: NodeLogs) -> list[tuple[str, float]]:
    """Return each line with the seconds from NOW on."""
    found = msgspec.json.decode(await logs.answer(b"", {}), type=LogExcerpt)
    return [(each.text, round((each.time - NOW).total_seconds(), 3)) for each in found.lines]


async def test_lines_have_the_times_of_the_kernel_and_stay_in_order() -> None:
    """One without a time, or with one to come, is from now; a clock that is set counts."""
    clock = Clock()
    logs = NodeLogs("n1", LogMemory(10, 1_000, 0.0), clock)
    stamps = (90_000_000, 90_000_000, 90_000_001, -1, 10**20)
    for number, stamp_us in enumerate(stamps):
        logs.kernel(KernelLogLine(f"NVRM {number}", number, stamp_us))
    assert await kept(logs) == [
        *(("NVRM 0", -10), ("NVRM 1", -10), ("NVRM 2", -10)),
        *(("NVRM 3", 0), ("NVRM 4", 0)),
    ]
    clock.set_by = 3_600
    logs.kernel(KernelLogLine("NVRM 5", 5, 99_000_000))
    assert (await kept(logs))[-1] == ("NVRM 5", 3_599)


async def test_a_line_that_is_read_twice_is_kept_once() -> None:
    """A file that is replaced by a copy is read again, and its lines are known by sequence."""
    logs = NodeLogs("n1", LogMemory(10, 1_000, time.time()), SystemClock())
    for sequence in (0, 1, 0, 1, 2):
        logs.kernel(KernelLogLine(f"NVRM {sequence}", sequence))
    found = msgspec.json.decode(await logs.answer(b"", {}), type=LogExcerpt)
    assert [each.text for each in found.lines] == ["NVRM 0", "NVRM 1", "NVRM 2"]
