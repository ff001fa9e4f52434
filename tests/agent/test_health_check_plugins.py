"""Health checks that other people wrote: whatever they do, the agent stays what it is."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.maintenance.diagnostics.health_check_plugins import PluginRunner, load_checks
from schemas.agent_commands import DiagnoseRequest
from schemas.node_events import CheckResult
from services.primitives.errors import ConfigurationError
from tests.agent.bed import Bed


class Good:
    name = "good"
    interval_seconds = 60.0

    async def run(self) -> CheckResult:
        return CheckResult(name="whatever", ok=True, detail="all is well")


class AtBoot(Good):
    name = "at-boot"
    interval_seconds = 0.0


class Bad(Good):
    async def run(self) -> CheckResult:
        return CheckResult(name="bad", ok=False, detail="the disk is full")


class Raises(Good):
    async def run(self) -> CheckResult:
        raise ValueError("a bug")


class Exits(Good):
    async def run(self) -> CheckResult:
        sys.exit(3)


class Nonsense(Good):
    async def run(self) -> Any:
        return "fine"


class Waits(Good):
    async def run(self) -> CheckResult:
        await asyncio.Event().wait()
        raise AssertionError


class Blocks(Good):
    async def run(self) -> CheckResult:
        time.sleep(30)  # noqa: ASYNC251 - that is the fault
        raise AssertionError


PLUGINS: list[tuple[Callable[[], Any], bool, bool, str]] = [
    (Good, True, True, "all is well"),
    (Bad, False, True, "the disk is full"),
    (Raises, False, False, "failed in run: ValueError: a bug (test_health_check_plugins.py:"),
    (Exits, False, False, "failed in run: PluginExitError: SystemExit: 3"),
    (Nonsense, False, False, "run returned str 'fine', and not CheckResult"),
    (Waits, False, False, "did not answer run within 0.2 s"),
    (Blocks, False, False, "did not answer run within 0.2 s"),
]


@pytest.mark.parametrize(
    ("kind", "ok", "ran", "detail"), PLUGINS, ids=[p[0].__name__ for p in PLUGINS]
)
async def test_a_plugin_can_fail_nothing_but_its_check(
    kind: Callable[[], Any], ok: bool, ran: bool, detail: str
):
    """A plugin's finding names it within its deadline whatever it does; what failed has not run."""
    found = await PluginRunner(kind()).run(0.2)
    assert (found.name, found.ok, found.ran) == ("good", ok, ran)
    assert detail in found.detail
    assert ran or "the health check good (module tests) " in found.detail
    assert ran or found.detail.endswith("the node is not degraded for it")


async def test_plugins_run_at_boot_or_at_their_interval(bed: Bed):
    """Interval 0 means once, with the boot checks; else at once and at each interval."""
    bed.plugins = [PluginRunner(AtBoot()), PluginRunner(Bad())]
    diagnostics = bed.make(boot_tests="none")
    assert [each.name for each in await diagnostics.at_boot()] == ["at-boot"]
    task = asyncio.create_task(diagnostics.run())
    async with asyncio.timeout(60):
        await bed.clock.pass_on(times=16)
        await bed.clock.pausing.acquire()
    task.cancel()
    await asyncio.wait({task})
    assert [each.detail for each in bed.failures] == ["the disk is full"] * 2
    asked = DiagnoseRequest(checks=("at-boot", "good"))
    assert [each.ok for each in (await diagnostics.answer(asked)).checks] == [True, False]


def test_plugins_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An entry point names a plugin, or module and class do; a refusal lists what is installed."""
    package = tmp_path / "acme"
    package.mkdir()
    (package / "acme_checks.py").write_text(
        "class Disk:\n    name = 'disk'\n    interval_seconds = 300\n"
    )
    info = package / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[navarch.health_checks]\ndisk = acme_checks:Disk\n")
    monkeypatch.syspath_prepend(str(package))
    assert [(each.name, each.interval_seconds) for each in load_checks("all")] == [("disk", 300)]
    assert [each.name for each in load_checks("disk, acme_checks:Disk")] == ["disk", "disk"]
    assert load_checks("none") == ()
    with pytest.raises(ConfigurationError, match=r"no health check named 'tape' \(installed: disk"):
        load_checks("tape")
    with pytest.raises(ConfigurationError, match="acme_checks:Tape cannot be loaded: Attribute"):
        load_checks("acme_checks:Tape")
    (package / "acme_broken.py").write_text("class\n")
    with pytest.raises(ConfigurationError, match="acme_broken:X cannot be loaded: SyntaxError"):
        load_checks("acme_broken:X")
