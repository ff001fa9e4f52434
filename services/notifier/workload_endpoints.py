"""Answers what the workload systems of pools say now: of work, of jobs, and of their rights.

It is answered here, and not by the command line, because the workload system's credentials are
here.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.node_work import (
    JOB_NODES,
    NODE_WORK,
    OWNERS_MAX,
    WORK_NAMED_MAX,
    JobNodes,
    JobNodesQuery,
    NodeWorkAnswer,
    NodeWorkQuery,
    OwnedWork,
)
from schemas.topology import INSTANCES, NODES
from schemas.workload_checks import (
    WORKLOAD_CHECK,
    WorkloadCheck,
    WorkloadCheckAnswer,
    WorkloadCheckRequest,
)
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus, Endpoint, Headers
from services.notifier.node_references import node_reference, read_reference
from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    OrderCheckingNotifier,
    RunningWork,
    RunningWorkReporter,
    SelfCheckingNotifier,
    StepFailure,
    WorkloadAnswer,
    WorkloadOrder,
)
from services.operator_text.quantities import first_of

ANSWER_SECONDS_MAX: Final = 20.0
READS_AT_ONCE: Final = 64
NAMED_MAX: Final = 3
OFF: Final = frozenset({"launching", "terminated"})
"""States in which no machine takes work."""

_instances = decoder(InstanceRecord)
log = logging.getLogger(__name__)

STAGE_SECONDS_MAX: Final = 15.0
NODES_MAX: Final = 50
"""Nodes of the pool that the workload system is asked about."""
JOBS_SHOWN_MAX: Final = 3
LABEL_CHARS_MAX: Final = 80
"""Of an owner or a job, in the list of whose work runs on nodes."""

_nodes = decoder(NodeRecord)


class NodeWorkEndpoint:
    """Answers which work runs on a node."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus) -> None:
        self._notifiers = notifiers
        self._bus = bus
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints, by their subjects."""
        return {subjects.query(NODE_WORK): self._answer}

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        return encode(await self.idle(msgspec.json.decode(data, type=NodeWorkQuery)))

    async def idle(self, query: NodeWorkQuery) -> NodeWorkAnswer:
        """The nodes on which every workload system of the pool says that nothing runs."""
        idle, free, busy = set(query.nodes), set(query.nodes), set[str]()
        unknown, running = list[str](), list[RunningWork]()
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                systems = [
                    each
                    for each in await self._notifiers.all_of(query.pool)
                    if not isinstance(each, NoopNotifier)
                ]
                asked = query.nodes if systems else ()
                reading = (self._read(query.pool, each) for each in asked)
                references = await asyncio.gather(*reading)
                for each in systems:
                    found = await _ask(each, references)
                    idle &= found.idle
                    free &= found.idle | found.drained
                    busy |= found.busy
                    running += found.running
                    unknown += [found.unknown] if found.unknown else []
        except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
            idle = free = set()
            unknown = [str(error) or f"no answer within {ANSWER_SECONDS_MAX:g} s"]
        return NodeWorkAnswer(
            idle=tuple(sorted(idle)),
            absent=tuple(sorted(free - idle)),
            busy=tuple(sorted(busy)),
            unknown="; ".join(unknown),
            owners=owned_work(running),
        )

    async def _read(self, pool: str, node: str) -> NodeReference:
        async with self._reads:
            return await read_reference(self._bus, pool, node)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Holds what one workload system says of nodes."""

    idle: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    """They get no work."""
    busy: frozenset[str] = frozenset()
    unknown: str = ""
    """Why nothing is known of some."""
    running: tuple[RunningWork, ...] = ()


async def _ask(notifier: Notifier, nodes: Sequence[NodeReference]) -> _Said:
    """The nodes that have no work, those that get none, and why nothing is known of some.

    One in service of which it is said that no work will be placed there is not known to the
    workload system, or another has cordoned it.
    """
    if not isinstance(notifier, RunningWorkReporter) or not notifier.reports_running:
        return _Said(unknown=f"{notifier.name} does not say what runs on a node in service")
    answers = await notifier.workloads(nodes)
    sorted_out: dict[str, set[str]] = defaultdict(set)
    for each in nodes:
        sorted_out[_work_of(answers.get(each.node))].add(each.node)
    named = first_of(sorted(sorted_out["drained"] | sorted_out["unknown"]), NAMED_MAX)
    return _Said(
        idle=frozenset(sorted_out["idle"]),
        drained=frozenset(sorted_out["drained"]),
        busy=frozenset(sorted_out["busy"]),
        unknown=f"{notifier.name} does not know what runs on {named}" if named else "",
        running=tuple(
            work
            for each in answers.values()
            if isinstance(each, NodeWorkload)
            for work in each.running
        ),
    )


