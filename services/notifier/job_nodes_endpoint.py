"""Answers on which nodes a job runs, as the workload systems of the pools say now."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.node_work import JOB_NODES, JobNodes, JobNodesQuery
from schemas.topology import INSTANCES, NODES
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Endpoint, Headers
from services.notifier.node_work_endpoint import ANSWER_SECONDS_MAX, NAMED_MAX
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    RunningWork,
    RunningWorkReporter,
    StepFailure,
    WorkloadAnswer,
)
from services.notifier.workload_steps import node_reference
from services.operator_text.quantities import first_of

OFF: Final = frozenset({"launching", "terminated"})
"""States in which no machine takes work."""

_nodes = decoder(NodeRecord)
_instances = decoder(InstanceRecord)


class JobNodesEndpoint:
    """The endpoint of one replica."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus) -> None:
        """Ask `notifiers`; `bus` has the records of nodes."""
        self._notifiers = notifiers
        self._bus = bus

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> endpoint."""
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
        answers = await asyncio.gather(*(_ask(each, nodes) for each, nodes in systems.items()))
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
    """Whether a job, pod or actor has this ID or name: `4711`, `job 4711`, `team/pod`, `pod`."""
    number = work.id.removeprefix("job ")
    names = {work.id, number, work.name, work.gang}
    # A task of a Slurm array, and what has its namespace before its name.
    names |= {number.partition("_")[0], work.id.rpartition("/")[2], work.gang.rpartition("/")[2]}
    return job in names


async def _ask(
    system: Notifier, nodes: Sequence[NodeReference]
) -> tuple[Mapping[str, WorkloadAnswer], str]:
    """What runs on each, or why that is not known."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await system.workloads(nodes), ""
    except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
        reason = str(error) or f"no answer within {ANSWER_SECONDS_MAX:g} s"
        return {}, f"{system.name}: {reason}"
