"""Publishes which jobs of several nodes (gangs) run on unhealthy and draining nodes.

Only those nodes are asked about, at an interval, so its cost does not grow with the fleet. What ran
on a node when its drain began stays in its record until the saga ends, because others of the job
may yet be found unhealthy.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.node_events import WorkGangs
from schemas.node_records import GANGS_MAX, NodeRecord
from schemas.value_limits import NAME_CHARS_MAX
from services.bus.bucket_mirror import BucketView
from services.bus.port import Bus
from services.notifier.node_reporters import nodes_by_reporter
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    WorkloadAnswer,
)
from services.primitives.clock import Clock
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""Between two questions."""
NODES_MAX: Final = 500
"""Nodes asked about at once; more are unhealthy only in a wave, which holds remediation."""
PENDING_SECONDS: Final = 600.0
"""After this time an event that the record still lacks is published again."""


class GangPublisher:
    """Compares the gangs of unhealthy nodes with the records."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus, clock: Clock) -> None:
        """Ask each pool's notifier, if it reports on nodes."""
        self._notifiers = notifiers
        self._bus = bus
        self._clock = clock
        self._published: dict[str, tuple[tuple[str, ...], float]] = {}
        """Node's key -> the gangs last published, and when."""

    async def run(
        self, nodes: BucketView[NodeRecord], instances: BucketView[InstanceRecord]
    ) -> None:
        """Compare for ever."""
        failing: set[Notifier] = set()
        while True:
            await nodes.caught_up()
            await instances.caught_up()
            keys = sorted(key for key, each in nodes.records.items() if is_asked_about(each))
            self._published = {
                key: last for key, last in self._published.items() if key in nodes.records
            }
            some = {key: nodes.records[key] for key in keys[:NODES_MAX]}
            reporters = await nodes_by_reporter(self._notifiers, some, instances.records)
            for notifier, asked in reporters.items():
                try:
                    answers = await notifier.workloads(list(asked.values()))
                    failing.discard(notifier)
                except Exception as error:  # noqa: BLE001 - a notifier may be a third party's code
                    if notifier not in failing:
                        log.warning(
                            "the workload system does not say which jobs share nodes; asking again",
                            extra={"reason": str(error) or type(error).__name__},
                        )
                    failing.add(notifier)
                    continue
                await self._compare(nodes.records, asked, answers)
            await self._clock.sleep(LOOK_SECONDS)

    async def _compare(
        self,
        records: Mapping[str, NodeRecord],
        asked: Mapping[str, NodeReference],
        answers: Mapping[str, WorkloadAnswer],
    ) -> None:
        now = self._clock.monotonic()
        for key, node in asked.items():
            answer, record = answers.get(node.node), records.get(key)
            if record is None or not isinstance(answer, NodeWorkload):
                continue
            gangs = gangs_of(record, answer)
            last, at = self._published.get(key, ((), float("-inf")))
            pending = last == gangs and now - at < PENDING_SECONDS
            if gangs == record.gangs or pending:
                continue
            time = self._clock.now()
            digest = hashlib.blake2b(f"{gangs} {time}".encode(), digest_size=6).hexdigest()
            event = WorkGangs(
                id=f"work-gangs-{node.node}-{digest}",
                pool=node.pool,
                node=node.node,
                time=time,
                gangs=gangs,
            )
            await publish_event(self._bus, event)
            self._published[key] = gangs, now


def is_asked_about(node: NodeRecord) -> bool:
    """Whether it is unhealthy, draining, or has gangs in its record that may be over. Pure."""
    draining = bool(node.saga) and node.cordoned
    unhealthy = node.health == "unhealthy" or node.lost
    in_service = node.state in ("active", "leaving")
    return in_service and (unhealthy or draining or bool(node.gangs))


def gangs_of(node: NodeRecord, answer: NodeWorkload) -> tuple[str, ...]:
    """The first few gangs on a node; during its saga also those that ran before. Pure."""
    before = node.gangs if node.saga else ()
    running = {each.gang[:NAME_CHARS_MAX] for each in answer.running if each.gang}
    return (*before, *sorted(running - set(before)))[:GANGS_MAX]
