"""Tests what every `HealthCheck` must keep: the author of a plugin runs them with pytest.

A class of tests in a package of yours inherits from the one here and says how the check is made:

    from navarch.agent.maintenance.diagnostics import health_check_conformance

    class TestScratchDisk(health_check_conformance.HealthCheckConformance):
        make = ScratchDisk

Nothing of pytest is needed here, so that it is no burden on a GPU host.
"""

import asyncio
import math
import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final

from agent.maintenance.diagnostics.health_check_plugins import HealthCheck, PluginRunner
from agent.maintenance.diagnostics.health_checks import CHECKS
from agent.observations import DETAIL_CHARS_MAX
from schemas.node_events import CheckResult

NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
TAKEN: Final = frozenset({"boot", *(each.name for each in CHECKS)})
"""Names that the agent's own tests have."""
INTERVAL_SECONDS_MIN: Final = 1.0
CANCEL_SECONDS_MAX: Final = 1.0


class HealthCheckConformance:
    """Inherit, name the class `Test…`, and set `make`."""

    make: ClassVar[Callable[[], HealthCheck]]
    """Makes the check without arguments, as the agent does: most often the check's class."""
    seconds_max: ClassVar[float] = 30.0
    """How long the check may take; the agent's own bound is NAVARCH_HEALTH_CHECK_DEADLINE."""

    def test_it_has_a_name_of_its_own(self) -> None:
        """Lower case, digits and dashes; not one of the agent's own; the same each time."""
        name = self._made().name
        assert isinstance(name, str), f"name is {name!r}, and no text"
        assert NAME.fullmatch(name), f"name {name!r} is not a-z, 0-9 and -, up to 63"
        assert name not in TAKEN, f"name {name!r} is one of the agent's own checks"
        assert name == self._made().name, "a second one has another name"

    def test_it_says_how_often_it_is_run(self) -> None:
        """0: once a boot; else a finite number of seconds, one at least."""
        interval = self._made().interval_seconds
        assert isinstance(interval, int | float), f"interval_seconds is {interval!r}"
        assert math.isfinite(interval), f"interval_seconds is {interval!r}"
        assert interval == 0 or interval >= INTERVAL_SECONDS_MIN, (
            f"interval_seconds is {interval:g}: 0, or {INTERVAL_SECONDS_MIN:g} at least"
        )

    def test_it_answers_in_one_sentence(self) -> None:
        """A CheckResult: whether it is well, and one printable line that says what was found."""
        found = self._run(self._made())
        assert isinstance(found, CheckResult), f"returned {found!r}, and no CheckResult"
        assert isinstance(found.ok, bool), f"ok is {found.ok!r}"
        detail = found.detail
        assert isinstance(detail, str), f"detail is {detail!r}"
        assert detail.strip(), "detail is empty: say what was found"
        assert detail.isprintable(), f"detail {detail!r} is not one printable line"
        assert len(detail) <= DETAIL_CHARS_MAX, f"detail has {len(detail)} characters"

    def test_it_can_be_run_again(self) -> None:
        """The agent keeps one and runs it for ever, each time in a loop of its own."""
        check = self._made()
        for _ in range(3):
            assert isinstance(self._run(check), CheckResult)

    def test_it_ends_when_it_is_cancelled(self) -> None:
        """A check that is not done in time is cancelled, and must not hold on."""

        async def cancelled() -> bool:
            task = asyncio.ensure_future(self._made().run())
            await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=CANCEL_SECONDS_MAX)
            return bool(done)

        assert asyncio.run(cancelled()), f"still runs {CANCEL_SECONDS_MAX:g} s after its end"

    def test_it_leaves_nothing_running(self) -> None:
        """Neither tasks nor threads: what a check starts, it ends."""

        async def left() -> set[str]:
            await self._made().run()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            return {task.get_name() for task in others if not task.done()}

        before = set(threading.enumerate())
        assert asyncio.run(left()) == set(), "tasks are left"
        threads = [t.name for t in threading.enumerate() if t not in before and not t.daemon]
        assert threads == [], "threads are left"

    def test_the_agent_can_run_it(self) -> None:
        """The agent runs it in a thread under its deadline and gets a result that is no failure."""
        check = self._made()
        found = asyncio.run(PluginRunner(check).run(self.seconds_max))
        assert found.name == check.name
        assert found.ran, found.detail

    def _made(self) -> HealthCheck:
        # By the class: a plain function would be bound to this instance.
        return type(self).make()

    def _run(self, check: HealthCheck) -> Any:
        return asyncio.run(asyncio.wait_for(check.run(), self.seconds_max))
