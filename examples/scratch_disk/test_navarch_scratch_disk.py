"""Runs Navarch's suite for health checks on a folder, and meets disks that are not fit."""

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from navarch.agent.maintenance.diagnostics.health_check_conformance import HealthCheckConformance
from navarch_scratch_disk import FOLDER, ScratchDisk


class SmallDisk(ScratchDisk):
    """Needs no more space than a test has."""

    free_bytes_min: ClassVar[int] = 2**20


class FullDisk(ScratchDisk):
    """Needs more space than there is."""

    free_bytes_min: ClassVar[int] = 2**62


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the agent's environment names."""
    monkeypatch.setenv("SCRATCH_FOLDER", str(tmp_path))
    return tmp_path


class TestScratchDisk(HealthCheckConformance):
    """Runs the check as the agent does."""

    make = SmallDisk


def test_a_disk_that_can_be_written_is_well(folder: Path) -> None:
    """The sentence says how much is free, and no file is left."""
    found = asyncio.run(SmallDisk().run())
    assert found.ok, found.detail
    assert f"MiB are free on {folder}" in found.detail
    assert list(folder.iterdir()) == []


async def test_a_full_disk_is_not_well() -> None:
    """The sentence says how much is free, and how much is needed."""
    found = await FullDisk().run()
    assert not found.ok
    assert ", fewer than " in found.detail


async def test_a_disk_that_is_not_mounted_is_not_well(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check answers, where an exception would leave its result unknown."""
    monkeypatch.setenv("SCRATCH_FOLDER", str(folder / "missing"))
    found = await SmallDisk().run()
    assert not found.ok
    assert "No such file or directory" in found.detail


async def test_an_empty_variable_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual folder is tested, and not the one in which the agent happens to run."""
    monkeypatch.setenv("SCRATCH_FOLDER", "")
    assert FOLDER in (await SmallDisk().run()).detail
