"""Where a provider cannot look, and what may therefore stand there unseen. Pure."""

from collections.abc import Iterable

from schemas.records import InstanceRecord
from services.provisioner.provider_client.provider import Capabilities, Instance


def hidden(listed: Iterable[Instance]) -> tuple[str, ...]:
    """Where a provider could not look: how the ids begin of what may stand there."""
    return tuple(each.may_hold for each in listed if each.may_hold)


def may_stand(record: InstanceRecord, unseen: Iterable[str]) -> bool:
    """Whether the record's instance may stand where its provider could not look (`hidden`).

    One whose id was never learnt may stand in any such place.
    """
    known = record.provider_id
    return any(not known or known.startswith(each) for each in unseen)


def out_of_sight(record: InstanceRecord, can: Capabilities) -> str:
    """Why its provider can neither remove a record's instance nor tell of it; empty: it can.

    Asked in another region than the instance's own a cloud does not know it, which proves nothing.
    """
    chosen = record.offering.region if record.offering is not None else ""
    region = record.region or chosen
    if not can.sees_region_only or region in ("", can.region):
        return ""
    return (
        f"it was made in {region}, and provider {record.provider} is of {can.region} now: give it "
        f"{region} again, or remove {record.provider_id or record.instance} there by hand"
    )
