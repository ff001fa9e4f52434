"""Orders a workload system by a command of the owner, with JSON on its standard input.

docs/write-a-notifier.md has the contract. Exit code 0: done; 65 (EX_DATAERR): refused, so the step
fails; anything else, and a command that takes too long, is repeated until the step's deadline.
"""

import asyncio
import logging
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.enums import DrainMode
from schemas.settings import Setting
from services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    GpuReference,
    NodeReference,
    NodeWorkload,
    OwnerNotice,
    RunningWork,
    StepFailure,
    WorkloadAnswer,
    WorkloadCheck,
    WorkloadOrder,
    refuse_unset,
)
from services.operator_text.safe_text import escape_line
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.owner_command import CommandResult, CommandTimeoutError, run_command

log = logging.getLogger(__name__)

VERSION: Final = 1
REFUSED: Final = 65
OUTPUT_BYTES_MAX: Final = 8 * 1024 * 1024
MESSAGE_CHARS_MAX: Final = 300
COMMANDS_MAX: Final = 8
"""At once: a wave of cordons must not start a process for each of its nodes."""

ExecOrderName = Literal[
    "cordon", "uncordon", "cordon_gpus", "checkpoint", "notify_owners", "drain", "evict", "status"
]


class ExecOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Declares what the command reads; fields are added and never changed."""

    version: int = VERSION
    order: ExecOrderName
    key: str = ""
    """The same whenever the order is repeated; empty for `status`."""
    reason: str = ""
    deadline: datetime | None = None
    urgency: DrainMode | msgspec.UnsetType = msgspec.UNSET
    """drain."""
    gpus: tuple[GpuReference, ...] | msgspec.UnsetType = msgspec.UNSET
    """cordon_gpus: all GPUs of the node that are to get no new work; may be empty."""
    nodes: Sequence[NodeReference]
    """One; for `status` any number, also none."""


class ExecWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the command says of one node."""

    drained: bool
    running: tuple[RunningWork, ...] = ()
    total: int = 0
    detail: str = ""


class ExecStatus(msgspec.Struct, frozen=True):
    """Holds what the command prints for `status`."""

    nodes: dict[str, ExecWorkload]


_status = msgspec.json.Decoder(ExecStatus)


class UnansweredCommandError(Exception):
    """The command failed in a way that a repetition may change."""


