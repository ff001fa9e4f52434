"""Corrects the IDs of records by what providers list, and reports what an operator must look at."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.fleet_queries import CurrentFailure
from schemas.instance_records import InstanceRecord
from schemas.pool_events import InstanceIdCorrected
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.removal.sweep_actions import SweepAction
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

WINDOW: Final = timedelta(minutes=10)
CORRECTED_MAX: Final = 1
"""Nodes whose IDs are corrected within the window before the provider's answers have changed."""
FORMER_IDS_MAX: Final = 4
"""Kept of each record."""
OBSERVER: Final = "instance IDs"

Report = Callable[[str, Iterable[CurrentFailure]], None]
"""Reports what an observer finds now, as `FailureRegister.update` does."""


class IdCorrections:
    """Start the corrections of one replica."""

    def __init__(self, bus: Bus, clock: Clock, store: InstanceStore, report: Report) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._report = report
        self._corrected: dict[str, tuple[datetime, str]] = {}
        """Key of a node -> when its ID was last corrected, and the provider."""

    async def correct(self, action: SweepAction) -> None:
        """Record the ID that the provider lists, unless the record has changed since."""
        listed, seen = action.instance, await self._store.get(action.key)
        if seen is None or seen.state != "running" or seen.provider_id == listed.provider_id:
            return

        def decide(found: InstanceRecord | None) -> InstanceRecord | None:
            if found is None or (found.state, found.provider_id) != ("running", seen.provider_id):
                return None
            return corrected(found, action)

        event = InstanceIdCorrected(
            id=f"corrected-{action.key}-{seen.provider_id}-{listed.provider_id}",
            time=self._clock.now(),
            pool=seen.pool,
            instance=seen.instance,
            provider=action.provider,
            provider_id=listed.provider_id,
            previous=seen.provider_id,
        )
        log.warning("ID corrected", extra={"instance": action.key, "reason": action.why})
        # Before the record says so: a crash in between must not lose the event.
        await publish_event(self._bus, event)
        await self._store.change(action.key, decide)
        self._corrected[action.key] = self._clock.now(), action.provider

    def report(self, due: Iterable[SweepAction]) -> None:
        """Report nodes with several machines, and providers whose answers have changed."""
        unclear = {each.key: each for each in due if each.kind == "note-unclear"}
        since = self._clock.now() - WINDOW
        self._corrected = {key: each for key, each in self._corrected.items() if each[0] > since}
        found = [unclear_failure(each) for each in unclear.values()]
        for provider in dict.fromkeys(each for _, each in self._corrected.values()):
            keys = [key for key, each in self._corrected.items() if each[1] == provider]
            found += [changed_failure(provider, keys)] if len(keys) > CORRECTED_MAX else []
        self._report(OBSERVER, found)


def corrected(record: InstanceRecord, action: SweepAction) -> InstanceRecord:
    """Return a record with the ID of the machine that is its node. Pure.

    The ID before means the same machine in another form, unless it is another machine's: then no
    order of this record means it.
    """
    now = action.instance.provider_id
    known = (*record.former_ids, record.provider_id)
    former = tuple(each for each in known if each not in ("", now, action.beside))
    return replace(
        record,
        provider_id=now,
        provider=action.provider,
        former_ids=former[-FORMER_IDS_MAX:],
        id_doubted=False,
    )


def unclear_failure(action: SweepAction) -> CurrentFailure:
    """Describe several machines of one name."""
    node = action.instance.name
    return CurrentFailure(
        failure="instance-unclear",
        about=f"instances {action.key}",
        reason=f"{action.why}: none is terminated",
        remedy=(
            f"`navarch ssh {node}` shows which machine serves; end the other one at its provider. "
            f"`navarch replace {node}` ends the one that the record names"
        ),
    )


def changed_failure(provider: str, keys: list[str]) -> CurrentFailure:
    """Describe a provider that lists nodes under other IDs than before."""
    return CurrentFailure(
        failure="provider-ids-changed",
        about=f"provider {provider}",
        reason=(
            f"it lists {len(keys)} nodes under other IDs than before, among them {min(keys)}: its "
            "answers have changed. Their records were corrected, and none is terminated for it"
        ),
        remedy="compare `navarch instances` with the provider's console, and report the difference",
    )
