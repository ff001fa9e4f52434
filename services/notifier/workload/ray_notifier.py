"""Ray: drains raylets, which end by themselves once nothing runs on them.

Ray cannot undo a drain: a raylet that was drained is stopped and started again, and is then another
one to Ray. It has no cordon either; a cordon is a drain without a deadline. A node counts as
drained only when Ray lists every raylet of it as dead. Everything goes over the dashboard's HTTP.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.notifier.workload.node_name import check_template, node_name
from services.notifier.workload.ray.ray_orders import REASON_CHARS_MAX, RayOrder, RayOrders
from services.notifier.workload.ray.ray_state import NODE_LABEL, find_raylets, node_workload
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    StepFailure,
    WorkloadAnswer,
    WorkloadCheck,
    WorkloadOrder,
)
from services.primitives.clock import Clock
from services.primitives.coalesce import Joined
from services.runtime.http_caller import check_url
from services.workload_systems.ray_answers import Raylet, RunningState, shown
from services.workload_systems.ray_client import RayClient, RayUnavailableError

log = logging.getLogger(__name__)

REJOIN_SECONDS: Final = 120.0
"""How long after its start a head may not know raylets that still run: they connect again within
60 s, or end."""
ORDER_SECONDS_MAX: Final = 60.0
"""For the job that gives an order; most take four seconds."""
DRAINS_MAX: Final = 10_000
NAMES_SHOWN_MAX: Final = 5
RESERVE_STEPS: Final = ("/reserve", "/open", "/promote")
"""Steps about a new node: an idle raylet that is drained ends, so it is not cordoned."""


class RayNotifier:
    """Orders one Ray cluster."""

    name = "ray"
    confirms_drains = True
    """Ray lists the raylets that have ended."""
    batches = True
    """One list of each kind for all nodes."""
    reports_running = True
    """It is asked about any node."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `notifiers: {NAME: {type: ray, dashboard: http://head:8265}}`."""

        dashboard: SecretText
        """URL of the dashboard, which needs `ray[default]` on the head."""
        headers: dict[str, SecretText] = {}  # noqa: RUF012 - msgspec copies it
        """Such as Authorization, where Ray has a token."""
        node_name: str = "{hostname}"
        """Name of the node in Ray (`ray start --node-name`). The label `navarch-node` goes before
        it; where neither is found, the node's address is compared."""
        at_deadline: Literal["remove", "leave"] = "remove"
        """At the drain's deadline a raylet that is left is removed from the cluster, which ends
        what runs on it, and Ray restarts that elsewhere; or it is left to end with the node."""
        unknown_nodes: Literal["refuse", "ignore"] = "refuse"
        """refuse: a node that Ray does not know is not drained, because it may be there under
        another name; ignore: it has no work."""
        python: str = "python"
        """The command on the head that runs Python with Ray."""
        poll: Duration = Duration(5)
        """Interval between two looks at Ray, while drains are open."""
        timeout: Duration = Duration(30)
        """For one call."""

        def __post_init__(self) -> None:
            """Refuse what can never work."""
            check_url("dashboard", self.dashboard or "-")
            check_template(self.node_name)
            for name in ("timeout", "poll"):
                if getattr(self, name) <= 0:
                    raise ValueError(f"{name} must be more than 0")
            if not self.python:
                raise ValueError("python is empty: write a command, such as /opt/ray/bin/python")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Connect at the first order."""
        self._options = options
        self.poll_seconds: float = options.poll
        self._clock = clock
        self._client = RayClient(options.dashboard, options.headers, options.timeout, clock)
        self._orders = RayOrders(
            self._client, clock, python=options.python, seconds_max=ORDER_SECONDS_MAX
        )
        self._raylets = Joined(lambda _: self._client.raylets())
        self._drains: dict[str, WorkloadOrder] = {}
        self._ordered: set[tuple[int, str]] = set()
        """Start of the head, and a raylet that this process has ordered it to drain."""
        self._seen: set[str] = set()
        """Navarch's names of nodes that this process has seen in Ray."""

    async def cordon(self, order: WorkloadOrder) -> None:
        """Drain the raylet without a deadline; it ends when it is idle."""
        await self._drain(order, await self._raylets(""))

    async def drain(self, order: WorkloadOrder) -> None:
        """Drain the raylet; one whose machine is gone is removed."""
        if len(self._drains) < DRAINS_MAX:
            self._drains[order.node.node] = order
        await self._drain(order, await self._raylets(""))
        if order.node.gone:
            await self._remove(order)

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Wait until a raylet that is not draining has joined; Ray cannot undo a drain."""
        self._drains.pop(order.node.node, None)
        if order.key.endswith(RESERVE_STEPS):
            return
        here = self._here(order.node, await self._raylets(""))
        if not here:
            log.warning("Ray does not know the node", extra=_about(order))
            return
        alive = {each.node_id for each in here if each.is_alive}
        if alive and not alive & set((await self._orders.give()).draining):
            return
        state = "is draining, which Ray cannot undo" if alive else "has ended"
        raise RayUnavailableError(
            f"the raylet of {order.node.node} {state}: start it again on that node, with "
            "`ray stop` and the `ray start` of that cluster"
        )

    async def evict(self, order: WorkloadOrder) -> None:
        """Remove what is left from the cluster, or leave it."""
        if self._options.at_deadline == "remove":
            await self._remove(order)

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """Return what runs on each node, by at most four lists."""
        raylets = await self._raylets("")
        here = {each.node: self._here(each, raylets) for each in nodes}
        busy = any(each.is_alive for found in here.values() for each in found)
        state = await self._client.running() if busy else RunningState()
        answers = {each.node: self._answer(each, here[each.node], raylets, state) for each in nodes}
        await self._insist(here, raylets)
        return answers

    async def self_check(self) -> Sequence[WorkloadCheck]:
        """The cluster, its raylets, and whether orders can be given."""
        version = await self._client.version()
        raylets = await self._raylets("")
        alive = sum(each.is_alive for each in raylets)
        checks = [
            WorkloadCheck(what="connect to the dashboard", detail=f"Ray {shown(version)}"),
            WorkloadCheck(what="list nodes", detail=f"{alive} alive, {len(raylets) - alive} dead"),
        ]
        draining = len((await self._orders.give()).draining)
        return [*checks, WorkloadCheck(what="give orders", detail=f"{draining} nodes drain now")]

    async def check_order(self, order: WorkloadOrder) -> Sequence[WorkloadCheck]:
        """Check whether a node would be found; it is not drained, because that cannot be undone."""
        raylets = await self._raylets("")
        here = self._here(order.node, raylets)
        self._check_known(order, here, raylets)
        names = ", ".join(shown(each.node_name) for each in here if each.is_alive) or "none alive"
        detail = f"its raylets: {names}; not tried, because Ray cannot undo a drain"
        return [WorkloadCheck(what=f"find {order.node.node} in Ray", detail=detail)]

    async def wait_for_change(self) -> None:
        """Ray reports none."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Cancel what runs and close the connections."""
        await self._raylets.close()
        await self._orders.close()
        await self._client.close()

    async def _drain(self, order: WorkloadOrder, raylets: Sequence[Raylet]) -> None:
        if order.key.endswith(RESERVE_STEPS):
            log.info("Ray places work on a new node as soon as it joins", extra=_about(order))
            return
        here = self._here(order.node, raylets)
        self._check_known(order, here, raylets)
        alive = [each for each in here if each.is_alive]
        if any(each.is_head_node for each in alive):
            raise StepFailure(
                f"{order.node.node} runs Ray's head: draining it would end the whole cluster",
                "INVALID",
                "move Ray's head to a machine that Navarch does not manage",
            )
        if not alive:
            return
        deadline = int(order.deadline.timestamp() * 1000) if order.deadline else 0
        reason = f"navarch: {order.reason} ({order.key})"[:REASON_CHARS_MAX]
        await self._orders.give(
            *(RayOrder(raylet=each.node_id, reason=reason, deadline_ms=deadline) for each in alive)
        )
        if len(self._ordered) >= DRAINS_MAX:
            self._ordered.clear()
        self._ordered |= {(_started(raylets), each.node_id) for each in alive}
        log.info("drained in Ray", extra=_about(order))

    async def _remove(self, order: WorkloadOrder) -> None:
        here = self._here(order.node, await self._raylets(""))
        left = [each for each in here if each.is_alive and not each.is_head_node]
        if left:
            log.warning("removed from Ray: its work restarts elsewhere", extra=_about(order))
            await self._orders.give(
                *(RayOrder(raylet=each.node_id, reason="", remove=True) for each in left)
            )

    async def _insist(
        self, here: Mapping[str, Sequence[Raylet]], raylets: Sequence[Raylet]
    ) -> None:
        """Drain again a raylet that came back during the drain, or that a new head knows."""
        for node, found in here.items():
            order = self._drains.get(node)
            if order is None:
                continue
            new = [each for each in found if each.is_alive]
            if not new and found:
                self._drains.pop(node, None)
            if any((_started(raylets), each.node_id) not in self._ordered for each in new):
                log.warning("a node came back during its drain: drained again", extra=_about(order))
                await self._drain(order, raylets)

    def _answer(
        self,
        reference: NodeReference,
        here: Sequence[Raylet],
        raylets: Sequence[Raylet],
        state: RunningState,
    ) -> WorkloadAnswer:
        if here:
            self._seen.add(reference.node)
            alive = {each.node_id for each in here if each.is_alive}
            if not alive:
                return NodeWorkload(drained=True, detail=shown(here[-1].state_message or ""))
            draining = any(identity in alive for _, identity in self._ordered)
            detail = "it ends when nothing runs on it" if draining else "it is not drained in Ray"
            return node_workload(alive, state, detail)
        if reference.lost or reference.gone or self._options.unknown_nodes == "ignore":
            return NodeWorkload(drained=True, detail=self._unknown(reference))
        if self._is_young(raylets):
            detail = "Ray's head has just started; it may rejoin"
            return NodeWorkload(drained=False, detail=detail, unsure=True)
        if reference.node in self._seen:
            return NodeWorkload(drained=True, detail=self._unknown(reference))
        return self._refuse(reference, raylets)

    def _check_known(
        self, order: WorkloadOrder, here: Sequence[Raylet], raylets: Sequence[Raylet]
    ) -> None:
        """Raise for a node that Ray does not know, unless that means that it has no work."""
        left = order.node.lost or order.node.gone
        if here or left or self._options.unknown_nodes == "ignore":
            return
        if self._is_young(raylets):
            raise RayUnavailableError(f"{self._unknown(order.node)} yet; its head has just started")
        raise self._refuse(order.node, raylets)

    def _refuse(self, reference: NodeReference, raylets: Sequence[Raylet]) -> StepFailure:
        known = ", ".join(shown(each.node_name) for each in raylets[:NAMES_SHOWN_MAX]) or "none"
        return StepFailure(
            f"{self._unknown(reference)}; its work may run under another name (Ray has {known}, …)",
            "INVALID",
            f"start its raylet with `--labels {NODE_LABEL}={reference.node}`, or set `node_name` "
            "in the ray notifier's options; if it has left Ray, set `unknown_nodes: ignore`",
        )

    def _unknown(self, reference: NodeReference) -> str:
        return (
            f"Ray knows no node {node_name(self._options.node_name, reference)!r}, none with the "
            f"label {NODE_LABEL}={reference.node}, and none with its address"
        )

    def _here(self, reference: NodeReference, raylets: Sequence[Raylet]) -> Sequence[Raylet]:
        return find_raylets(node_name(self._options.node_name, reference), reference, raylets)

    def _is_young(self, raylets: Sequence[Raylet]) -> bool:
        if not any(each.is_head_node and each.is_alive for each in raylets):
            return True
        return self._clock.now().timestamp() - _started(raylets) / 1000 < REJOIN_SECONDS


def _started(raylets: Sequence[Raylet]) -> int:
    """When the head started, in milliseconds; 0: unknown."""
    heads = [each for each in raylets if each.is_head_node and each.is_alive]
    return max((each.start_time_ms or 0 for each in heads), default=0)


def _about(order: WorkloadOrder) -> dict[str, str]:
    return {"node": order.node.node, "key": order.key}
