"""`python -m tests.crash.shifted SERVICE SECONDS`: a service by a clock that is fast or slow."""

import importlib
import sys
from datetime import datetime, timedelta

from services.primitives.clock import SystemClock
from services.runtime.process import main


class ShiftedClock(SystemClock):
    """The machine's, off by so much."""

    def __init__(self, seconds: float) -> None:
        """Fast where `seconds` is above zero."""
        self._off = timedelta(seconds=seconds)

    def now(self) -> datetime:
        """The moment, as this machine would have it."""
        return super().now() + self._off


if __name__ == "__main__":
    _, service, seconds = sys.argv
    del sys.argv[1:]
    built = importlib.import_module(f"services.{service.replace('-', '_')}.service").build
    main(service, built, ShiftedClock(float(seconds)))
