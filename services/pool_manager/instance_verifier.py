"""Asks the provisioner about nodes that have fallen silent, before anything is done about them.

Silence alone may be the network, the broker or the agent. What the provider knows of the instance
is noted in the node's record, where the next decision about the pool reads it: gone, and there is
nothing to wait for; present, and it is waited for as configured; no answer, and for longer. The
replica with the lease asks; it decides nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas import subjects
from schemas.enums import NOT_LISTED
from schemas.fleet_queries import Page, Query
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, is_made_by_others
from services.bus.leases import Lease
from services.bus.port import Bus
from services.bus.protocol.endpoint_replies import reply_data
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import AnswerError, BusError, Retry

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 15.0
"""Between two questions about nodes that stay silent: the provider's list may be older."""
ASK_SECONDS_MAX: Final = 5.0
NOTED_AT_ONCE: Final = 64
"""Records that are written side by side."""
ASKED_AT_ONCE_MAX: Final = 500
"""Nodes of one question: their records fit into one answer."""

RETURN_SECONDS: Final = 300.0
"""For an agent to connect that was refused and may connect again: its attempts are at most three
minutes apart. Counted from its readmission, and, if its credentials expired, from the provisioner's
first answer, without which no agent can renew them."""

Says = Literal["", "present", "gone", "disconnected"]

_page: Final = msgspec.json.Decoder(Page)
_instance: Final = decoder(InstanceRecord)


def is_asked_about(record: NodeRecord) -> bool:
    """Return whether the provisioner is asked about a node: a silent one. Pure.

    One that leaves too: if it is gone, nothing is drained any more. That it is gone is final, but
    where others make the nodes: they give a name again, and the provisioner records the next
    instance of it once its node is adopted.
    """
    if not record.lost or record.state not in ("active", "leaving"):
        return False
    return record.provider_state != "gone" or is_made_by_others(record)


def says(instance: InstanceRecord | None, now: datetime) -> Says:
    """Return what the provisioner's record of a silent node's instance says. Pure."""
    if instance is None:
        return ""
    match instance.state:
        case "terminated":
            return "gone"
        case "running" if instance.error == NOT_LISTED:
            return "gone"
        case "running" if _kept_away(instance, now):
            return "disconnected"
        case "running":
            return "present"
        case "intended" | "terminating" | "leaked" | "orphaned":
            return "present"


def _kept_away(instance: InstanceRecord, now: datetime) -> bool:
    """Whether a node is silent because its credentials are refused, or were until just now."""
    back = instance.readmitted_at
    return instance.disconnected_at is not None or (
        back is not None and (now - back).total_seconds() < RETURN_SECONDS
    )


class Verifier:
    """Asks about silent nodes as long as there are any."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        lease: Lease,
        reconcile: Callable[[str], Awaitable[None]],
    ) -> None:
        """Ask while `lease` is held; `reconcile` a pool of which something new is known."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._lease = lease
        self._reconcile = reconcile
        self._asked: dict[str, tuple[frozenset[str], float]] = {}
        """Pool -> the silent nodes that were asked about, and when."""
        self._awaited: dict[str, float] = {}
        """Node that may connect again -> when the provisioner first answered about it."""

    async def run(self) -> None:
        """Look for silent nodes, for ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            if not self._lease.held:
                continue
            silent = self._silent()
            still = {node for nodes in silent.values() for node in nodes}
            self._awaited = {node: at for node, at in self._awaited.items() if node in still}
            for pool, nodes in silent.items():
                if not self._due(pool, frozenset(nodes)):
                    continue
                try:
                    await self._ask(pool, nodes)
                except (AnswerError, BusError, Retry, msgspec.DecodeError) as error:
                    log.info("not verified", extra={"pool": pool, "reason": str(error)})
                except Exception:
                    log.exception("pool %s: its silent nodes are not verified", pool)

    def _silent(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for record in self._store.nodes.records.values():
            if is_asked_about(record):
                found.setdefault(record.pool, []).append(record.node)
        return found

    def _due(self, pool: str, nodes: frozenset[str]) -> bool:
        """New silence is asked about at once, old silence now and then."""
        before, at = self._asked.get(pool, (frozenset[str](), 0.0))
        now = self._clock.monotonic()
        if nodes <= before and now - at < AGAIN_SECONDS:
            return False
        self._asked[pool] = nodes, now
        return True

    async def _ask(self, pool: str, nodes: list[str]) -> None:
        instances = await self._instances(pool, nodes)
        changed = False
        # Side by side: where hundreds are silent, one write after the other takes too long.
        for start in range(0, len(nodes), NOTED_AT_ONCE):
            some = nodes[start : start + NOTED_AT_ONCE]
            now = self._clock.now()
            noted = await asyncio.gather(
                *(self._note(pool, node, instances.get(node), now) for node in some)
            )
            changed = changed or any(noted)
        if changed:
            await self._reconcile(pool)

    async def _note(
        self, pool: str, node: str, instance: InstanceRecord | None, now: datetime
    ) -> bool:
        """Note in a silent node's record what is known of it; whether that is news."""
        heard = says(instance, now)
        down = ""
        if instance is not None and heard == "present":
            down = instance.down_reason or instance.impaired_reason

        def noted(record: NodeRecord | None) -> NodeRecord | None:
            if record is None or not record.lost:
                return None
            return msgspec.structs.replace(record, provider_state=heard, down_reason=down)

        before = self._store.nodes.records.get(f"{pool}.{node}")
        if before is not None and (before.provider_state, before.down_reason) == (heard, down):
            return False
        if before is not None and before.provider_state == "disconnected" and heard != "gone":
            since = self._awaited.setdefault(node, self._clock.monotonic())
            if not heard or self._clock.monotonic() - since < RETURN_SECONDS:
                return False
        return before != await self._store.change_node(pool, node, noted)

    async def _instances(self, pool: str, nodes: list[str]) -> dict[str, InstanceRecord]:
        """The instances of these nodes, finished ones included, as the provisioner knows them."""
        found: dict[str, InstanceRecord] = {}
        for start in range(0, len(nodes), ASKED_AT_ONCE_MAX):
            some = tuple(nodes[start : start + ASKED_AT_ONCE_MAX])
            query = Query(pool=pool, names=some, limit=len(some), terminated=True)
            reply = await self._bus.request(
                subjects.query("instances"), encode(query), timeout_seconds=ASK_SECONDS_MAX
            )
            for item in _page.decode(reply_data(reply)).items:
                record: InstanceRecord = _instance.decode(item)
                found[record.instance] = record
        return found
