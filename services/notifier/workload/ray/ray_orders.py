"""Orders to Ray's head, run as a job on it: GCS has `DrainNode`, and HTTP has no path to it.

A job has the cluster's own version of Ray, so the notifier's host needs none. Orders that wait
for a job share the next one.
"""

import logging
import secrets
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from services.notifier.workload.ray.ray_state import ORDER_PREFIX
from services.notifier.workload.workload_notifier import StepFailure
from services.primitives.clock import Clock
from services.primitives.coalesce import Joined
from services.workload_systems.ray_answers import RayJob, shown
from services.workload_systems.ray_client import RayClient, RayUnavailableError

log = logging.getLogger(__name__)

ORDERS_MAX: Final = 200
"""In one job: its command line has a limit of 128 KiB."""
REASON_CHARS_MAX: Final = 200
LOOK_SECONDS: Final = 0.5
_MARK: Final = "navarch-answer:"
_WRONG_PYTHON: Final = ("No module named", "ImportError", "AttributeError", "not found")
"""In the output of a job that no repetition makes succeed."""
_SCRIPT: Final = f"""
import json, os, sys
from ray._private.state import GlobalState
from ray._raylet import GcsClient, GcsClientOptions
address = os.environ["RAY_ADDRESS"]
gcs = GcsClient(address=address)
gcs.drain_node, gcs.drain_nodes
problems = {{}}
for each in json.loads(sys.argv[1]):
    try:
        if each["remove"]:
            gcs.drain_nodes([bytes.fromhex(each["raylet"])])
            continue
        accepted, why = gcs.drain_node(each["raylet"], 2, each["reason"], each["deadline_ms"])
        if not accepted:
            problems[each["raylet"]] = why or "refused without a reason"
    except Exception as error:
        problems[each["raylet"]] = f"{{type(error).__name__}}: {{error}}"
state = GlobalState()
state._initialize_global_state(GcsClientOptions.create(
    address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False))
answer = {{"problems": problems, "draining": sorted(state.get_draining_nodes())}}
print("{_MARK}" + json.dumps(answer), flush=True)
"""


class RayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One raylet is drained, or removed from the cluster with all that runs on it."""

    raylet: str
    reason: str
    deadline_ms: int = 0
    """When the machine will go; 0: not known."""
    remove: bool = False


class OrdersAnswer(msgspec.Struct, frozen=True):
    """Holds what came of a job's orders."""

    problems: dict[str, str]
    """Raylet -> why its order failed."""
    draining: tuple[str, ...]
    """Every raylet that is draining now."""


_answers = msgspec.json.Decoder(OrdersAnswer)


class RayOrders:
    """Gives orders, several in one job."""

    def __init__(
        self,
        client: RayClient,
        clock: Clock,
        *,
        python: str,
        seconds_max: float,
        new_mark: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`python`: the command on the head that runs Python with Ray."""
        self._client = client
        self._clock = clock
        self._python = python
        self._seconds_max = seconds_max
        self._new_mark = new_mark
        self._waiting: dict[RayOrder, None] = {}
        self._jobs = Joined(lambda _: self._run_waiting())

    async def give(self, *orders: RayOrder) -> OrdersAnswer:
        """Return when Ray has accepted them; RayUnavailableError where it has not."""
        self._waiting |= dict.fromkeys(orders)
        problems: dict[str, str] = {}
        while True:
            answer = await self._jobs("")
            problems |= answer.problems
            if not any(each in self._waiting for each in orders):
                break
        for each in orders:
            if problem := problems.get(each.raylet):
                raise RayUnavailableError(f"Ray's head refuses the order: {shown(problem)}")
        return answer

    async def close(self) -> None:
        """Cancel what runs; a job that was submitted ends by itself."""
        await self._jobs.close()

    async def _run_waiting(self) -> OrdersAnswer:
        orders = list(self._waiting)[:ORDERS_MAX]
        try:
            return await self._run(orders)
        finally:
            for each in orders:
                self._waiting.pop(each, None)

    async def _run(self, orders: list[RayOrder]) -> OrdersAnswer:
        submission = f"{ORDER_PREFIX}{self._new_mark()}"
        listed = msgspec.json.encode(orders).decode()
        await self._client.submit(submission, shlex.join([self._python, "-c", _SCRIPT, listed]))
        job = await self._until_over(submission)
        output = await self._client.output(submission)
        with suppress(Exception):  # only so that the list of jobs stays short
            await self._client.forget(submission)
        if job.status == "SUCCEEDED":
            log.info("gave orders to Ray", extra={"raylets": len(orders), "job": submission})
            return _read(output)
        problem = f"the job that gives orders to Ray's head ended as {shown(job.status)}"
        problem += f": {_last(output)}"
        if not any(each in output for each in _WRONG_PYTHON):
            raise RayUnavailableError(problem)
        raise StepFailure(
            problem,
            "INVALID",
            "set `python` to the command that runs Python with Ray on the head, such as "
            "/opt/ray/bin/python; `navarch workload check POOL` tries it",
        )

    async def _until_over(self, submission: str) -> RayJob:
        waited = 0.0
        while not (job := await self._client.job(submission)).is_over:
            if waited >= self._seconds_max:
                with suppress(Exception):
                    await self._client.stop(submission)
                raise RayUnavailableError(
                    f"the job that gives orders to Ray's head did not end within {waited:g} s; "
                    "see the dashboard's list of jobs"
                )
            await self._clock.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
        return job


def _read(output: str) -> OrdersAnswer:
    lines = [each for each in output.splitlines() if each.startswith(_MARK)]
    try:
        return _answers.decode(lines[-1].removeprefix(_MARK))
    except (IndexError, msgspec.DecodeError) as error:
        raise RayUnavailableError("the job that gives orders to Ray printed no answer") from error


def _last(output: str) -> str:
    lines = [each for each in output.splitlines() if each.strip()]
    return shown(lines[-1]) if lines else "it printed nothing"
