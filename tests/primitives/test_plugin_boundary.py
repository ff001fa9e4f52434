"""The boundary of plugins, with real threads: whatever one does, its caller gets a sentence."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pytest

from schemas.plugin_kinds import AUTOSCALER
from services.primitives.plugin_boundary import (
    FAILURES_FREE,
    LOST_MAX,
    GuardedPlugin,
    PluginFailedError,
    ServiceSide,
)
from services.primitives.plugin_contract import PluginContract, source_of
from services.primitives.plugin_thread import THREAD_PREFIX

KIND = msgspec.structs.replace(AUTOSCALER, call_seconds=0.4, block_seconds=0.4, at_once=4)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    why: str = ""


class AllowedError(Exception):
    """The contract has this error."""


class Contract(Protocol):
    async def ask(self, what: str) -> Answer: ...


@dataclass
class Plugin:
    """Does what it is asked for."""

    release: threading.Event
    tasks: int = 0

    async def ask(self, what: str) -> Any:
        if what in ANSWERS:
            return ANSWERS[what]
        if what in ERRORS:
            raise ERRORS[what]
        if what == "wait":
            await asyncio.Event().wait()
        if what == "block":
            self.release.wait()
        if what == "exit in a task":
            self.tasks += 1
            await asyncio.wait({asyncio.create_task(_exit())})
        return Answer(nodes=self.tasks, why=threading.current_thread().name)


ANSWERS: dict[str, Any] = {
    "answer": Answer(nodes=3),
    "mapping": {"nodes": 3},
    "wrong": Answer(nodes="many"),  # type: ignore[arg-type]
    "none": None,
}
ERRORS = {
    "raise": KeyError("x"),
    "allowed": AllowedError("no"),
    "exit": SystemExit(4),
    "cancel": asyncio.CancelledError(),
}


async def _exit() -> None:
    raise SystemExit(5)


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., GuardedPlugin]]:
    """Make guarded plugins, whose threads end with the test."""
    release, made = threading.Event(), []

    def guard(**changes: Any) -> GuardedPlugin:
        contract = PluginContract(kind=KIND, protocols=(Contract,), errors=(AllowedError,))
        plugin = Plugin(release)
        source = source_of(plugin, KIND, "acme")
        settings: dict[str, Any] = {"make": lambda: Plugin(release), "threads": True} | changes
        made.append(GuardedPlugin(contract, plugin, source, **settings))
        return made[-1]

    yield guard
    release.set()
    for each in made:
        await each.close()
        threads = [*each._past, *([each._thread] if each._thread else [])]
        assert [thread.join() for thread in threads] == [True] * len(threads)


FAILURES = {
    "none": "ask returned None, and not Answer",
    "wrong": "ask returned Answer Answer(nodes='many', why=''), and not Answer",
    "raise": "failed in ask: KeyError: 'x' (test_plugin_boundary.py:",
    "exit": "failed in ask: PluginExitError: SystemExit: 4",
    "cancel": "cancelled itself in ask",
    "wait": "did not answer ask within 0.4 s",
    "block": "did not come back from ask for 0.4 s: it blocks its thread",
}


@pytest.mark.parametrize(("what", "said"), FAILURES.items(), ids=FAILURES)
async def test_each_misbehaviour_is_one_sentence(
    make: Callable[..., GuardedPlugin], what: str, said: str
) -> None:
    """The sentence names kind, name and package, what it did, and what happens instead."""
    guard = make()
    began = time.monotonic()
    with pytest.raises(PluginFailedError) as error:
        await guard.call("ask", what)
    assert str(error.value).startswith("the autoscaler acme (module tests) ")
    assert said in str(error.value)
    assert str(error.value).endswith("; the pool keeps its size")
    assert time.monotonic() - began < 5
    assert guard.reason == str(error.value)
    assert guard.health().last_error_at is not None
    assert (await guard.call("ask", "answer")).nodes == 3
    assert guard.reason == ""
    assert (guard.health().calls, guard.health().failures) == (2, 1)


@pytest.mark.parametrize("what", ["none", "wrong", "raise", "cancel", "wait"])
async def test_without_a_thread_the_sentence_is_the_same(
    make: Callable[..., GuardedPlugin], what: str
) -> None:
    """A simulation has one thread; it sees the same failures, but for blocked threads."""
    guard = make(threads=False)
    with pytest.raises(PluginFailedError) as error:
        await guard.call("ask", what)
    assert FAILURES[what] in str(error.value)


async def test_an_answer_is_converted_and_an_error_of_the_contract_passes(
    make: Callable[..., GuardedPlugin],
) -> None:
    """A mapping with a struct's fields is that struct; a contract's own error is no failure."""
    guard = make()
    assert await guard.call("ask", "mapping") == Answer(nodes=3)
    with pytest.raises(AllowedError):
        await guard.call("ask", "allowed")
    assert guard.health().failures == 0


async def test_it_runs_in_a_named_thread_of_its_own(make: Callable[..., GuardedPlugin]) -> None:
    """Another plugin's thread is another, and its loop survives a task that ends the process."""
    guard = make()
    assert (await guard.call("ask", "where")).why == f"{THREAD_PREFIX}autoscaler acme"
    assert (await guard.call("ask", "exit in a task")).nodes == 1
    assert (await guard.call("ask", "exit in a task")).nodes == 2


