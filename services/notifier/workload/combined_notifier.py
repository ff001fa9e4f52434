"""Several workload systems of one pool, as one: every order goes to each of them."""

import asyncio
from collections.abc import Mapping, Sequence

from services.notifier.workload.workload_notifier import (
    FAILED_MAX,
    RUNNING_MAX,
    CheckpointingNotifier,
    GpuCordoningNotifier,
    NodeReference,
    NodeStateReporter,
    NodeWorkload,
    Notifier,
    PartlyAnsweredError,
    RunningWork,
    SelfCheckingNotifier,
    StepFailure,
    WorkloadAnswer,
    WorkloadCheck,
    WorkloadNodeState,
    WorkloadOrder,
)
from services.primitives.race import race


class CombinedNotifier:
    """A node is drained when every system says so."""

    def __init__(self, notifiers: Sequence[Notifier]) -> None:
        """Combine at least two; who made them closes them."""
        self.parts = notifiers

    @property
    def name(self) -> str:
        """Return the names of all notifiers."""
        return "+".join(each.name for each in self.parts)

    @property
    def confirms_drains(self) -> bool:
        """Only if every one does: a node may be busy with the work of the one that does not."""
        return all(each.confirms_drains for each in self.parts)

    @property
    def batches(self) -> bool:
        """Only if every one does."""
        return all(each.batches for each in self.parts)

    @property
    def poll_seconds(self) -> float:
        """Return the longest interval of all notifiers."""
        return max(each.poll_seconds for each in self.parts)

    async def cordon(self, order: WorkloadOrder) -> None:
        """Cordon in each."""
        await asyncio.gather(*(each.cordon(order) for each in self.parts))

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Uncordon in each."""
        await asyncio.gather(*(each.uncordon(order) for each in self.parts))

    async def drain(self, order: WorkloadOrder) -> None:
        """Drain in each."""
        await asyncio.gather(*(each.drain(order) for each in self.parts))

    async def evict(self, order: WorkloadOrder) -> None:
        """Evict in each."""
        await asyncio.gather(*(each.evict(order) for each in self.parts))

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Everything that runs, of all; a node that one did not answer for is missing.

        PartlyAnsweredError where some answer, and others do not.
        """
        asked = (each.workloads(nodes) for each in self.parts)
        found = await asyncio.gather(*asked, return_exceptions=True)
        said = [each for each in found if not isinstance(each, BaseException)]
        failed = [each for each in found if isinstance(each, BaseException)]
        common = set.intersection(*(set(each) for each in said)) if said else set[str]()
        answers = {node: _merge([each[node] for each in said]) for node in common}
        if not failed:
            return answers
        refused = [each for each in failed if isinstance(each, StepFailure)]
        if refused or not said:
            raise (refused or failed)[0]
        raise PartlyAnsweredError(str(failed[0]) or type(failed[0]).__name__, answers)

    async def self_check(self) -> Sequence[WorkloadCheck]:
        """Return what each notifier that can check itself says."""
        found: list[WorkloadCheck] = []
        for each in self.parts:
            if isinstance(each, SelfCheckingNotifier):
                found += await each.self_check()
        return found

    async def checkpoint(self, order: WorkloadOrder) -> Sequence[RunningWork]:
        """Ask in each that can."""
        able = [each for each in self.parts if isinstance(each, CheckpointingNotifier)]
        answers = await asyncio.gather(*(each.checkpoint(order) for each in able))
        return [work for each in answers for work in each]

    async def cordon_gpus(self, order: WorkloadOrder) -> None:
        """Cordon the GPUs in each system; where one cannot, single GPUs are not cordoned at all."""
        able = [each for each in self.parts if isinstance(each, GpuCordoningNotifier)]
        if order.gpus and len(able) < len(self.parts):
            raise StepFailure(f"not all of {self.name} can keep work off a single GPU", "INVALID")
        await asyncio.gather(*(each.cordon_gpus(order) for each in able))

    async def wait_for_change(self) -> None:
        """Return with the first."""
        await race(*(each.wait_for_change() for each in self.parts))

    async def node_states(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadNodeState]:
        """Ready where all say so, cordoned where one says so."""
        found: dict[str, WorkloadNodeState] = {}
        for each in self.parts:
            if isinstance(each, NodeStateReporter):
                for node, state in (await each.node_states(nodes)).items():
                    found[node] = _merge_states(found[node], state) if node in found else state
        return found

    async def wait_for_node_change(self) -> None:
        """Return with the first."""
        reporting = [each for each in self.parts if isinstance(each, NodeStateReporter)]
        await race(asyncio.Event().wait(), *(each.wait_for_node_change() for each in reporting))

    async def close(self) -> None:
        """Close nothing, since the combination has no connections of its own."""


def _merge_states(one: WorkloadNodeState, other: WorkloadNodeState) -> WorkloadNodeState:
    return WorkloadNodeState(
        ready=one.ready and other.ready,
        cordoned=one.cordoned or other.cordoned,
        reason="; ".join(each for each in (one.reason, other.reason) if each),
        since=one.since or other.since,
        failed=(*one.failed, *other.failed)[-FAILED_MAX:],
    )


def _merge(answers: Sequence[WorkloadAnswer]) -> WorkloadAnswer:
    found: list[NodeWorkload] = []
    for each in answers:
        if isinstance(each, StepFailure):
            return each
        found.append(each)
    return NodeWorkload(
        drained=all(each.drained for each in found),
        running=tuple(work for each in found for work in each.running)[:RUNNING_MAX],
        total=sum(each.total for each in found),
        unsure=any(each.unsure for each in found),
        detail="; ".join(each.detail for each in found if each.detail),
    )
