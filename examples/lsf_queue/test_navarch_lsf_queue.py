"""Runs Navarch's suite for metrics sources with a stand-in for LSF's command."""

import asyncio
from pathlib import Path

import pytest
from navarch.services.pool_manager.autoscaling.metrics_source_conformance import (
    POOL,
    SourceConformance,
)
from navarch.services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from navarch_lsf_queue import LsfQueue

JOBS = """
{"COMMAND": "bjobs", "JOBS": 6, "RECORDS": [
  {"STAT": "RUN", "EXEC_HOST": "8*gpu1:8*gpu2", "PEND_REASON": ""},
  {"STAT": "USUSP", "EXEC_HOST": "gpu2", "PEND_REASON": ""},
  {"STAT": "PEND", "EXEC_HOST": "", "PEND_REASON": "Not enough GPUs: 4 hosts;"},
  {"STAT": "PEND", "EXEC_HOST": "", "PEND_REASON": "Job dependency condition not satisfied;"},
  {"STAT": "PSUSP", "EXEC_HOST": "", "PEND_REASON": "The job was suspended by the user"},
  {"STAT": "DONE", "EXEC_HOST": "gpu3", "PEND_REASON": ""}
]}
"""
SECONDS_MAX = 0.2


def source(folder: Path, program: str, timeout: float = 10.0) -> LsfQueue:
    """Return the source whose command is a program of the shell; $1 to $7 are its arguments."""
    script = folder / "bjobs"
    script.write_text(program)
    options = LsfQueue.Options(command=("/bin/sh", str(script)), timeout_seconds=timeout)
    return LsfQueue(options=options)


def printing(text: str) -> str:
    """Return a program that prints a text."""
    return f"cat <<'END'\n{text}\nEND\n"


class TestLsfQueue(SourceConformance):
    """Asks a system that answers, and one that is away."""

    @pytest.fixture
    def answered(self, tmp_path: Path) -> LsfQueue:
        """Return a source whose system answers."""
        return source(tmp_path, printing(JOBS))

    @pytest.fixture
    def unanswered(self, tmp_path: Path) -> LsfQueue:
        """Return a source whose system is away."""
        return source(tmp_path, "exit 255")


async def test_jobs_are_counted_by_what_they_wait_for(tmp_path: Path) -> None:
    """Suspended and dependent jobs need no node, and hosts are counted once."""
    found = await source(tmp_path, printing(JOBS)).load(POOL)
    assert found == Load(pending_jobs=1, queue_depth=3, busy_nodes=2, not_for_nodes=2)


async def test_an_empty_queue_has_no_job(tmp_path: Path) -> None:
    """No job is a figure: the pool may shrink."""
    found = await source(tmp_path, printing('{"JOBS": 0, "RECORDS": []}')).load(POOL)
    assert found == Load(pending_jobs=0, queue_depth=0, busy_nodes=0)


async def test_the_queue_of_the_pool_is_asked_about(tmp_path: Path) -> None:
    """The command gets every user's jobs of one queue."""
    arguments = tmp_path / "arguments"
    program = f"echo \"$*\" > '{arguments}'\n{printing(JOBS)}"
    await source(tmp_path, program).load(POOL)
    assert arguments.read_text().startswith(f"-u all -q {POOL} -json -o stat ")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("exit 255", "ended with status 255"),
        (printing("LSF is down"), "printed no list"),
        (printing('{"RECORDS": null}'), "printed no list"),
        ("exec sleep 60", "did not end within 0.2 s"),
    ],
)
async def test_what_is_no_answer_is_no_load(tmp_path: Path, program: str, problem: str) -> None:
    """A failure is a SourceError with its reason, and never an empty queue."""
    with pytest.raises(SourceError, match=problem):
        await source(tmp_path, program, SECONDS_MAX).load(POOL)


async def test_a_wrapper_ends_with_the_program_that_it_runs(tmp_path: Path) -> None:
    """A child that keeps the output open does not hold the question."""
    async with asyncio.timeout(10.0):
        with pytest.raises(SourceError, match="did not end"):
            await source(tmp_path, "sleep 60; echo", SECONDS_MAX).load(POOL)


async def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    """The operator reads which program this host lacks."""
    missing = str(tmp_path / "missing")
    with pytest.raises(SourceError, match=f"{missing} cannot be run here"):
        await LsfQueue(options=LsfQueue.Options(command=(missing,))).load(POOL)