class ExecNotifier:
    """Orders a workload system by a command."""

    name = "exec"
    confirms_drains = True
    """The command says what runs."""
    batches = True
    """One run for all nodes."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `notifiers: {NAME: {type: exec, command: [/usr/local/bin/scheduler]}}`."""

        command: tuple[str, ...]
        """The program and its first arguments."""
        environment: tuple[str, ...] = ()
        """Variables that the command gets besides PATH, HOME, LANG and TZ."""
        timeout: Duration = Duration(30)
        """For one run; then it is killed, with everything that it started."""
        poll: Duration = Duration(5)
        """Interval of `status`, once for all nodes, while drains are open."""
        cordons_gpus: bool = False
        """Whether the command knows `cordon_gpus`; otherwise nodes are cordoned whole."""
        notifies_owners: bool = False
        """Whether the command knows `notify_owners`, by which the owners of a node's work hear of
        a drain with a deadline at its beginning."""

        def __post_init__(self) -> None:
            """Refuse what cannot be run."""
            if not self.command or not shutil.which(self.command[0]):
                named = self.command[0] if self.command else ""
                raise ValueError(
                    f"`command` {named!r} is not a program that can be run; write its full path"
                )
            for name in ("timeout", "poll"):
                if getattr(self, name) <= 0:
                    raise ValueError(f"{name} must be more than 0")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        del clock
        self._options = options
        self.poll_seconds: float = options.poll
        self.notifies_owners: bool = options.notifies_owners
        self._running = asyncio.Semaphore(COMMANDS_MAX)

    async def cordon(self, order: WorkloadOrder) -> None:
        """Run it with `cordon`."""
        await self._order("cordon", order)

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Run it with `uncordon`."""
        await self._order("uncordon", order)

    async def cordon_gpus(self, order: WorkloadOrder) -> None:
        """Run it with `cordon_gpus`."""
        if not self._options.cordons_gpus:
            refuse_unset("cordons_gpus", order)
            return
        await self._order("cordon_gpus", order)

    async def drain(self, order: WorkloadOrder) -> None:
        """Run it with `drain`."""
        await self._order("drain", order)

    async def checkpoint(self, order: WorkloadOrder) -> Sequence[RunningWork]:
        """Run it with `checkpoint`; it prints the work that it asked, as for `status`."""
        ended = await self._order("checkpoint", order)
        if not ended.output.strip():
            return ()
        found = self._statuses(ended).get(order.node.node)
        return found.running[:RUNNING_MAX] if found else ()

    async def notify_owners(self, order: WorkloadOrder) -> Sequence[OwnerNotice]:
        """Run it with `notify_owners`."""
        await self._order("notify_owners", order)
        return ()

    async def evict(self, order: WorkloadOrder) -> None:
        """Run it with `evict`."""
        await self._order("evict", order)

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Run it once with `status`."""
        ended = await self._run(ExecOrder(order="status", nodes=nodes))
        found = self._statuses(ended)
        asked = {each.node for each in nodes}
        return {
            node: NodeWorkload(
                drained=each.drained and not each.running,
                running=each.running[:RUNNING_MAX],
                total=max(each.total, len(each.running)),
                detail=_shown(each.detail),
            )
            for node, each in found.items()
            if node in asked
        }

    async def self_check(self) -> Sequence[WorkloadCheck]:
        """Return whether the command answers a question about no nodes."""
        await self.workloads([])
        return [WorkloadCheck(what=f"run {self._options.command[0]}", detail="it answers `status`")]

    async def wait_for_change(self) -> None:
        """Nothing reports one."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held."""

    async def _order(self, kind: ExecOrderName, order: WorkloadOrder) -> CommandResult:
        ended = await self._run(
            ExecOrder(
                order=kind,
                key=order.key,
                reason=order.reason,
                deadline=order.deadline,
                urgency=order.urgency or msgspec.UNSET,
                gpus=order.gpus if kind == "cordon_gpus" else msgspec.UNSET,
                nodes=[order.node],
            )
        )
        log.info("ran the command", extra={"order": kind, "node": order.node.node})
        return ended

    def _statuses(self, ended: CommandResult) -> Mapping[str, ExecWorkload]:
        program = self._options.command[0]
        if ended.cut:
            raise UnansweredCommandError(f"{program} printed more than {OUTPUT_BYTES_MAX} bytes")
        try:
            return _status.decode(ended.output).nodes
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnansweredCommandError(f"{program} printed no status: {error}") from error

    async def _run(self, order: ExecOrder) -> CommandResult:
        command = self._options.command
        try:
            async with self._running:
                ended = await run_command(
                    command,
                    msgspec.json.encode(order),
                    environment=self._options.environment,
                    seconds_max=self._options.timeout,
                    output_bytes_max=OUTPUT_BYTES_MAX,
                )
        except CommandTimeoutError as error:
            raise UnansweredCommandError(f"{error} and was killed; it is run again") from error
        except OSError as error:
            raise StepFailure(
                f"{command[0]} cannot be run: {error.strerror}",
                "INVALID",
                "write the full path of a program that the notifier's user may run",
            ) from error
        if ended.code == 0:
            return ended
        text = (ended.errors or ended.output).decode(errors="replace")
        said = _shown(text) or "it printed nothing"
        if ended.code == REFUSED:
            raise StepFailure(f"{command[0]} refuses {order.order}: {said}", "INVALID")
        raise UnansweredCommandError(f"{command[0]} ended with {ended.code}: {said}")


def _shown(text: str) -> str:
    """The beginning of what the command printed, on one line, without what is secret."""
    return escape_line(redacted(" ".join(text[: 2 * MESSAGE_CHARS_MAX].split())))[
        :MESSAGE_CHARS_MAX
    ]
