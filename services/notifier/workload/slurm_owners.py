"""Notifies the users of Slurm jobs that a drain will end them.

Each job of a user has the text as its AdminComment, which `scontrol show job` shows beside the
user's own comment, and one of them gets it by `scontrol notify`, in its output.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from services.notifier.workload.owner_text import disruption_text
from services.notifier.workload.workload_notifier import OwnerNotice, StepFailure, WorkloadOrder
from services.workload_systems.slurm_client import SlurmRefusedError, SlurmUnavailableError
from services.workload_systems.slurm_output import SlurmJob
from services.workload_systems.slurm_rest import SlurmClient

BY_NAVARCH: Final = "Navarch "
"""Admin comments of Navarch begin with this; any other is the site's, and stays."""
JOBS_MAX: Final = 100
"""Jobs of one node whose comment is written: an array may have hundreds of small tasks there."""
NOTICES_TRIED_MAX: Final = 3
"""Jobs of one user that are tried until one takes the message."""
FAILURES: Final = (SlurmRefusedError, SlurmUnavailableError, StepFailure)


async def notify_owners(
    slurm: SlurmClient, order: WorkloadOrder, node: str, jobs: Sequence[SlurmJob], then: str
) -> Sequence[OwnerNotice]:
    """Send each user of jobs on a node one message, and comment the jobs."""
    text = disruption_text(order, then, node)
    comments = await slurm.admin_comments(node)
    return await asyncio.gather(
        *(
            _notify(slurm, owner, theirs, text, comments)
            for owner, theirs in jobs_by_user(jobs[:JOBS_MAX]).items()
        )
    )


def jobs_by_user(jobs: Sequence[SlurmJob]) -> Mapping[str, Sequence[SlurmJob]]:
    """Return the jobs that a drain would end, by their users. Pure."""
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        if job.state != "COMPLETING":
            found.setdefault(job.user, []).append(job)
    return found


async def _notify(
    slurm: SlurmClient,
    owner: str,
    jobs: Sequence[SlurmJob],
    text: str,
    comments: Mapping[str, str],
) -> OwnerNotice:
    failure = ""
    for job in jobs:
        before = comments.get(job.number, "")
        if before and not before.startswith(BY_NAVARCH):
            continue
        try:
            await slurm.set_admin_comment(job.number, text)
        except FAILURES as error:
            failure = failure or f"the comment of job {job.id} was not written: {error}"
    if await slurm.sends_messages():
        failure = await _message(slurm, jobs, text) or failure
    return OwnerNotice(owner=owner, work=tuple(f"job {each.id}" for each in jobs), failure=failure)


async def _message(slurm: SlurmClient, jobs: Sequence[SlurmJob], text: str) -> str:
    """Send it to one of the jobs; return why none took it."""
    failure = ""
    for job in jobs[:NOTICES_TRIED_MAX]:
        try:
            await slurm.send_message(job.number, text)
        except FAILURES as error:
            failure = failure or f"job {job.id} got no message: {error}"
        else:
            return ""
    return failure
