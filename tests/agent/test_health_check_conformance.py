"""The suite that authors of health checks run: our own keep it, and what breaks it is reported."""

import asyncio
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from agent.maintenance.diagnostics.disk_space import DiskSpace
from agent.maintenance.diagnostics.health_check_conformance import HealthCheckConformance
from agent.maintenance.diagnostics.health_check_plugins import load_checks
from schemas.node_events import CheckResult
from tests.agent.test_health_check_plugins import AtBoot, Bad, Good

GIB = 1024**3
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as shutil's


class TestDiskSpace(HealthCheckConformance):
    make = DiskSpace


class TestACheckOfEachInterval(HealthCheckConformance):
    make = Good


class TestACheckAtBoot(HealthCheckConformance):
    make = AtBoot


class TestACheckThatFails(HealthCheckConformance):
    make = Bad


class Misnamed(Good):
    name = "Scratch Disk"


class Usurper(Good):
    name = "dcgm"


class Hasty(Good):
    interval_seconds = 0.01


class Silent(Good):
    async def run(self) -> CheckResult:
        return CheckResult(name="silent", ok=True)


class Verbose(Good):
    async def run(self) -> CheckResult:
        return CheckResult(name="verbose", ok=True, detail="two\nlines")


class Raising(Good):
    async def run(self) -> CheckResult:
        raise ValueError("a bug")


class Once(Good):
    """Keeps what belongs to the loop it was first run in."""

    def __init__(self) -> None:
        self.kept: asyncio.AbstractEventLoop | None = None

    async def run(self) -> CheckResult:
        self.kept = self.kept or asyncio.get_running_loop()
        await self.kept.create_future() if self.kept.is_closed() else None
        self.kept.call_soon(lambda: None)
        return await super().run()


class Stubborn(Good):
    async def run(self) -> CheckResult:
        for _ in range(3):
            try:
                await asyncio.sleep(0.6)
            except asyncio.CancelledError:
                continue
        return await super().run()


class Littering(Good):
    async def run(self) -> CheckResult:
        threading.Thread(target=threading.Event().wait, args=(0.5,)).start()
        return await super().run()


@pytest.mark.parametrize(
    ("kind", "broken", "published"),
    [
        (Misnamed, "test_it_has_a_name_of_its_own", "'Scratch Disk' is not a-z"),
        (Usurper, "test_it_has_a_name_of_its_own", "one of the agent's own"),
        (Hasty, "test_it_says_how_often_it_is_run", "interval_seconds is 0.01"),
        (Silent, "test_it_answers_in_one_sentence", "detail is empty"),
        (Verbose, "test_it_answers_in_one_sentence", "not one printable line"),
        (Raising, "test_the_agent_can_run_it", "failed in run: ValueError: a bug"),
        (Once, "test_it_can_be_run_again", ""),
        (Stubborn, "test_it_ends_when_it_is_cancelled", "still runs 1 s after its end"),
        (Littering, "test_it_leaves_nothing_running", "threads are left"),
    ],
)
def test_what_a_check_breaks_is_reported(kind: type, broken: str, published: str) -> None:
    """Each demand has a check that breaks it."""
    suite = type("Suite", (HealthCheckConformance,), {"make": kind})()
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        getattr(suite, broken)()
    assert published in str(caught.value)


def test_an_author_runs_it_with_pytest(tmp_path: Path) -> None:
    """The guide's way works: a package of one's own, and the names of what it breaks are shown."""
    (tmp_path / "acme_checks.py").write_text(
        "from schemas.node_events import CheckResult\n"
        "class ScratchDisk:\n"
        "    name, interval_seconds = 'scratch-disk', 300.0\n"
        "    async def run(self):\n"
        "        return CheckResult(name=self.name, ok=True, detail='/scratch can be written')\n"
        "class Wrong(ScratchDisk):\n"
        "    interval_seconds = -1\n"
    )
    (tmp_path / "test_acme.py").write_text(
        "from acme_checks import ScratchDisk, Wrong\n"
        "from agent.maintenance.diagnostics import health_check_conformance as suite\n"
        "class TestScratchDisk(suite.HealthCheckConformance):\n"
        "    make = ScratchDisk\n"
        "class TestWrong(suite.HealthCheckConformance):\n"
        "    make = Wrong\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 13 passed" in done.stdout
    assert "TestWrong::test_it_says_how_often_it_is_run" in done.stdout


@pytest.mark.parametrize(
    ("usage", "ok", "detail"),
    [
        (Usage(1000 * GIB, 900 * GIB, 100 * GIB), True, "100.0 GiB (10.0 %) of / are free"),
        (Usage(1000 * GIB, 980 * GIB, 20 * GIB), False, "20.0 GiB (2.0 %) of / are free"),
        (Usage(10 * GIB, 9 * GIB, GIB), False, "1.0 GiB (10.0 %) of / are free"),
        (Usage(0, 0, 0), False, "0.0 GiB (0.0 %) of / are free"),
    ],
)
async def test_a_disk_without_room_fails(
    usage: Usage, ok: bool, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room is judged by share and by size; an empty answer of the kernel is no room."""
    monkeypatch.setattr(
        "agent.maintenance.diagnostics.disk_space.shutil.disk_usage", lambda _: usage
    )
    found = await DiskSpace().run()
    assert (ok, detail) == (found.ok, found.detail)


async def test_our_own_check_is_named_as_the_guide_says(tmp_path: Path) -> None:
    """The module and class name the check; a place that is not there fails it and nothing else."""
    [check] = load_checks("agent.maintenance.diagnostics.disk_space:DiskSpace")
    assert ("disk-space", 300.0) == (check.name, check.interval_seconds)
    missing = await DiskSpace(tmp_path / "none").run()
    assert (False, True) == (missing.ok, "No such file" in missing.detail)
