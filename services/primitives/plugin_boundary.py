"""The one boundary through which every call of a plugin goes.

A call has a deadline, its exceptions are caught, and the answer of a plugin from outside is checked
against its declared type. Navarch's own plugins run on the service's event loop. Each one from
outside has a thread with an event loop of its own. A thread that does not come back is given up,
and a new one is begun with a new instance of the plugin; after LOST_MAX the plugin is off.

A method that fails FAILURES_FREE times in a row rests before its next call, for up to a minute.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from schemas.plugin_kinds import PluginKind
from schemas.plugin_records import PluginHealth, PluginState
from services.primitives.backoff import doubled
from services.primitives.errors import NavarchError
from services.primitives.plugin_answers import WrongAnswerError, checked
from services.primitives.plugin_contract import (
    PluginContract,
    PluginSource,
    error_text,
    is_outside,
)
from services.primitives.plugin_thread import OnStep, PluginThread
from services.primitives.redaction import redacted

log = logging.getLogger(__name__)
T = TypeVar("T")

LOST_MAX: Final = 3
"""Threads of one plugin that are given up before it is off."""
FAILURES_FREE: Final = 3
"""Failures of a method in a row before it rests: one bad call delays no other."""
REST_FIRST_SECONDS: Final = 1.0
REST_MAX_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.25
"""Between two looks at a thread that works on a call."""
FAILING_SECONDS: Final = 900.0
"""A failure of a method that is not called any more is forgotten after this time."""
GROWN_BYTES_MAX: Final = 100 * 2**20
"""A plugin during whose steps the process grew by more is reported."""
CONSTRUCT: Final = "constructor"
CLOSE_SECONDS: Final = 5.0


class PluginFailedError(NavarchError):
    """A plugin did not answer as its contract says; the text names it and what happens instead."""

    def __init__(self, text: str, *, kind: str = "") -> None:
        """`kind`: the name of the exception's type, or of the misbehaviour."""
        super().__init__(text)
        self.kind = kind


class _GivenUpError(Exception):
    """The thread of a call was given up for another call."""


@dataclass(slots=True)
class _Failing:
    """A method's failures in a row."""

    count: int = 0
    what: str = ""
    kind: str = ""
    at: float = 0.0
    until: float = 0.0
    """It is not called before."""
    reported: bool = False


