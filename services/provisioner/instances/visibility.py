"""What a provider cannot list, and which recorded instances may therefore still exist. Pure."""

from collections.abc import Iterable

from schemas.instance_records import InstanceRecord
from services.provisioner.provider_client.provider import Capabilities


def may_be_hidden(record: InstanceRecord, unseen: Iterable[str]) -> bool:
    """Whether the record's instance may exist where its provider could not look.

    Without a known provider ID it may be in any such place.
    """
    known = record.provider_id
    return any(not known or known.startswith(each) for each in unseen)


def why_out_of_region(record: InstanceRecord, can: Capabilities) -> str:
    """Why the provider can neither remove nor list the record's instance; empty if it can.

    Its absence from another region's list proves nothing.
    """
    chosen = record.offering.region if record.offering is not None else ""
    region = record.region or chosen
    if not can.sees_region_only or region in ("", can.region):
        return ""
    return (
        f"it was launched in {region}, and provider {record.provider} is configured for "
        f"{can.region} now: configure {region} again, or remove "
        f"{record.provider_id or record.instance} there by hand"
    )
