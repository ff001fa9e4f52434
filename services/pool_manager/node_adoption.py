"""Records the nodes of instances that a sweep adopts: their own records were lost."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from services.bus.port import Endpoint, Headers
from services.pool_manager.planner.node_reconstruction import adopted_node
from services.pool_manager.planner.saga_audit import ARRIVING
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

_instance: Final = decoder(InstanceRecord)


class UnknownPoolError(ValueError):
    """The instance is of a pool that does not exist."""


class NameInUseError(ValueError):
    """A saga under way has given the name of the instance to a node that it launches."""


class NodeAdoption:
    """Answers the provisioner's request to record a node."""

    def __init__(
        self, clock: Clock, store: Store, reconcile: Callable[[str], Awaitable[None]]
    ) -> None:
        """`reconcile` a pool that has one more node."""
        self._clock = clock
        self._store = store
        self._reconcile = reconcile

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Subject -> what answers it."""
        return {subjects.query("adopt-node"): self._adopt}

    async def _adopt(self, data: bytes, _: Headers) -> bytes:
        instance = _instance.decode(data)
        if await self._store.pool(instance.pool) is None:
            raise UnknownPoolError(
                f"there is no pool {instance.pool}: create it with `navarch up` or in the "
                "configuration, then adopt again"
            )
        known = await self._store.fresh_node(instance.pool, instance.instance)
        if known is not None and known.saga and known.state in ARRIVING:
            raise NameInUseError(
                f"{known.saga} launches a node of that name; adopt again when it has ended: see "
                "`navarch saga list`"
            )
        now = self._clock.now()
        record = await self._store.change_node(
            instance.pool, instance.instance, lambda found: adopted_node(found, instance, now)
        )
        assert record is not None
        log.info("node adopted", extra={"pool": record.pool, "node": record.node})
        await self._reconcile(record.pool)
        return encode(record)
