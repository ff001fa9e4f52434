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


PLUGINS: list[tuple[Callable[[], Any], bool, str]] = [
    (Good, True, "all is well"),
    (Bad, False, "the disk is full"),
    (Raises, False, "raised ValueError: a bug"),
    (Exits, False, "raised SystemExit: 3"),
    (Nonsense, False, "returned no CheckResult: 'fine'"),
    (Waits, False, "not done in 0.2 s"),
    (Blocks, False, "not done in 0.2 s"),
]


@pytest.mark.parametrize(("kind", "ok", "detail"), PLUGINS, ids=[p[0].__name__ for p in PLUGINS])
async def test_a_plugin_can_fail_nothing_but_its_check(
    kind: Callable[[], Any], ok: bool, detail: str
):
    """Whatever a plugin does, its finding says so within its deadline."""
    found = await PluginRunner(kind()).run(0.2)
    assert (found.name, found.ok, found.detail, found.ran) == ("good", ok, detail, True)


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
    """By entry point, or by module and class; what is not there is said with what is."""
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
