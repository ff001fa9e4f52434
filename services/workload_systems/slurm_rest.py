"""Slurm over slurmrestd, with a token (JWT): nodes and jobs, and changes where the API has them.

slurmrestd serves several versions of its API at once, and says itself which and what each can do.
v0.0.38 (Slurm 22.05) cannot change nodes: then orders are given by Slurm's commands.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

import httpx
import jwt
import msgspec

from schemas.secret_text import SecretText
from schemas.settings import FilePath, Setting
from schemas.workload_checks import WorkloadCheck
from services.primitives.clock import Clock
from services.primitives.redaction import register_secret
from services.runtime.http_caller import (
    HttpCaller,
    RefusedHttpError,
    TransientHttpError,
    check_url,
    place,
)
from services.saga.participant import StepFailure
from services.workload_systems.slurm_client import (
    NodeChange,
    SlurmRefusedError,
    SlurmUnavailableError,
)
from services.workload_systems.slurm_commands import SlurmCommands
from services.workload_systems.slurm_output import JOB_STATES, PendingJob, SlurmJob, SlurmNode
from services.workload_systems.slurm_rest_answers import (
    UPDATES_SINCE,
    RestAnswer,
    RestApi,
    RestPaths,
    error_text,
    is_denied,
    is_unreachable,
    node_message,
    rest_admin_comments,
    rest_comments,
    rest_jobs,
    rest_nodes,
    rest_pings,
    rest_queue,
    served_apis,
)

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
TOKEN_BYTES_MAX: Final = 16_384
SETTING: Final = "rest.url"
LISTS: Final = ("nodes", "jobs", "partitions")
"""What an answer must have: without it every node would count as drained, or unknown."""
NOT_FOUND: Final = (404, 405)
NO_TOKEN: Final = (401, 403)
RENEWAL: Final = (
    "write a valid token (`scontrol token username=USER lifespan=SECONDS`) into `rest.token_file`, "
    "or `rest.token`; slurm.conf needs AuthAltTypes=auth/jwt"
)
CHANGES_REMEDY: Final = (
    f"upgrade to Slurm 23.02 or later, whose slurmrestd has v0.0.{UPDATES_SINCE}, or install "
    "Slurm's commands on this host (apt-get install slurm-client) as docs/slurm.md says"
)

T = TypeVar("T")


class SlurmRestOptions(Setting, frozen=True, kw_only=True):
    """Configures slurmrestd, in place of Slurm's commands."""

    url: SecretText
    """`http://slurmctld:6820`."""
    user: str
    """The token's user: SlurmUser, or an operator of Slurm."""
    token: SecretText = ""
    """The token itself."""
    token_file: FilePath = ""
    """A file that has it, read for each request, so that it can be renewed."""
    version: Annotated[str, msgspec.Meta(pattern=r"^(v0\.0\.\d{2,3})?\Z")] = ""
    """`v0.0.41`; empty: the newest that slurmrestd serves and Navarch knows."""

    def __post_init__(self) -> None:
        """Refuse what can never work."""
        check_url("url", self.url or "-")
        if bool(self.token) == bool(self.token_file):
            raise ValueError("write either `token_file` or `token`")
        if not self.user.isprintable() or not self.user:
            raise ValueError("`user` must name the token's user")


