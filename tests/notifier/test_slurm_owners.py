"""A user of several Slurm jobs on a node gets one message about a drain of it."""

from pathlib import Path

import pytest

from services.notifier.workload.slurm_owners import NOTICES_TRIED_MAX, notify_owners
from services.workload_systems.slurm_commands import SlurmCommands
from services.workload_systems.slurm_output import SlurmJob
from tests.notifier.test_owner_notices import about

SCONTROL = """
echo "$1 $2" >> {folder}/asked
[ "$1" = notify ] || exit 0
case " {refuses} " in *" $2 "*) echo 'Invalid job id specified' >&2; exit 1;; esac
"""


def job(number: int, user: str = "alice", state: str = "RUNNING") -> SlurmJob:
    """Return a job on one node."""
    return SlurmJob(
        id=str(number),
        number=str(number),
        user=user,
        started_at=None,
        ends_at=None,
        nodes=("gpu1",),
        node_count=1,
        state=state,
        name="train",
    )


@pytest.mark.parametrize(
    ("jobs", "refuses", "asked_of", "failed"),
    [
        ([job(1), job(2), job(3)], "", "1", 0),
        ([job(1), job(2), job(3)], "1", "1 2", 0),
        ([job(1), job(2, "bob"), job(3)], "", "1 2", 0),
        ([job(each) for each in range(1, 9)], "1 2 3", "1 2 3", 1),
        ([job(1, state="COMPLETING"), job(2)], "", "2", 0),
        ([], "", "", 0),
    ],
    ids=["one of three", "the next", "each user", "few are tried", "what ends", "no job"],
)
async def test_a_user_of_several_jobs_hears_once(
    tmp_path: Path, jobs: list[SlurmJob], refuses: str, asked_of: str, failed: int
) -> None:
    """Each job has the comment; the message goes to one of them, and to another if that fails."""
    for name, script in (
        ("scontrol", SCONTROL.format(folder=tmp_path, refuses=refuses)),
        ("squeue", "exit 0"),
    ):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    slurm = SlurmCommands(folder=str(tmp_path), conf="", seconds_max=20.0)
    notices = await notify_owners(slurm, about("xid-79"), "gpu1", jobs, "is requeued")

    noted = tmp_path / "asked"
    asked = noted.read_text().splitlines() if noted.exists() else []
    live = [each for each in jobs if each.state != "COMPLETING"]
    tried = sorted(each.removeprefix("notify ") for each in asked if each.startswith("notify "))
    assert tried == asked_of.split()
    comments = sorted(each for each in asked if each.startswith("update "))
    assert comments == [f"update JobId={each.number}" for each in live]
    assert {each.owner for each in notices} == {each.user for each in live}
    assert sum(bool(each.failure) for each in notices) == failed
    assert len(asked_of.split()) <= NOTICES_TRIED_MAX
