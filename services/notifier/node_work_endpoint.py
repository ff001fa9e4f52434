"""Answers which nodes in service have no work, as their workload systems say now."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.node_work import NODE_WORK, NodeWorkAnswer, NodeWorkQuery
from services.bus.port import Bus, Endpoint, Headers
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    RunningWorkReporter,
    StepFailure,
)
from services.notifier.workload_steps import read_reference
from services.operator_text.quantities import first_of

log = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 20.0
READS_AT_ONCE: Final = 64
NAMED_MAX: Final = 3


class NodeWorkEndpoint:
    """The endpoint of one replica."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus) -> None:
        """Ask `notifiers`; `bus` has the records of nodes."""
        self._notifiers = notifiers
        self._bus = bus
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> endpoint."""
        return {subjects.query(NODE_WORK): self._answer}

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        return encode(await self.idle(msgspec.json.decode(data, type=NodeWorkQuery)))

    async def idle(self, query: NodeWorkQuery) -> NodeWorkAnswer:
        """The nodes on which every workload system of the pool says that nothing runs."""
        idle, unknown = set(query.nodes), list[str]()
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
                    found, why = await _ask(each, references)
                    idle &= found
                    unknown += [why] if why else []
        except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
            reason = str(error) or f"no answer within {ANSWER_SECONDS_MAX:g} s"
            return NodeWorkAnswer(unknown=reason)
        return NodeWorkAnswer(idle=tuple(sorted(idle)), unknown="; ".join(unknown))

    async def _read(self, pool: str, node: str) -> NodeReference:
        async with self._reads:
            return await read_reference(self._bus, pool, node)


async def _ask(notifier: Notifier, nodes: Sequence[NodeReference]) -> tuple[set[str], str]:
    """The nodes that have no work, and why nothing is known of some.

    One in service of which it is said that no work will be placed there is not known to the
    workload system, or another has cordoned it.
    """
    if not isinstance(notifier, RunningWorkReporter) or not notifier.reports_running:
        return set(), f"{notifier.name} does not say what runs on a node in service"
    answers = await notifier.workloads(nodes)
    idle: set[str] = set()
    unknown: list[str] = []
    for each in nodes:
        match answers.get(each.node):
            case NodeWorkload(drained=False, running=(), total=0, unsure=False):
                idle.add(each.node)
            case NodeWorkload(drained=True) | NodeWorkload(unsure=True):
                unknown.append(each.node)
            case NodeWorkload():
                pass
            case StepFailure() | None:
                unknown.append(each.node)
    if not unknown:
        return idle, ""
    named = first_of(unknown, NAMED_MAX)
    return idle, f"{notifier.name} does not know what runs on {named}"
