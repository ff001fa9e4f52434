"""Slurm's commands are run with limits, and their failures say whether to wait or what to do."""

import asyncio
from pathlib import Path

import pytest

from services.notifier.workload.workload_notifier import StepFailure
from services.workload_systems import slurm_commands
from services.workload_systems.slurm_client import SlurmRefusedError, SlurmUnavailableError
from services.workload_systems.slurm_commands import SlurmCommands


def commands(folder: Path, script: str, *, seconds_max: float = 20.0) -> SlurmCommands:
    """A `scontrol` that is this script."""
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return SlurmCommands(folder=str(folder), conf="/site/slurm.conf", seconds_max=seconds_max)


async def test_hung_command_is_killed_with_its_children(tmp_path: Path) -> None:
    """A slurmctld that accepts and never answers costs one time limit, and leaves no process."""
    script = f"echo $$ > {tmp_path}/pid; sleep 1000 & wait"
    slurm = commands(tmp_path, script, seconds_max=0.5)
    with pytest.raises(SlurmUnavailableError, match=r"scontrol did not end within 0\.5 s"):
        await slurm.run("scontrol", "ping")
    process = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}")
    async with asyncio.timeout(5):
        while process.exists():
            await asyncio.sleep(0.01)


async def test_endless_output_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints without end does not fill the notifier's memory."""
    monkeypatch.setattr(slurm_commands, "OUTPUT_BYTES_MAX", 1_000_000)
    with pytest.raises(StepFailure, match="more than 1000000 bytes"):
        await commands(tmp_path, "exec yes").run("scontrol")


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ("slurm_update error: Invalid user id", StepFailure),
        ("Access/permission denied for job 1", StepFailure),
        ("slurm_load_jobs error: Unable to contact slurm controller", SlurmUnavailableError),
        ("scontrol: error: Socket timed out on send/recv operation", SlurmUnavailableError),
        ("scontrol: fatal: Could not establish a configuration source", SlurmUnavailableError),
        ("slurm_update error: Invalid node name specified", SlurmRefusedError),
    ],
)
async def test_kinds_of_failure_are_distinguished(
    tmp_path: Path, message: str, failure: type[Exception]
) -> None:
    """An outage is retried; a missing right fails the step; the rest is Slurm's refusal."""
    with pytest.raises(failure, match=message):
        await commands(tmp_path, f"echo '{message}' >&2; exit 1").run("scontrol")


async def test_environment_that_changes_the_output_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's SQUEUE_FORMAT, or another time zone, would make the output unreadable."""
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    output = await commands(tmp_path, "env").run("scontrol")
    assert "TZ=UTC" in output
    assert "SLURM_CONF=/site/slurm.conf" in output
    assert "SQUEUE_FORMAT" not in output
    assert "SLURM_TIME_FORMAT" not in output


async def test_missing_command_says_what_to_install(tmp_path: Path) -> None:
    """The notifier's host lacks Slurm's commands."""
    slurm = SlurmCommands(folder=str(tmp_path), conf="", seconds_max=5)
    with pytest.raises(StepFailure, match="cannot be run here") as failure:
        await slurm.run("sinfo")
    assert "slurm-client" in failure.value.remedy