async def test_after_so_many_lost_threads_it_is_off(make: Callable[..., GuardedPlugin]) -> None:
    """The number of blocked threads is bounded; an operator begins with the plugin again."""
    guard = make()
    before = threading.active_count()
    for _ in range(LOST_MAX):
        with pytest.raises(PluginFailedError, match="blocks its thread"):
            await guard.call("ask", "block")
    for _ in range(5):
        with pytest.raises(PluginFailedError, match="is off: it has not come back 3 times"):
            await guard.call("ask", "answer")
    assert threading.active_count() - before <= LOST_MAX
    assert guard.health().state == "off"
    guard.switch("")
    assert (await guard.call("ask", "answer")).nodes == 3


async def test_one_call_that_blocks_fails_the_others_and_no_more(
    make: Callable[..., GuardedPlugin],
) -> None:
    """Calls at the same time fail with the thread that is given up; the next ones are answered."""
    guard = make()
    found = await asyncio.gather(
        *(guard.call("ask", what) for what in ("block", "answer", "wait")), return_exceptions=True
    )
    assert all(isinstance(each, PluginFailedError) for each in found)
    assert (await guard.call("ask", "answer")).nodes == 3
    assert guard.health().threads_lost == 1


async def test_a_method_that_keeps_failing_rests(make: Callable[..., GuardedPlugin]) -> None:
    """Failures in a row are free at first; then the method is left alone for longer each time."""
    now = [0.0]
    guard = make(threads=False, monotonic=lambda: now[0])
    for _ in range(FAILURES_FREE):
        with pytest.raises(PluginFailedError):
            await guard.call("ask", "raise")
    with pytest.raises(PluginFailedError, match="KeyError"):
        await guard.call("ask", "answer")
    assert guard.health().calls == FAILURES_FREE
    now[0] = 1.5
    assert (await guard.call("ask", "answer")).nodes == 3
    assert guard.health().state == "works"


async def test_a_disabled_plugin_is_not_called(make: Callable[..., GuardedPlugin]) -> None:
    """The sentence says by whom it is disabled, until it is enabled."""
    guard = make()
    guard.switch("ann")
    with pytest.raises(PluginFailedError, match="is disabled by ann; the pool keeps its size"):
        await guard.call("ask", "answer")
    assert guard.health().state == "disabled"
    guard.switch("")
    assert (await guard.call("ask", "answer")).nodes == 3


async def test_a_cancelled_caller_is_no_failure(make: Callable[..., GuardedPlugin]) -> None:
    """The plugin's coroutine is cancelled with its caller, and nothing is reported."""
    guard = make()
    asking = asyncio.create_task(guard.call("ask", "wait"))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert guard.reason == ""
    assert (await guard.call("ask", "answer")).nodes == 3


async def test_each_step_is_written_down_before_it_begins() -> None:
    """A step that ends the process leaves its label behind; between steps there is none."""
    steps: list[str] = []
    release = threading.Event()
    plugin = Plugin(release)
    contract = PluginContract(kind=KIND, protocols=(Contract,))
    source = source_of(plugin, KIND, "acme")
    guard = GuardedPlugin(contract, plugin, source, threads=True, on_step=steps.append)
    await guard.call("ask", "exit in a task")
    assert steps[0] == "ask"
    assert steps[1::2] == [""] * (len(steps) // 2)
    assert set(steps[::2]) == {"ask"}
    await guard.close()


async def test_the_service_s_objects_are_used_from_a_plugin_s_thread() -> None:
    """A coroutine of the service runs on the loop that it belongs to, wherever it is awaited."""
    loop = asyncio.get_running_loop()

    class Bus:
        name = "bus"

        async def get(self, key: str) -> tuple[str, bool]:
            return key, asyncio.get_running_loop() is loop

    side = ServiceSide(Bus(), loop)
    assert side.name == "bus"
    assert await side.get("a") == ("a", True)
    assert await asyncio.to_thread(lambda: asyncio.run(_get(side))) == ("b", True)


async def _get(side: Any) -> Any:
    return await side.get("b")
