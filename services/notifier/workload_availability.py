"""Reports which workload systems carry out no orders, by name.

An order that cannot be carried out is repeated until its step is given up, so nothing else would
say why. What lasts for a moment is not reported.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from schemas.fleet_queries import CurrentFailure
from services.notifier.workload.workload_notifier import StepFailure
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.failure_register import FailureRegister

T = TypeVar("T")

REPORTED_SECONDS: Final = 60.0
"""After so long without an order that was carried out, while others failed or were not answered."""
OVER_SECONDS: Final = 900.0
"""After so long without any order nothing is known any more."""
LOOK_SECONDS: Final = 5.0
REASON_CHARS_MAX: Final = 500
OBSERVER: Final = "workload-systems"
UNANSWERED: Final = "it does not answer"
REMEDY: Final = (
    "make it answer again: what waits is done then. Meanwhile only nodes are replaced whose "
    "instances are gone or do not run, or that their cloud takes. To try it: navarch workload check"
)


@dataclass(slots=True)
class _Failing:
    since: float
    at: datetime
    last: float
    reason: str


class WorkloadAvailability:
    """The workload systems that fail now, as one replica finds them."""

    def __init__(self, clock: Clock, failures: FailureRegister) -> None:
        self._clock = clock
        self._failures = failures
        self._failing: dict[str, _Failing] = {}
        self._under_way: dict[object, tuple[str, float]] = {}
        """Call -> its workload system, and when it began."""

    async def observed(self, name: str, call: Awaitable[T]) -> T:
        """Await a call of a workload system, and note whether it works; a refusal is an answer."""
        token = object()
        self._under_way[token] = name, self._clock.monotonic()
        try:
            result = await call
        except StepFailure:
            self._failing.pop(name, None)
            raise
        except Exception as error:
            self._failed(name, redacted(str(error) or type(error).__name__))
            raise
        else:
            self._failing.pop(name, None)
            return result
        finally:
            del self._under_way[token]

    async def run(self) -> None:
        """Report what lasts, and its end, for ever."""
        while True:
            self._report()
            await self._clock.sleep(LOOK_SECONDS)

    def _failed(self, name: str, reason: str) -> None:
        now = self._clock.monotonic()
        known = self._failing.setdefault(name, _Failing(now, self._clock.now(), now, reason))
        known.last, known.reason = now, reason[:REASON_CHARS_MAX]

    def _report(self) -> None:
        now = self._clock.monotonic()
        for name, began in list(self._under_way.values()):
            if now - began >= REPORTED_SECONDS:
                self._failed(name, UNANSWERED)
                self._failing[name].since = min(self._failing[name].since, began)
        self._failing = {
            name: each for name, each in self._failing.items() if now - each.last < OVER_SECONDS
        }
        found = [
            CurrentFailure(
                failure="workload-system-away",
                about=f"workload system {name}",
                reason=f"no order was carried out since {each.at:%H:%M:%S} UTC: {each.reason}",
                remedy=REMEDY,
            )
            for name, each in self._failing.items()
            if now - each.since >= REPORTED_SECONDS
        ]
        self._failures.update(OBSERVER, found)
