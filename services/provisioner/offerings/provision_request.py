"""The request to a provider for an allocated offering. Pure."""

from schemas.instance_records import InstanceRecord
from services.provisioner.provider_client.provider import ProvisionRequest


def request_for(record: InstanceRecord, user_data: str = "") -> ProvisionRequest:
    """Return the request for the offering that the record names."""
    launch, of = record.launch, record.offering
    assert of is not None
    choice = launch.choice
    limits = (
        [each.max_price for each in choice.offers if each.provider == of.provider]
        if (choice is not None and of.market == "spot")
        else []
    )
    return ProvisionRequest(
        name=record.instance,
        fleet=launch.fleet,
        pool=record.pool,
        node=record.instance,
        token=record.token,
        instance_type=of.instance_type,
        region=of.region,
        zone=of.zone,
        ssh_keys=launch.ssh_keys,
        labels=launch.labels,
        gpu_count=launch.gpu_count,
        user_data=user_data,
        market=of.market,
        max_price=max(limits, default=0.0),
        placement_group=choice.placement_group if choice is not None else "",
    )
