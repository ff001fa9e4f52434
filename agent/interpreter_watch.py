"""Ends an agent whose interpreter is held: it reports nothing, and its supervisor starts another.

NVML is called by ctypes, which lets go of the interpreter meanwhile, so that heartbeats go on. A
library that does not, as one that a health check plugin loads may, stops every thread. The timer of
faulthandler needs no interpreter: it writes what each thread does to standard error, and exits.
"""

import faulthandler
from typing import Final

from services.primitives.clock import Clock

HELD_SECONDS_MAX: Final = 60.0
"""The node is lost after half of that; nothing that the agent does for itself takes as long."""
REARM_SECONDS: Final = 10.0


async def end_when_held(
    clock: Clock,
    held_seconds: float = HELD_SECONDS_MAX,
    rearm_seconds: float = REARM_SECONDS,
) -> None:
    """Exit with status 1 once the event loop has not run for `held_seconds`; never return."""
    try:
        while True:
            faulthandler.dump_traceback_later(held_seconds, exit=True)
            await clock.sleep(rearm_seconds)
    finally:
        faulthandler.cancel_dump_traceback_later()
