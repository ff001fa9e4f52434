"""Keeps the newest log lines of the agent and the kernel's about the driver: `navarch logs`."""

from typing import Final

from agent.faults.xid_patterns import mentions_gpu
from agent.observations import KERNEL_FACILITY, KernelLogLine
from schemas.log_excerpts import AGENT_EXCERPT_BYTES_MAX
from services.bus.port import Headers
from services.primitives.clock import Clock
from services.runtime.log_answers import KeptLine, LogAnswers, LogMemory

LINES_MAX: Final = 1_000
CHARS_MAX: Final = 131_072
"""Of the agent's own lines, and of the kernel's."""
MICROSECONDS: Final = 1_000_000
CLOCK_SET_SECONDS: Final = 1.0
"""By so much the host's clock was set."""
LEVELS: Final = ("ERROR", "ERROR", "ERROR", "ERROR", "WARN", "INFO", "INFO", "DEBUG")
"""Priority of a kernel log line -> level."""


class NodeLogs:
    """Answers queries about the agent's log and the kernel's."""

    def __init__(self, node: str, own: LogMemory, clock: Clock) -> None:
        """`own`: the agent's lines."""
        self._clock = clock
        # Lines from before the agent's start are read, too.
        self._kernel = LogMemory(LINES_MAX, CHARS_MAX, 0.0)
        self._sequence = -1
        self._booted = 0.0
        """When the host was booted, in seconds since 1970: kept, so that lines stay in order."""
        self._answers = LogAnswers(node, own, clock, AGENT_EXCERPT_BYTES_MAX, self._kernel)

    def kernel(self, line: KernelLogLine) -> None:
        """Keep a kernel log line if it is about the driver, once."""
        if line.sequence <= self._sequence:
            return
        self._sequence = line.sequence
        if mentions_gpu(line.text):
            origin = "kernel" if line.facility == KERNEL_FACILITY else "user"
            seconds = self._written(line)
            self._kernel.add(KeptLine(seconds, LEVELS[line.priority], line.text, origin))

    def _written(self, line: KernelLogLine) -> float:
        """When a line was written, in seconds since 1970."""
        now = self._clock.now().timestamp()
        booted = now - self._clock.monotonic()
        if abs(booted - self._booted) > CLOCK_SET_SECONDS:
            self._booted = booted
        if line.timestamp_us < 0:
            return now
        return min(self._booted + line.timestamp_us / MICROSECONDS, now)

    async def answer(self, data: bytes, headers: Headers) -> bytes:
        """Answer a request of the command `logs`."""
        return await self._answers.answer(data, headers)
