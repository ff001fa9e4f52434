"""Slurm: drains nodes with a reason, resumes only what Navarch drained, requeues at the deadline.

It runs Slurm's commands on the notifier's host, as SlurmUser or an operator of Slurm, or asks
slurmrestd. That before 23.02 cannot change nodes, so orders are commands there too. Slurm has no
compare-and-set: an administrator who drains a node in the few milliseconds between `sinfo` and
`scontrol update` loses the reason.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.settings import Setting
from services.notifier.workload.node_name import check_template, node_name
from services.notifier.workload.slurm_entries import SlurmEntries
from services.notifier.workload.slurm_owners import notify_owners
from services.notifier.workload.slurm_workload import (
    FAILED_STATES,
    announced_checkpoint,
    checked_name,
    find_node,
    jobs_by_node,
    node_state,
    node_workload,
    reason_text,
    running_work,
)
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    OwnerNotice,
    RunningWork,
    StepFailure,
    WorkloadAnswer,
    WorkloadCheck,
    WorkloadNodeState,
    WorkloadOrder,
)
from services.primitives.clock import Clock
from services.primitives.coalesce import Joined
from services.workload_systems.slurm_client import (
    NodeChange,
    NodeOrder,
    SlurmRefusedError,
    SlurmUnavailableError,
)
from services.workload_systems.slurm_output import SlurmJob, SlurmNode
from services.workload_systems.slurm_references import referenced_name
from services.workload_systems.slurm_rest import SlurmRest, SlurmRestOptions, connect_slurm

log = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 5.0
"""How long requeued jobs have to end before their node is set DOWN, which ends them."""
LEAVE_POLL_SECONDS: Final = 0.5
NAMES_SHOWN_MAX: Final = 5
DRAINS_MAX: Final = 10_000
"""Drains remembered, so that a node that comes back during its drain is drained again."""


class SlurmNotifier:
    """Orders a Slurm cluster."""

    name = "slurm"
    confirms_drains = True
    """Slurm says what runs."""
    batches = True
    """One `sinfo` and one `squeue` for all nodes."""
    reports_running = True
    """It is asked about any node."""

    class Options(Setting, frozen=True, kw_only=True):
        """`notifier: {type: slurm, slurm: {…}}`; every key has a default."""

        node_name: str = "{hostname}"
        """The node's name in Slurm; its short form and its address are tried as well."""
        rest: SlurmRestOptions | None = None
        """slurmrestd, which is asked in place of Slurm's commands; None: it is not."""
        conf: str = ""
        """Path of slurm.conf; empty: as Slurm's commands find it."""
        commands: str = ""
        """Folder of Slurm's commands; empty: as PATH says."""
        timeout: Duration = Duration(30)
        """For one command."""
        poll: Duration = Duration(2)
        """Interval of `sinfo` and `squeue`, one of each for all nodes, while drains are open."""
        not_requeueable: Literal["cancel", "leave"] = "cancel"
        """At the deadline, jobs that cannot be requeued (`--no-requeue`, salloc, srun)."""
        unknown_nodes: Literal["refuse", "ignore"] = "refuse"
        """refuse: a node that Slurm does not know is not drained, because its jobs may run under
        another name; ignore: it has no work."""
        checkpoint_signal: Literal["USR1", "USR2", "HUP", "URG", "CONT"] = "USR1"
        """Sent to the batch script of a job that is asked for a checkpoint."""
        notify_owners: bool = True
        """Whether users hear of a drain with a deadline at its beginning, by their jobs'
        AdminComment and `scontrol notify`."""
        checkpoint_comment: str = "navarch-checkpoint"
        """Only jobs whose comment has this word are asked, because the signal ends a script that
        does not catch it; empty: all jobs are, but those that announce a checkpoint."""

        def __post_init__(self) -> None:
            """Refuse templates and times that can never work."""
            check_template(self.node_name)
            for name in ("timeout", "poll"):
                if getattr(self, name) <= 0:
                    raise ValueError(f"{name} must be more than 0")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        self.poll_seconds: float = options.poll
        self.notifies_owners: bool = options.notify_owners
        self._clock = clock
        self._slurm = connect_slurm(
            options.rest, options.commands, options.conf, options.timeout, clock
        )
        self._rest = self._slurm if isinstance(self._slurm, SlurmRest) else None
        self._entries = SlurmEntries(self._slurm)
        self._nodes = Joined(lambda _: self._slurm.nodes())
        self._drains: dict[str, WorkloadOrder] = {}
        self._signalled: dict[str, datetime] = {}
        """Job -> until when it is not asked for a checkpoint again, by whichever of its nodes."""

    async def cordon(self, order: WorkloadOrder) -> None:
        """Drain the node; one that an administrator drained keeps its reason."""
        node = await self._known(order)
        if node is not None:
            await self._cordon(node, order)

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Resume the node, if it was Navarch that drained it."""
        self._drains.pop(order.node.node, None)
        node = await self._find(order.node)
        if node is None or not (node.cordoned or node.down):
            return
        if not node.ours:
            log.warning(
                "the node stays drained in Slurm, because Navarch did not drain it",
                extra={"node": node.name, "by": node.user, "reason": node.reason},
            )
            return
        try:
            await self._update(node.name, "RESUME")
        except SlurmRefusedError:
            now = await self._find(order.node)
            if now is not None and (now.cordoned or now.down):
                raise

    async def drain(self, order: WorkloadOrder) -> None:
        """Drain the node; a dead one is set DOWN, so that its jobs restart at once."""
        node = await self._known(order)
        if node is None:
            return
        await self._cordon(node, order)
        if len(self._drains) < DRAINS_MAX:
            self._drains[order.node.node] = order
        if _is_dead(order.node, node):
            await self._set_down(node, order)

    async def notify_owners(self, order: WorkloadOrder) -> Sequence[OwnerNotice]:
        """Comment the jobs on the node, and send each of their users one message."""
        node = await self._find(order.node)
        if node is None:
            return ()
        jobs = jobs_by_node(await self._slurm.jobs()).get(node.name, ())
        cancels = self._options.not_requeueable == "cancel"
        then = "is requeued" + (", or cancelled where it cannot be" if cancels else "")
        return await notify_owners(self._slurm, order, node.name, jobs, then)

    async def evict(self, order: WorkloadOrder) -> None:
        """Requeue the jobs that are left; set the node DOWN if they do not end."""
        node = await self._find(order.node)
        if node is None:
            return
        here = jobs_by_node(await self._slurm.jobs()).get(node.name, ())
        if here and not await self._slurm.requeues():
            if self._options.not_requeueable == "cancel":
                await self._set_down(node, order)  # Slurm requeues those that can be.
            return
        for job in here:
            await self._requeue(job)
        waited = 0.0
        while node.name in jobs_by_node(await self._slurm.jobs()) and waited < LEAVE_SECONDS:
            await self._clock.sleep(LEAVE_POLL_SECONDS)
            waited += LEAVE_POLL_SECONDS
        if waited >= LEAVE_SECONDS and self._options.not_requeueable == "cancel":
            await self._set_down(node, order)

    async def checkpoint(self, order: WorkloadOrder) -> Sequence[RunningWork]:
        """Signal the batch scripts of the jobs on the node that say that they catch it.

        Jobs that announce their next checkpoint are reported, whether or not they are signalled.
        """
        node = await self._find(order.node)
        if node is None:
            return ()
        jobs = jobs_by_node(await self._slurm.jobs()).get(node.name, ())
        word = self._options.checkpoint_comment
        comments = await self._slurm.comments(node.name)
        now = self._clock.now()
        self._signalled = {job: until for job, until in self._signalled.items() if now < until}
        asked = []
        for job in jobs:
            comment = comments.get(job.number, frozenset())
            announced = announced_checkpoint(comment)
            if job.state != "RUNNING":
                continue
            catches = word in comment if word else announced is None
            if (catches and await self._signal(job, order.deadline or now)) or announced:
                asked.append(msgspec.structs.replace(running_work(job), checkpoint_at=announced))
        return asked

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Return what runs on each node, by one `sinfo` and one `squeue`."""
        # Jobs first: one that starts in between is seen as a busy node.
        jobs = jobs_by_node(await self._slurm.jobs())
        known = await self._nodes("")
        if not known:
            raise SlurmUnavailableError("sinfo lists no nodes, so none is known to be drained")
        found: dict[str, WorkloadAnswer] = {}
        for each in nodes:
            try:
                name = self._name(each)
            except StepFailure as failure:
                found[each.node] = failure
                continue
            node = find_node(name, each.address, known)
            if node is None:
                found[each.node] = NodeWorkload(drained=True, detail=f"Slurm knows no node {name}")
                continue
            here = jobs.get(node.name, ())
            answer = found[each.node] = node_workload(node, here)
            if answer.drained:
                self._drains.pop(each.node, None)
            elif (order := self._drains.get(each.node)) is not None:
                await self._insist(node, order, here)
        return found

    async def self_check(self) -> Sequence[WorkloadCheck]:
        """The cluster, its nodes, and whether jobs and reasons of other users can be seen."""
        controller = await self._slurm.ping()
        nodes, jobs = await self._nodes(""), await self._slurm.jobs()
        ours = sum(each.ours for each in nodes.values())
        drained = sum(each.cordoned for each in nodes.values())
        users = len({each.user for each in jobs})
        return [
            WorkloadCheck(what="connect to slurmctld", detail=controller),
            *(await self._rest.checks() if self._rest else ()),
            WorkloadCheck(
                what="list nodes",
                passed=bool(nodes),
                detail=f"{len(nodes)} nodes, {drained} drained, {ours} of them by Navarch",
                remedy="" if nodes else "give a partition of slurm.conf its nodes (Nodes=ALL)",
            ),
            WorkloadCheck(
                what="list jobs",
                detail=f"{len(jobs)} jobs of {users} users have nodes (with PrivateData=jobs in "
                "slurm.conf an ordinary user sees only its own)",
            ),
        ]

    async def node_registered(self, node: NodeReference) -> None:
        """Give a node of slurm.conf (State=CLOUD) its machine's address."""
        if (found := await self._find_named(node)) is not None:
            await self._entries.set_address(found, node)

    async def node_admitted(self, node: NodeReference) -> None:
        """Resume a node of slurm.conf that its earlier machine left drained or down."""
        if (found := await self._find_named(node)) is not None:
            await self._entries.reopen(found)

    async def node_gone(self, node: NodeReference) -> None:
        """Power a node of slurm.conf down; delete one that had registered itself."""
        if (found := await self._find_named(node)) is not None:
            await self._entries.close(found)

    async def launch_failed(self, node: NodeReference, reason: str, saga: str) -> None:
        """Set a node that Slurm waits for DOWN, so that its job is requeued; power it down."""
        if (found := await self._find_named(node)) is not None:
            await self._entries.fail(found, reason_text(reason, saga))

    async def node_states(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadNodeState]:
        """Return the nodes' states, by one `sinfo` and one `squeue` about failed jobs."""
        failed = jobs_by_node(await self._slurm.jobs(FAILED_STATES))
        known = await self._nodes("")
        found: dict[str, WorkloadNodeState] = {}
        for each in nodes:
            with suppress(StepFailure):  # its cordons and drains report that
                node = find_node(self._name(each), each.address, known)
                if node is not None:
                    found[each.node] = node_state(node, failed.get(node.name, ()))
        return found

    async def wait_for_node_change(self) -> None:
        """Slurm reports none."""
        await asyncio.Event().wait()

    async def wait_for_change(self) -> None:
        """Slurm reports none."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Cancel what runs."""
        await self._nodes.close()
        await self._slurm.close()

    async def _insist(
        self, node: SlurmNode, order: WorkloadOrder, here: Sequence[SlurmJob]
    ) -> None:
        """Drain again a node that came back, and set a dead one DOWN once Slurm misses it."""
        if not node.cordoned and not node.down:
            log.warning("a node came back during its drain: drained again", extra=_about(order))
            await self._cordon(node, order)
        if here and _is_dead(order.node, node):
            await self._set_down(node, order)

    async def _cordon(self, node: SlurmNode, order: WorkloadOrder) -> None:
        if node.powered_off:
            return  # Slurm places nothing on it before it has resumed it.
        reason = reason_text(order.reason, order.key)
        if node.cordoned and (not node.ours or node.reason == reason):
            return
        if not node.cordoned and not node.ours and not node.automatic:
            reason = node.reason  # An administrator set it DOWN, and alone may resume it.
        await self._update(node.name, "DRAIN", reason)

    async def _set_down(self, node: SlurmNode, order: WorkloadOrder) -> None:
        ours = node.ours or node.automatic
        reason = reason_text(order.reason, order.key) if ours else node.reason
        log.warning("set DOWN in Slurm: its jobs restart elsewhere", extra=_about(order))
        await self._update(node.name, "DOWN", reason)

    async def _requeue(self, job: SlurmJob) -> None:
        try:
            await self._slurm.requeue(job.number)
        except SlurmRefusedError as error:
            about = {"job": job.id, "user": job.user, "reason": str(error)}
            if self._options.not_requeueable == "leave":
                log.warning("a job cannot be requeued and is left", extra=about)
                return
            log.warning("a job cannot be requeued and is cancelled", extra=about)
            await self._cancel(job)

    async def _signal(self, job: SlurmJob, until: datetime) -> bool:
        if job.number in self._signalled:
            return True
        try:
            await self._slurm.signal(job.number, self._options.checkpoint_signal)
        except SlurmRefusedError as error:
            about = {"job": job.id, "user": job.user, "reason": str(error)}
            log.warning("a job could not be asked for a checkpoint", extra=about)
            return False
        self._signalled[job.number] = until
        return True

    async def _cancel(self, job: SlurmJob) -> None:
        try:
            await self._slurm.cancel(job.number)
        except SlurmRefusedError as error:
            log.warning("a job was not cancelled", extra={"job": job.id, "reason": str(error)})

    async def _update(self, name: str, state: NodeOrder, reason: str = "") -> None:
        await self._slurm.change_node(checked_name(name), NodeChange(state=state, reason=reason))
        log.info("updated Slurm", extra={"node": name, "state": state, "reason": reason})

    async def _known(self, order: WorkloadOrder) -> SlurmNode | None:
        """The node; None where its absence means that it has no work; else a failure."""
        node = await self._find(order.node)
        left = order.node.lost or order.node.gone
        if node is not None or left or self._options.unknown_nodes == "ignore":
            return node
        problem = f"Slurm knows no node {self._name(order.node)!r}"
        if order.node.address:
            problem += f" and none with the address {order.node.address}"
        if order.key.endswith("/reserve"):
            raise SlurmUnavailableError(f"{problem} yet; its slurmd has not registered")
        names = ", ".join(list(await self._nodes(""))[:NAMES_SHOWN_MAX]) or "none"
        raise StepFailure(
            f"{problem}; its jobs may run under another name (Slurm has {names}, …)",
            "INVALID",
            "set `node_name` in the slurm notifier's options to a template of Slurm's names; if "
            "this node has left Slurm and has no work, set `unknown_nodes: ignore`",
        )

    async def _find(self, reference: NodeReference) -> SlurmNode | None:
        return find_node(self._name(reference), reference.address, await self._nodes(""))

    async def _find_named(self, reference: NodeReference) -> SlurmNode | None:
        """The node of this very name: an address may be another's by now."""
        return find_node(self._name(reference), "", await self._nodes(""))

    def _name(self, reference: NodeReference) -> str:
        """Slurm's own name of a node that it listed, else what the template says."""
        try:
            listed = referenced_name(reference.provider_id)
            return checked_name(listed or node_name(self._options.node_name, reference))
        except ValueError as error:
            raise StepFailure(
                str(error),
                "INVALID",
                f"check the hostname that the agent of {reference.node} reports, or use "
                "`node_name: '{node}'`",
            ) from error


def _is_dead(reference: NodeReference, node: SlurmNode) -> bool:
    """Whether its work is lost: two of Navarch, the provider and Slurm say so, or the provider."""
    return not node.down and (reference.gone or (reference.lost and node.silent))


def _about(order: WorkloadOrder) -> dict[str, str]:
    return {"node": order.node.node, "key": order.key}
