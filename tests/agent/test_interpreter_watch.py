"""An agent whose interpreter a library holds is ended; one that waits for NVML reports on."""

import subprocess
import sys

HELD = """
import asyncio, ctypes
from agent.interpreter_watch import end_when_held
from services.primitives.clock import SystemClock

async def main():
    watching = asyncio.create_task(end_when_held(SystemClock(), 1.0, 0.1))
    beats = 0
    async def beat():
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.05)
    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)  # both have begun
    await asyncio.to_thread(ctypes.{library}(None).usleep, {seconds} * 1_000_000)
    print("beats" if beats > 10 else "silent", flush=True)
    beating.cancel()
    watching.cancel()

asyncio.run(main())
"""


def run(library: str, seconds: int) -> subprocess.CompletedProcess[str]:
    """Run a process in which a thread calls C for so long, as readers call NVML."""
    code = HELD.format(library=library, seconds=seconds)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_c_call_of_seconds_stops_no_heartbeat() -> None:
    """The library that calls NVML lets go of the interpreter, and the watch ends nothing."""
    done = run("CDLL", 2)
    assert (done.returncode, done.stdout) == (0, "beats\n"), done.stderr


def test_a_call_that_holds_the_interpreter_ends_the_process() -> None:
    """Standard error names the call, and the process is gone long before the call returns."""
    done = run("PyDLL", 45)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Timeout (0:00:01)!" in done.stderr
    assert "Thread" in done.stderr