class GuardedPlugin:
    """One plugin, called through the boundary."""

    def __init__(
        self,
        contract: PluginContract,
        plugin: Any,
        source: PluginSource,
        *,
        make: Callable[[], Any] | None = None,
        threads: bool = False,
        on_step: OnStep | None = None,
        on_change: Callable[[], None] = lambda: None,
        blamed: Any = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guard `plugin`; `make` makes another instance of it after its thread was given up.

        `threads`: a plugin from outside has a thread of its own, and not else (a simulation has one
        thread). `blamed`: the part of the plugin that is from outside, where it is a part.
        """
        self.contract = contract
        self.kind: PluginKind = contract.kind
        self.source = source
        self.plugin = plugin
        self.outside = is_outside(plugin if blamed is None else blamed)
        self.disabled_by = ""
        """Who took it out; empty: it is not disabled."""
        self._make = make
        self._threads = threads and self.outside
        self._on_step = on_step
        self._on_change = on_change
        self._monotonic = monotonic
        self._thread: PluginThread | None = None
        self._past: list[PluginThread] = []
        self._stale = False
        """Whether the instance belongs to a thread that was given up."""
        self._turns = asyncio.Semaphore(self.kind.at_once)
        self._failing: dict[str, _Failing] = {}
        self._off = ""
        self._calls = self._failures = 0
        self._slowest = 0.0
        self._last_error = ""
        self._last_error_at: datetime | None = None

    # --- calls ----------------------------------------------------------------------------------

    async def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method within `seconds` (None: its kind's limit); else PluginFailedError."""
        self._refuse(method)
        self._calls += 1
        waits = method in self.contract.waits
        limit = None if waits else self.kind.call_seconds if seconds is None else seconds
        began = self._monotonic()
        try:
            answer = await self._answered(method, arguments, limit)
        except self.contract.errors:
            self._works(method)
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self.outside or task is None or task.cancelling():
                raise
            raise self._failed(method, f"cancelled itself in {method}", "cancelled") from error
        except _GivenUpError as error:
            # Not this call's fault, so it counts for nothing.
            what = "was given up by another call, which did not come back"
            raise PluginFailedError(self.reason or self._sentence(what), kind="timeout") from error
        except TimeoutError as error:
            what = str(error) or f"did not answer {method} within {limit or 0:g} s"
            raise self._failed(method, what, "timeout") from error
        except WrongAnswerError as error:
            raise self._failed(method, str(error), "answer") from error
        except Exception as error:
            what = redacted(f"failed in {method}: {error_text(error, self.plugin)}")
            failed = self._failed(method, what, type(error).__name__, passed=self.contract.passes)
            if self.contract.passes:
                raise
            raise failed from error
        finally:
            if not waits:
                self._slowest = max(self._slowest, self._monotonic() - began)
        self._works(method)
        return answer

    def immediately(self, method: str, *arguments: Any, otherwise: T) -> T:
        """Call a method that answers from memory; return `otherwise` where it fails."""
        try:
            answer: T = self._checked(method, getattr(self.plugin, method)(*arguments))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            what = redacted(f"failed in {method}: {error_text(error, self.plugin)}")
            self._failed(method, what, type(error).__name__)
            return otherwise
        return answer

    async def close(self) -> None:
        """Close the plugin, if it can be, and end its thread; nothing is raised."""
        close = getattr(self.plugin, "close", None)
        if close is not None and not self._stale:
            with suppress(Exception):
                await self._answered("close", (), CLOSE_SECONDS)
        self.end()

    def end(self) -> None:
        """End its thread."""
        if self._thread is not None:
            self._thread.close()

    async def _answered(self, method: str, arguments: tuple[Any, ...], limit: float | None) -> Any:
        if not self._threads:
            async with asyncio.timeout(limit):
                found = getattr(self.plugin, method)(*arguments)
                if inspect.isawaitable(found):
                    found = await found
            return self._checked(method, found)
        if limit is None:
            return self._checked(method, await self._in_thread(method, arguments, None))
        ends = self._monotonic() + limit
        async with asyncio.timeout(limit):
            await self._turns.acquire()
        try:
            rest = max(ends - self._monotonic(), 0.0)
            return self._checked(method, await self._in_thread(method, arguments, rest, limit))
        finally:
            self._turns.release()

    async def _in_thread(
        self,
        method: str,
        arguments: tuple[Any, ...],
        seconds: float | None,
        limit: float | None = None,
    ) -> Any:
        if self._thread is None:
            name = f"{self.kind.name} {self.source.name}"
            self._thread = PluginThread(name, self._on_step)
        if self._stale and self._make is not None:
            make = self._make
            self.plugin = await self._watched(
                self._thread, CONSTRUCT, make, self.kind.block_seconds
            )
        self._stale = False
        bound = partial(getattr(self.plugin, method), *arguments)
        return await self._watched(self._thread, method, bound, seconds, limit)

    async def _watched(
        self,
        thread: PluginThread,
        method: str,
        call: Callable[[], Any],
        seconds: float | None,
        limit: float | None = None,
    ) -> Any:
        """Wait for the thread's answer; give the thread up where it does not come back."""
        future = thread.begin(method, call)
        ends = None if seconds is None else self._monotonic() + seconds
        try:
            while True:
                await asyncio.wait({future}, timeout=LOOK_SECONDS)
                if future.done():
                    return future.result()
                step = thread.step
                if thread is not self._thread:
                    raise _GivenUpError
                if step is not None and step[1] >= self.kind.block_seconds:
                    self._give_up(thread)
                    blocked = f"{step[0]} for {self.kind.block_seconds:g} s"
                    raise TimeoutError(f"did not come back from {blocked}: it blocks its thread")
                if ends is not None and self._monotonic() >= ends:
                    asked = limit if limit is not None else seconds
                    raise TimeoutError(f"did not answer {method} within {asked:g} s")
        finally:
            future.cancel()

    def _checked(self, method: str, answer: Any) -> Any:
        if not self.outside:
            return answer
        if check := self.contract.checks.get(method):
            return check(answer)
        return checked(answer, self.contract.declared(method), method)

    def _give_up(self, thread: PluginThread) -> None:
        thread.close()
        self._past.append(thread)
        self._thread, self._stale = None, True
        if len(self._past) >= LOST_MAX:
            self.turn_off(f"is off: it has not come back {LOST_MAX} times")

    # --- what is known of it --------------------------------------------------------------------

    def turn_off(self, reason: str) -> None:
        """Call it no more, until it is enabled."""
        self._off = reason
        self._on_change()
        log.error("%s", self._sentence(reason))

    def switch(self, disabled_by: str) -> None:
        """Take it out in the name of an operator; or, where that is empty, begin with it again."""
        self.disabled_by = disabled_by
        self._on_change()
        if not disabled_by:
            self._off = ""
            self._past.clear()
            self._failing.clear()

    def note_exit(self, method: str) -> None:
        """Take note that the service's last process ended while the plugin ran."""
        self._failed("", f"ended the service's process in {method}", "exit")

    @property
    def is_out(self) -> bool:
        """Return whether it is not called at all now."""
        return bool(self._off or self.disabled_by)

    @property
    def reason(self) -> str:
        """Return the sentence about what is wrong with it now; empty: nothing is."""
        if self.disabled_by:
            return self._sentence(f"is disabled by {self.disabled_by}")
        if self._off:
            return self._sentence(self._off)
        now = self._monotonic()
        for each in self._failing.values():
            if each.reported and now - each.at < FAILING_SECONDS:
                return self._sentence(each.what)
        if (grown := self._measured()[2]) >= GROWN_BYTES_MAX:
            return f"{self.source.text(self.kind)} made its process {grown >> 20} MB larger"
        return ""

    def health(self, service: str = "") -> PluginHealth:
        """Return its record."""
        state: PluginState = "failing" if self.reason else "works"
        if self.is_out:
            state = "disabled" if self.disabled_by else "off"
        cpu, blocked, grown = self._measured()
        return PluginHealth(
            kind=self.kind.name,
            name=self.source.name,
            about=self.source.about,
            package=self.source.package,
            version=self.source.version,
            service=service,
            state=state,
            calls=self._calls,
            failures=self._failures,
            slowest_seconds=round(self._slowest, 6),
            cpu_seconds=round(cpu, 6),
            blocked_seconds=round(blocked, 6),
            grown_bytes=grown,
            threads_lost=len(self._past),
            last_error=self._last_error,
            last_error_at=self._last_error_at,
            reason=self.reason,
        )

    def just_blocked(self, seconds: float) -> bool:
        """Return whether a step of it runs, or has just ended, that took about so long."""
        return self._thread is not None and self._thread.longest_lately(seconds) >= seconds / 2

    def _measured(self) -> tuple[float, float, int]:
        threads = [*self._past, *([self._thread] if self._thread else [])]
        return (
            sum(each.cpu_seconds for each in threads),
            sum(each.blocked_seconds for each in threads),
            sum(each.grown_bytes for each in threads),
        )

    def _refuse(self, method: str) -> None:
        """Raise where the plugin is out, or the method rests."""
        if self.is_out:
            raise PluginFailedError(self.reason, kind="out")
        failing = self._failing.get(method)
        if failing is not None and self._monotonic() < failing.until:
            raise PluginFailedError(self._sentence(failing.what), kind=failing.kind)

    def _works(self, method: str) -> None:
        if self._failing:
            failing = self._failing.pop(method, None)
            self._failing.pop("", None)
            self._on_change()
            if failing is not None and failing.reported:
                log.info("%s answers %s again", self.source.text(self.kind), method)

    def _failed(
        self, method: str, what: str, kind: str, *, passed: bool = False
    ) -> PluginFailedError:
        """Take note of a failure, and return the error that says it.

        `passed`: its caller gets the exception, and waits by its own rules.
        """
        self._failures += 1
        self._last_error, self._last_error_at = what, datetime.now(UTC)
        failing = self._failing.setdefault(method, _Failing())
        failing.count += 1
        failing.what, failing.kind, failing.at = what, kind, self._monotonic()
        if not passed and failing.count >= FAILURES_FREE:
            rests = doubled(REST_FIRST_SECONDS, failing.count - FAILURES_FREE + 1, REST_MAX_SECONDS)
            failing.until = failing.at + rests
        if not failing.reported and (not passed or failing.count >= FAILURES_FREE):
            failing.reported = True
            self._on_change()
            log.warning("%s", self._sentence(what))
        return PluginFailedError(self._sentence(what), kind=kind)

    def _sentence(self, what: str) -> str:
        return f"{self.source.text(self.kind)} {what}; {self.kind.instead}"


class ServiceSide:
    """An object of the service's event loop, as plugins use it in their own threads.

    Its coroutines run on the loop that it belongs to.
    """

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Pass the calls on to `inner`, which belongs to `loop`."""
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        """Return the attribute; a method that may be awaited runs on its own loop."""
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*arguments: Any, **named: Any) -> Awaitable[Any]:
            if asyncio.get_running_loop() is self._loop:
                return found(*arguments, **named)  # type: ignore[no-any-return]
            running = asyncio.run_coroutine_threadsafe(found(*arguments, **named), self._loop)
            return asyncio.wrap_future(running)

        return call