def owned_work(running: Sequence[RunningWork]) -> tuple[OwnedWork, ...]:
    """Return the work by its owners, those with the most first. Pure.

    A job that runs on several nodes counts once.
    """
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for each in running:
        found[each.owner[:LABEL_CHARS_MAX]][each.id[:LABEL_CHARS_MAX]] = None
    owners = sorted(found, key=lambda owner: (-len(found[owner]), owner))[:OWNERS_MAX]
    return tuple(
        OwnedWork(owner=owner, work=tuple(found[owner])[:WORK_NAMED_MAX], total=len(found[owner]))
        for owner in owners
    )


def _work_of(answer: WorkloadAnswer | None) -> Literal["idle", "drained", "busy", "unknown"]:
    match answer:
        case NodeWorkload(drained=False, running=(), total=0, unsure=False):
            return "idle"
        case NodeWorkload(drained=True):
            return "drained"
        case NodeWorkload(running=running, total=total, unsure=unsure):
            # What is not sure is whether there is more.
            return "busy" if running or total or not unsure else "unknown"
        case _:
            return "unknown"


class JobNodesEndpoint:
    """Answers on which nodes a job runs."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus) -> None:
        self._notifiers = notifiers
        self._bus = bus

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints, by their subjects."""
        return {subjects.query(JOB_NODES): self._answer}

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        return encode(await self.find(msgspec.json.decode(data, type=JobNodesQuery)))

    async def find(self, query: JobNodesQuery) -> JobNodes:
        """The nodes on which a workload system says that the job runs."""
        unknown: list[str] = []
        systems: dict[Notifier, list[NodeReference]] = defaultdict(list)
        for pool, references in sorted((await self._references(query.pools)).items()):
            try:
                parts = await self._notifiers.all_of(pool)
            except StepFailure as failure:
                unknown.append(failure.reason)
                continue
            for each in parts:
                if isinstance(each, RunningWorkReporter) and each.reports_running:
                    systems[each] += references
                elif isinstance(each, NoopNotifier):
                    unknown.append(f"pool {pool} has no workload system")
                else:
                    unknown.append(f"{each.name} does not report what runs in pool {pool}")
        answers = await asyncio.gather(
            *(_ask_running(each, nodes) for each, nodes in systems.items())
        )
        found: set[str] = set()
        for (system, nodes), (answer, failed) in zip(systems.items(), answers, strict=True):
            here, unsure = job_nodes(query.job, nodes, answer)
            found |= here
            if failed or unsure:
                unknown.append(
                    failed or f"{system.name} does not list all of {first_of(unsure, NAMED_MAX)}"
                )
        return JobNodes(nodes=tuple(sorted(found)), unknown=tuple(unknown))

    async def _references(self, pools: Sequence[str]) -> Mapping[str, list[NodeReference]]:
        """The nodes that may have work, by pool."""
        filters = [node_key(each, "*") for each in pools] or [">"]
        found: dict[str, list[NodeReference]] = defaultdict(list)
        for each in filters:
            entries, launched = await asyncio.gather(
                self._bus.entries(NODES, each), self._bus.entries(INSTANCES, each)
            )
            instances = {entry.key: record for entry, record in readable(launched, _instances)}
            for entry, record in readable(entries, _nodes):
                if record.state not in OFF:
                    instance = instances.get(entry.key)
                    reference = node_reference(record.pool, record.node, record, instance)
                    found[record.pool].append(reference)
        return found


def job_nodes(
    job: str, nodes: Sequence[NodeReference], answers: Mapping[str, WorkloadAnswer]
) -> tuple[set[str], list[str]]:
    """The nodes that have the job, and those of which not all that runs is listed. Pure."""
    found: set[str] = set()
    unsure: list[str] = []
    for each in nodes:
        match answers.get(each.node):
            case NodeWorkload(running=running) if any(is_called(job, work) for work in running):
                found.add(each.node)
            case NodeWorkload(unsure=False, running=running, total=total) if total <= len(running):
                pass
            case _:
                unsure.append(each.node)
    return found, unsure


def is_called(job: str, work: RunningWork) -> bool:
    """Return whether a job, pod or actor has this ID or name: `4711`, `job 4711`, `pod`."""
    number = work.id.removeprefix("job ")
    names = {work.id, number, work.name, work.gang}
    # A task of a Slurm array, and what has its namespace before its name.
    names |= {number.partition("_")[0], work.id.rpartition("/")[2], work.gang.rpartition("/")[2]}
    return job in names