class SlurmRest:
    """One slurmrestd; `commands` give the orders that its API does not have."""

    def __init__(
        self,
        options: SlurmRestOptions,
        commands: SlurmCommands,
        timeout_seconds: float,
        clock: Clock,
    ) -> None:
        """Connect at the first call."""
        self._options = options
        self._commands = commands
        self._clock = clock
        self._base = options.url.rstrip("/")
        self._http = HttpCaller(
            clock, timeout_seconds=timeout_seconds, answer_bytes_max=ANSWER_BYTES_MAX
        )
        self._known: RestApi | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def api(self) -> RestApi:
        """The version that is used."""
        if self._known is None:
            found = served_apis(await self._call("GET", "/openapi/v3", RestPaths))
            wanted = [each for each in found if self._options.version in ("", each.name)]
            if not wanted:
                served = ", ".join(each.name for each in found) or "none that has nodes"
                raise StepFailure(
                    f"slurmrestd does not serve {self._options.version or 'an API with nodes'} "
                    f"(it serves {served})",
                    "INVALID",
                    "set `rest.version` to one of these, or leave it out",
                )
            self._known = wanted[-1]
        return self._known

    async def ping(self) -> str:
        """Return which controllers answer, over which API."""
        api = await self.api()
        return f"{rest_pings(await self._get('ping'))}, over slurmrestd {api.name}"

    async def nodes(self, partition: str = "") -> Mapping[str, SlurmNode]:
        """Return every node, by name; or those of a partition."""
        return rest_nodes(await self._get("nodes"), partition)

    async def jobs(self, states: str = JOB_STATES) -> tuple[SlurmJob, ...]:
        """Every job in one of these states; by default those in which a job has nodes."""
        return rest_jobs(await self._get("jobs"), states)

    async def queue(self, partition: str) -> tuple[PendingJob, ...]:
        """Every job of a partition that waits, each task of an array by itself."""
        return rest_queue(await self._get("jobs"), partition)

    async def check_partition(self, partition: str) -> None:
        """SlurmRefusedError if there is none: lists of an unknown partition are empty."""
        found = (await self._get("partitions")).partitions or ()
        if partition not in {each.name for each in found}:
            known = ", ".join(each.name for each in found) or "none"
            raise SlurmRefusedError(f"partition {partition} not found (known: {known})")

    async def comments(self, node: str) -> Mapping[str, frozenset[str]]:
        """The words of the comments of the jobs that run on a node, by the jobs' numbers."""
        return rest_comments(await self._get("jobs"), node)

    async def change_node(self, name: str, change: NodeChange) -> None:
        """POST to the node, or `scontrol update` where the API cannot."""
        api = await self.api()
        if not api.changes_nodes:
            await self._ordered(self._commands.change_node(name, change))
            return
        body = node_message(change.state, change.reason, change.address, change.hostname)
        await self._slurm("POST", f"node/{quote(name)}", body=body)

    async def delete_node(self, name: str) -> None:
        """Remove a node that had registered itself."""
        if (await self.api()).changes_nodes:
            await self._slurm("DELETE", f"node/{quote(name)}")
        else:
            await self._ordered(self._commands.delete_node(name))

    async def requeues(self) -> bool:
        """No API requeues a job: where commands give no orders, its nodes are set DOWN."""
        return not (await self.api()).changes_nodes

    async def requeue(self, number: str) -> None:
        """Have a job begin again by `scontrol requeue`."""
        await self._ordered(self._commands.requeue(number))

    async def cancel(self, number: str) -> None:
        """End a job."""
        await self._slurm("DELETE", f"job/{quote(number)}")

    async def signal(self, number: str, signal_: str) -> None:
        """Send a signal to a job's batch script."""
        api = await self.api()
        if api.signals:
            query = {"signal": signal_, "flags": "BATCH_JOB"}
            await self._slurm("DELETE", f"job/{quote(number)}", query=query)
        elif api.changes_nodes:
            raise SlurmRefusedError(f"slurmrestd {api.name} signals no batch script alone")
        else:
            await self._ordered(self._commands.signal(number, signal_))

    async def sends_messages(self) -> bool:
        """No API sends a job a message: where commands give no orders, its comment has the text."""
        return not (await self.api()).changes_nodes

    async def send_message(self, number: str, text: str) -> None:
        """Write a line into a job's output by `scontrol notify`."""
        await self._ordered(self._commands.send_message(number, text))

    async def set_admin_comment(self, number: str, text: str) -> None:
        """Write the comment beside the user's own."""
        if (await self.api()).changes_nodes:
            await self._slurm("POST", f"job/{quote(number)}", body={"admin_comment": text})
        else:
            await self._ordered(self._commands.set_admin_comment(number, text))

    async def admin_comments(self, node: str) -> Mapping[str, str]:
        """Return the administrators' comments of the jobs on a node, by the jobs' numbers."""
        return rest_admin_comments(await self._get("jobs"), node)

    def token_end(self) -> datetime | None:
        """Return when the token ends; None: it does not say."""
        try:
            claims = jwt.decode(self._token(), options={"verify_signature": False})
        except jwt.InvalidTokenError:
            return None
        end = claims.get("exp")
        return datetime.fromtimestamp(end, UTC) if isinstance(end, int | float) else None

    async def checks(self) -> Sequence[WorkloadCheck]:
        """Return whether nodes can be changed, and how long the token is valid."""
        api, end = await self.api(), self.token_end()
        detail, passed = f"by POST, {api.name}", True
        if not api.changes_nodes:
            detail = f"{api.name} cannot; orders are given by scontrol"
            try:
                await self._commands.ping()
            except (StepFailure, SlurmUnavailableError, SlurmRefusedError) as error:
                reason = error.reason if isinstance(error, StepFailure) else str(error)
                detail, passed = f"{api.name} cannot, and {reason}", False
        orders = WorkloadCheck(
            what="change nodes over slurmrestd",
            passed=passed,
            detail=detail,
            remedy="" if passed else CHANGES_REMEDY,
        )
        if end is None:
            return [orders]
        left = end - self._clock.now()
        token = WorkloadCheck(
            what=f"token of {self._options.user}",
            passed=left > timedelta(0),
            detail=f"valid until {end:%Y-%m-%d %H:%M:%S} UTC",
            remedy="" if left > timedelta(0) else RENEWAL,
        )
        return [orders, token]

    async def _ordered(self, order: Any) -> None:
        """An order by commands; where they cannot be run, what is missing is another slurmrestd."""
        try:
            await order
        except StepFailure as failure:
            api = await self.api()
            raise StepFailure(
                f"slurmrestd {api.name} cannot change nodes, and {failure.reason}",
                "INVALID",
                CHANGES_REMEDY,
            ) from failure

    async def _get(self, what: str) -> RestAnswer:
        return await self._slurm("GET", what)

    async def _slurm(
        self, method: str, what: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> RestAnswer:
        api = await self.api()
        path = f"/slurm/{api.name}/{what}"
        answer = await self._call(method, path, RestAnswer, query=query, body=body)
        if text := error_text(answer):
            raise _failure(text, reads=method == "GET")
        if what in LISTS and getattr(answer, what) is None:
            raise SlurmUnavailableError(f"slurmrestd: its answer has no list of {what}")
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> T:
        url = httpx.URL(f"{self._base}{path}").copy_merge_params(dict(query or {}))
        headers = {"X-SLURM-USER-NAME": self._options.user, "X-SLURM-USER-TOKEN": self._token()}
        request = self._http.request(method, url, json=body, headers=headers)
        try:
            answer = await self._http.send(request, SETTING)
        except TransientHttpError as error:
            if error.answer is not None and (text := _text_of(error.answer)):
                raise _failure(text, reads=method == "GET") from error
            raise SlurmUnavailableError(str(error)) from error
        except RefusedHttpError as error:
            raise self._refused(error, method) from error
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            where = place(SETTING, request)
            raise SlurmUnavailableError(f"{where}: not an answer of slurmrestd: {error}") from error

    def _refused(self, error: RefusedHttpError, method: str) -> Exception:
        code = error.answer.status_code
        if code in NO_TOKEN:
            return SlurmUnavailableError(f"{error}: {RENEWAL}")
        if text := _text_of(error.answer):
            return _failure(text, reads=method == "GET")
        if code in NOT_FOUND:
            self._known = None  # Slurm may have been upgraded
        return SlurmUnavailableError(f"{error}: `rest.url` must be slurmrestd's, port 6820")

    def _token(self) -> str:
        if self._options.token:
            return self._options.token
        try:
            with Path(self._options.token_file).open("rb") as file:
                token = file.read(TOKEN_BYTES_MAX).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SlurmUnavailableError(
                f"`rest.token_file` cannot be read: {error}; {RENEWAL}"
            ) from error
        token = token.removeprefix("SLURM_JWT=")
        if not token.isascii() or not token.isprintable() or not token:
            raise SlurmUnavailableError(f"`rest.token_file` has no token; {RENEWAL}")
        return register_secret(token)


def _text_of(answer: httpx.Response) -> str:
    try:
        return error_text(msgspec.json.decode(answer.content, type=RestAnswer))
    except (msgspec.DecodeError, RecursionError):
        return ""


def _failure(text: str, *, reads: bool) -> Exception:
    if is_denied(text):
        return StepFailure(
            f"slurmrestd: {text}",
            "INVALID",
            "give the token of SlurmUser, or make its user an operator of Slurm: sacctmgr modify "
            "user name=USER set adminlevel=operator",
        )
    if reads or is_unreachable(text):
        return SlurmUnavailableError(
            f"slurmrestd: {text}; where slurmctld is up, the token may have expired: {RENEWAL}"
        )
    return SlurmRefusedError(f"slurmrestd: {text}")


SlurmClient = SlurmCommands | SlurmRest
"""Every call raises SlurmUnavailableError, SlurmRefusedError or StepFailure."""


def connect_slurm(
    rest: SlurmRestOptions | None, folder: str, conf: str, seconds: float, clock: Clock
) -> SlurmClient:
    """Return slurmrestd's client where it is configured, else that of Slurm's commands."""
    commands = SlurmCommands(folder=folder, conf=conf, seconds_max=seconds)
    return commands if rest is None else SlurmRest(rest, commands, seconds, clock)
