"""Makes a launch's request to a provider, and reads how the launch ended, by its record."""

from typing import get_args

from schemas.enums import LaunchRefusal
from schemas.instance_records import InstanceRecord
from schemas.step_data import ProvisionOutputs
from services.provisioner.instances.instance_decisions import type_of
from services.provisioner.provider_client.provider import ProvisionRequest
from services.provisioner.provider_client.provider_errors import RULES
from services.saga.participant import StepFailure


def outcome_of(record: InstanceRecord) -> ProvisionOutputs:
    """Return the outputs of an earlier attempt, or raise its failure again."""
    if record.state == "running":
        return ProvisionOutputs(
            provider=record.provider,
            provider_id=record.provider_id,
            region=record.region,
            zone=record.zone,
            address=record.address,
            host=record.host,
            instance_type=type_of(record),
            market=record.offering.market if record.offering is not None else "",
            dollars_per_hour=record.dollars_per_hour or None,
            chosen=record.chosen,
        )
    kind, _, message = record.error.partition(": ")
    if kind in RULES or kind in get_args(LaunchRefusal):
        raise StepFailure(message, error=kind)
    raise StepFailure(f"the instance is {record.state}: {record.error or 'it was undone'}")


def request_of(record: InstanceRecord, user_data: str) -> ProvisionRequest:
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
        options=choice.options_at(of.provider) if choice is not None else {},
    )