async def _ask_running(
    system: Notifier, nodes: Sequence[NodeReference]
) -> tuple[Mapping[str, WorkloadAnswer], str]:
    """What runs on each, or why that is not known."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await system.workloads(nodes), ""
    except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
        reason = str(error) or f"no answer within {ANSWER_SECONDS_MAX:g} s"
        return {}, f"{system.name}: {reason}"


class WorkloadCheckEndpoint:
    """Answers requests to check a workload system."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus) -> None:
        self._notifiers = notifiers
        self._bus = bus

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints, by their subjects."""
        return {subjects.query(WORKLOAD_CHECK): self._answer}

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        request = msgspec.json.decode(data, type=WorkloadCheckRequest)
        return encode(await self.check(request))

    async def check(self, request: WorkloadCheckRequest) -> WorkloadCheckAnswer:
        """Connect, ask about the pool's nodes, and cordon and uncordon the named one."""
        log.info("checking the workload system", extra={"pool": request.pool, "by": request.by})
        notifier = await self._notifiers.of(request.pool)
        checks = await _tried("connect", self._self_check(notifier))
        if all(each.passed for each in checks):
            checks += await _tried("ask what runs", self._ask(notifier, request.pool))
        if request.node is not None and all(each.passed for each in checks):
            node = request.node
            checks += await _tried(f"cordon {node}", self._try_node(notifier, request.pool, node))
        return WorkloadCheckAnswer(notifier=notifier.name, checks=tuple(checks))

    async def _self_check(self, notifier: Notifier) -> Sequence[WorkloadCheck]:
        if isinstance(notifier, SelfCheckingNotifier):
            return await notifier.self_check()
        return ()

    async def _ask(self, notifier: Notifier, pool: str) -> Sequence[WorkloadCheck]:
        if not notifier.confirms_drains:
            detail = "it does not report what runs: a drain ends when it is ordered"
            return [WorkloadCheck(what="ask what runs", detail=detail)]
        entries = await self._bus.entries(NODES, node_key(pool, "*"))
        records = [each for _, each in readable(entries, _nodes) if each.state != "terminated"]
        names = sorted(each.node for each in records)[:NODES_MAX]
        references = await asyncio.gather(
            *(read_reference(self._bus, pool, each) for each in names)
        )
        if not references:
            return [WorkloadCheck(what="ask what runs", detail=f"pool {pool} has no nodes yet")]
        answers = await notifier.workloads(references)
        return [_seen(each, answers.get(each.node)) for each in references]

    async def _try_node(self, notifier: Notifier, pool: str, node: str) -> Sequence[WorkloadCheck]:
        what = f"cordon and uncordon {node}"
        record = await self._record(pool, node)
        if record is None:
            remedy = f"navarch list --pool {pool}"
            detail = f"pool {pool} has no node {node}"
            return [WorkloadCheck(what=what, passed=False, detail=detail, remedy=remedy)]
        if _in_use(record):
            detail = "Navarch has cordoned it, or works on it: it is not touched"
            remedy = "name a node in service"
            return [WorkloadCheck(what=what, passed=False, detail=detail, remedy=remedy)]
        reference = await read_reference(self._bus, pool, node)
        key = f"workload-check-{secrets.token_hex(4)}"
        order = WorkloadOrder(node=reference, reason="navarch workload check", key=f"{key}/cordon")
        checks: list[WorkloadCheck] = []
        for each in notifier.parts if isinstance(notifier, CombinedNotifier) else [notifier]:
            if isinstance(each, OrderCheckingNotifier):
                checks += await each.check_order(order)
                continue
            try:
                await each.cordon(order)
            finally:
                await asyncio.shield(self._undo(each, order))
            checks.append(WorkloadCheck(what=what))
        return checks

    async def _undo(self, notifier: Notifier, order: WorkloadOrder) -> None:
        """Uncordon, unless a saga has begun with the node meanwhile."""
        record = await self._record(order.node.pool, order.node.node)
        if record is not None and not _in_use(record):
            key = order.key.replace("/cordon", "/uncordon")
            await notifier.uncordon(msgspec.structs.replace(order, key=key))

    async def _record(self, pool: str, node: str) -> NodeRecord | None:
        entry = await self._bus.get(NODES, node_key(pool, node))
        return readable_record(entry, _nodes)


def _in_use(record: NodeRecord) -> bool:
    return record.cordoned or bool(record.saga)


def _seen(reference: NodeReference, answer: NodeWorkload | StepFailure | None) -> WorkloadCheck:
    if answer is None:
        return WorkloadCheck(what=reference.node, passed=False, detail="no answer about this node")
    if isinstance(answer, StepFailure):
        return _failed(reference.node, answer)
    jobs = ", ".join(_job(each) for each in answer.running[:JOBS_SHOWN_MAX])
    more = ", …" if answer.total > JOBS_SHOWN_MAX else ""
    running = f"{answer.total} running: {jobs}{more}" if answer.total else "no work"
    detail = f"{running}; {answer.detail}" if answer.detail else running
    return WorkloadCheck(what=reference.node, detail=detail)


def _job(job: RunningWork) -> str:
    several = ", on several nodes" if job.gang else ""
    return f"{job.id} of {job.owner}{several}"


async def _tried(what: str, work: Awaitable[Sequence[WorkloadCheck]]) -> list[WorkloadCheck]:
    try:
        async with asyncio.timeout(STAGE_SECONDS_MAX):
            return list(await work)
    except StepFailure as failure:
        return [_failed(what, failure)]
    except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
        reason = str(error) or f"no answer within {STAGE_SECONDS_MAX:g} s"
        return [WorkloadCheck(what=what, passed=False, detail=reason)]


def _failed(what: str, failure: StepFailure) -> WorkloadCheck:
    return WorkloadCheck(what=what, passed=False, detail=failure.reason, remedy=failure.remedy)
