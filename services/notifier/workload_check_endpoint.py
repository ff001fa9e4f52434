"""Answers `navarch workload check`: what this process sees and may do in a pool's workload system.

It is answered here, and not by the command line, because the workload system's credentials are
here.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from schemas.workload_checks import (
    WORKLOAD_CHECK,
    WorkloadCheck,
    WorkloadCheckAnswer,
    WorkloadCheckRequest,
)
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus, Endpoint, Headers
from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    OrderCheckingNotifier,
    RunningWork,
    SelfCheckingNotifier,
    StepFailure,
    WorkloadOrder,
)
from services.notifier.workload_steps import read_reference

log = logging.getLogger(__name__)

STAGE_SECONDS_MAX: Final = 15.0
NODES_MAX: Final = 50
"""Nodes of the pool that the workload system is asked about."""
JOBS_SHOWN_MAX: Final = 3

_nodes = decoder(NodeRecord)


class WorkloadCheckEndpoint:
    """The endpoint of one replica."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus) -> None:
        """Check `notifiers`; `bus` has the records of nodes."""
        self._notifiers = notifiers
        self._bus = bus

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> endpoint."""
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
