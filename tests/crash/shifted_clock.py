"""`python -m tests.crash.shifted_clock SERVICE SECONDS`: run a service with a wrong clock."""

import importlib
import sys
from datetime import datetime, timedelta

from services.primitives.clock import SystemClock
from services.runtime.process import main


class ShiftedClock(SystemClock):
    """The machine's clock plus an offset."""

    def __init__(self, seconds: float) -> None:
        """Run ahead by `seconds`."""
        self._off = timedelta(seconds=seconds)

    def now(self) -> datetime:
        """Return the shifted time."""
        return super().now() + self._off


if __name__ == "__main__":
    _, service, seconds = sys.argv
    del sys.argv[1:]
    built = importlib.import_module(f"services.{service.replace('-', '_')}.service").build
    main(service, built, clock=ShiftedClock(float(seconds)))
