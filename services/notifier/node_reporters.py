"""Which notifiers report on nodes unasked, and on which nodes."""

from collections import defaultdict
from collections.abc import Mapping

from schemas.instance_records import InstanceRecord
from schemas.node_records import NodeRecord
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeStateReporter,
    StepFailure,
)
from services.notifier.workload_steps import node_reference


async def nodes_by_reporter(
    notifiers: PoolNotifiers,
    nodes: Mapping[str, NodeRecord],
    instances: Mapping[str, InstanceRecord],
) -> dict[NodeStateReporter, dict[str, NodeReference]]:
    """Each notifier that reports on nodes, with those of these nodes that are of its pools."""
    pools: dict[str, dict[str, NodeReference]] = defaultdict(dict)
    for key, record in nodes.items():
        found = node_reference(record.pool, record.node, record, instances.get(key))
        pools[record.pool][key] = found
    reporters: dict[NodeStateReporter, dict[str, NodeReference]] = defaultdict(dict)
    for pool, references in pools.items():
        try:
            notifier = await notifiers.of(pool)
        except StepFailure:
            continue  # its cordons and drains report that
        if isinstance(notifier, NodeStateReporter):
            reporters[notifier] |= references
    return reporters
