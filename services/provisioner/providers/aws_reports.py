"""Reads what EC2 reports of hosts: scheduled events, status checks, ends of capacity blocks.

Only instances about which there is something to report are listed, so a few requests suffice for
an account of any size; they wait for their slots like all others.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.enums import NoticeEffect
from services.provisioner.instances.instance_tags import FLEET_TAG
from services.provisioner.provider_client.provider import HostReport, ScheduledEvent
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws_clients import PAGE, AwsClients

EFFECTS: Final[Mapping[str, NoticeEffect]] = {
    "instance-retirement": "retire",
    "instance-stop": "retire",
    "instance-reboot": "reboot",
    "system-reboot": "reboot",
    "system-maintenance": "reboot",
}
"""Codes of scheduled events; the agent has the same table for what it reads on the host."""
EVENTS: Final = {"Name": "event.code", "Values": sorted(EFFECTS)}
CHECKS: Final = ("system-status.status", "instance-status.status")
"""Of the host, and of whether the instance's network answers."""
IMPAIRED: Final = "impaired"
OF_BLOCKS: Final = {"Name": "instance-lifecycle", "Values": ["capacity-block"]}
BLOCK_ENDS: Final = "capacity-block-end"
BEFORE_END: Final = timedelta(minutes=30)
"""So long before a capacity block ends EC2 begins to terminate its instances."""
BEFORE_END_OF_ULTRASERVERS: Final = timedelta(minutes=60)
ULTRASERVERS: Final = ("p6e-", "u-p6e-", "trn2u.")
TEXT_CHARS_MAX: Final = 200
PAGES_MAX: Final = 20
BLOCKS_MAX: Final = 100
"""Capacity blocks of one account in one region that are asked about."""


class AwsHostReports:
    """Reads the reports of one account in one region."""

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients

    async def read(self) -> HostReport:
        """Return what is in force now."""
        events = scheduled_events(await self._statuses(EVENTS))
        failing: dict[str, str] = {}
        for check in reversed(CHECKS):  # the host's check has the last word
            wanted = {"Name": check, "Values": [IMPAIRED]}
            failing |= impaired(check, await self._statuses(wanted))
        return HostReport(events=(*events, *await self._block_ends()), impaired=failing)

    async def _statuses(self, wanted: Mapping[str, Any]) -> list[Any]:
        return await self._pages("describe_instance_status", "InstanceStatuses", Filters=[wanted])

    async def _block_ends(self) -> list[ScheduledEvent]:
        wanted = [OF_BLOCKS, {"Name": "tag-key", "Values": [FLEET_TAG]}]
        found = await self._pages("describe_instances", "Reservations", Filters=wanted)
        instances = reservations_of([each for all_ in found for each in all_["Instances"]])
        blocks = sorted({block for block, _ in instances.values()})[:BLOCKS_MAX]
        if not blocks:
            return []
        about = "describe_capacity_reservations"
        answer = await self._clients.call("ec2", about, CapacityReservationIds=blocks)
        return block_ends(instances, answer["CapacityReservations"])

    async def _pages(self, what: str, key: str, **given: Any) -> list[Any]:
        found: list[Any] = []
        read = 0
        async for page in self._clients.pages("ec2", what, **given):
            if read == PAGES_MAX:
                text = f"{what} has more than {PAGES_MAX * PAGE} answers"
                raise ProviderError("TRANSIENT", text)
            found += page[key]
            read += 1
        return found


# --- answers, pure -------------------------------------------------------------------------------


def scheduled_events(statuses: Iterable[Any]) -> list[ScheduledEvent]:
    """The events in force of instances' statuses; what is over or cancelled begins with `[`."""
    return [
        ScheduledEvent(
            provider_id=status["InstanceId"],
            event=event.get("InstanceEventId", ""),
            action=event["Code"],
            text=f"EC2 schedules {event['Code']}: {event.get('Description', '')[:TEXT_CHARS_MAX]}",
            effect=EFFECTS[event["Code"]],
            starts_at=event.get("NotBefore"),
            ends_at=event.get("NotAfter"),
        )
        for status in statuses
        for event in status.get("Events", ())
        if event.get("Code") in EFFECTS and not event.get("Description", "").startswith("[")
    ]


def impaired(check: str, statuses: Iterable[Any]) -> dict[str, str]:
    """Return which instances fail a check, and since when."""
    part = "SystemStatus" if check.startswith("system") else "InstanceStatus"
    found: dict[str, str] = {}
    for status in statuses:
        about = status.get(part, {})
        if about.get("Status") != IMPAIRED:
            continue
        times = [
            each["ImpairedSince"] for each in about.get("Details", ()) if each.get("ImpairedSince")
        ]
        since = f" since {min(times):%Y-%m-%d %H:%M} UTC" if times else ""
        what = "of its host" if part == "SystemStatus" else "of the instance"
        found[status["InstanceId"]] = f"EC2's status check {what} fails{since}"
    return found


def reservations_of(described: Iterable[Any]) -> dict[str, tuple[str, str]]:
    """Return the capacity block and the type of each instance, by its ID."""
    return {
        each["InstanceId"]: (each["CapacityReservationId"], each["InstanceType"])
        for each in described
        if each.get("CapacityReservationId")
    }


def block_ends(
    instances: Mapping[str, tuple[str, str]], reservations: Iterable[Any]
) -> list[ScheduledEvent]:
    """Return when the instances of capacity blocks begin to be terminated."""
    ends: dict[str, datetime] = {
        each["CapacityReservationId"]: each["EndDate"]
        for each in reservations
        if each.get("EndDate")
    }
    return [
        ScheduledEvent(
            provider_id=instance,
            event=block,
            action=BLOCK_ENDS,
            text=f"the capacity block {block} ends at {ends[block]:%Y-%m-%d %H:%M} UTC",
            effect="retire",
            starts_at=ends[block]
            - (BEFORE_END_OF_ULTRASERVERS if kind.startswith(ULTRASERVERS) else BEFORE_END),
        )
        for instance, (block, kind) in instances.items()
        if block in ends
    ]
