"""The notifier ticket-queue of Navarch: tickets keep the batch system's work off a host.

    notifiers:
      research: {type: ticket-queue, url: "https://tickets.example"}
    pools:
      training:
        notifiers: [research]

A host is held while it has any ticket. Navarch has one of its own for each node, named after it, so
that an order that is repeated finds it, and tickets of administrators are never touched.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final

import httpx
import msgspec
from navarch.schemas.settings import Setting
from navarch.services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    NodeReference,
    NodeWorkload,
    RunningWork,
    StepFailure,
    WorkloadOrder,
)
from navarch.services.primitives.clock import Clock

ANSWER_BYTES_MAX: Final = 8 * 2**20
REFUSED: Final = frozenset({400, 401, 403, 422})
DONE: Final = frozenset({404, 412})
"""The system has no such host or ticket, or has the ticket already: an order is carried out."""


class Host(msgspec.Struct, kw_only=True):
    """A host as the ticket system has it."""

    tickets: list[str]
    jobs: list[str]


class Hosts(msgspec.Struct, kw_only=True):
    """Holds the hosts that were asked about; None: the system has no such host."""

    hosts: dict[str, Host | None]


class TicketQueue:
    """Cordons and drains nodes by tickets."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        url: str
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0

    name = "ticket-queue"
    confirms_drains = True
    batches = True
    poll_seconds = 5.0

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Open nothing: a connection is made by the first call."""
        del clock
        self._http = httpx.AsyncClient(base_url=options.url, timeout=options.timeout_seconds)

    async def cordon(self, order: WorkloadOrder) -> None:
        """Open the node's ticket; one that is there already may ask for more, and stays."""
        await self._write(order, "hold", **{"if-none-match": "*"})

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Close the node's ticket, and no other."""
        await self._call("DELETE", _ticket(order.node), DONE)

    async def drain(self, order: WorkloadOrder) -> None:
        """Have the ticket ask running work to leave by the order's deadline."""
        await self._write(order, "leave")

    async def evict(self, order: WorkloadOrder) -> None:
        """Have the ticket end the work that is left."""
        await self._write(order, "end")

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, NodeWorkload]:
        """Return what runs on each node; one that the answer leaves out is asked about again."""
        # By POST: the names of a large fleet are too long for an address.
        asked = {"names": [each.node for each in nodes]}
        answer = await self._call("POST", "/hosts/query", json=asked)
        hosts = msgspec.json.decode(answer, type=Hosts).hosts
        return {each.node: _workload(hosts[each.node]) for each in nodes if each.node in hosts}

    async def wait_for_change(self) -> None:
        """Never return: the system reports no change, and is asked every `poll_seconds`."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _write(self, order: WorkloadOrder, wanted: str, **headers: str) -> None:
        until = order.deadline.isoformat() if order.deadline else None
        ticket = {"host": order.node.node, "wanted": wanted, "reason": order.reason, "until": until}
        await self._call("PUT", _ticket(order.node), DONE, json=ticket, headers=headers)

    async def _call(
        self, method: str, path: str, accepted: Collection[int] = (), **request: Any
    ) -> bytes:
        answer = bytearray()
        async with self._http.stream(method, path, **request) as response:
            async for part in response.aiter_bytes():
                answer += part
                if len(answer) > ANSWER_BYTES_MAX:
                    raise ValueError(f"{path}: the answer has more than {ANSWER_BYTES_MAX} bytes")
        if response.status_code in REFUSED:
            reason = f"the ticket system refuses {path}: {bytes(answer[:200])!r}"
            raise StepFailure(reason, "INVALID", "check its rights for Navarch, and `url`")
        if response.status_code not in accepted:
            response.raise_for_status()  # any exception: the order is repeated until its deadline
        return bytes(answer)


def _ticket(node: NodeReference) -> str:
    return f"/tickets/navarch.{node.node}"


def _workload(host: Host | None) -> NodeWorkload:
    if host is None:
        return NodeWorkload(drained=True, detail="the ticket system has no such host")
    running = tuple(RunningWork(id=each) for each in host.jobs[:RUNNING_MAX])
    drained = bool(host.tickets) and not host.jobs
    return NodeWorkload(drained=drained, running=running, total=len(host.jobs))
