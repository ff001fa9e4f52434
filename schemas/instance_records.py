"""Declares the records of instances: bucket INSTANCES, key `<pool>.<node>`."""

import msgspec

from schemas.enums import InstanceState
from schemas.launch_offers import Offering
from schemas.messages import Record
from schemas.saga_params import LaunchSpec
from schemas.termination_orders import Authority, SurplusInstance
from schemas.value_limits import Address, AgentKey, Float, HostKey, Identifier, Int, Token, UtcTime


class RequestedOffering(msgspec.Struct, frozen=True, kw_only=True):
    """An offering that a launch requested, and what was recorded with it."""

    offering: Offering
    dollars_per_hour: Float = 0.0
    chosen: str = ""


class InstanceRecord(Record, frozen=True, kw_only=True):
    """INSTANCES `<pool>.<node>`: an instance until its absence is confirmed."""

    pool: Token
    instance: Token
    """Navarch's name: the node's."""
    state: InstanceState = "intended"
    provider: str
    token: str
    """Idempotency token and tag: the same for every attempt of this launch."""
    launch: LaunchSpec
    offering: Offering | None = None
    """The chosen offering, recorded before the provider call; None: no call was made."""
    chosen: str = ""
    """Which offerings came later than it, as their instances had been interrupted."""
    refused: tuple[RequestedOffering, ...] = ()
    """Offerings that refused the launch, the last one at the end: an instance that is found late
    may be of any of them."""
    provider_id: Identifier = ""
    former_ids: tuple[Identifier, ...] = ()
    """Earlier values of `provider_id`, the last one at the end: its provider may list it by one of
    them again."""
    id_doubted: bool = False
    """Its provider lists `provider_id` under another node's name: an order means it only where the
    list shows it as this node's."""
    region: Identifier = ""
    zone: Identifier = ""
    address: Address = ""
    host_key: HostKey = ""
    """SSH host key at first contact, `ssh-ed25519 AAAA…`; any other key is refused."""
    host: str = ""
    """The physical machine, where the provider names it."""
    agent_key: AgentKey = ""
    """Public key that the node's credentials were issued for; no second key gets any."""
    disconnected_at: UtcTime | None = None
    """Since when the node's credentials are refused, because its agent floods the bus."""
    disconnected_reason: str = ""
    readmitted_at: UtcTime | None = None
    """When an operator last had its credentials accepted again."""
    down_since: UtcTime | None = None
    """Since when its provider reports that it does not run."""
    down_reason: str = ""
    """What it reports."""
    impaired_reason: str = ""
    """Which of the provider's status checks fail, where it reports any."""
    reported_notices: tuple[str, ...] = ()
    """IDs of the notices in force that the provider's API reported."""
    saga: str = ""
    attempts: Int = 0
    launch_calls: Int = 0
    """Launch calls to a provider without idempotency tokens; all but the first list beforehand."""
    last_reboot: str = ""
    """Saga and step of the last reboot that the provider accepted, so that it is requested once."""
    error: str = ""
    dollars_per_hour: Float = 0.0
    created_at: UtcTime | None = None
    """When others made it, as its provider reports: what is older is of another of its name."""
    intended_at: UtcTime
    running_at: UtcTime | None = None
    terminating_at: UtcTime | None = None
    """When it should have gone; after a time limit it counts as leaked."""
    authority: Authority | None = None
    """Who ordered it to go; each further attempt is made by it, whatever became of its saga."""
    ordered: tuple[Identifier, ...] = ()
    """The provider IDs that the order means; empty: what is listed with its launch token."""
    surplus: tuple[SurplusInstance, ...] = ()
    """Other instances of its launch that were ordered to go, until they are not listed."""
    kept_until: UtcTime | None = None
    """Until then it is not removed, unless another node of its pool is admitted: its hardware is on
    the denylist, and the provider might launch the next node on it."""
    removal_attempts: Int = 0
    """Recorded attempts to terminate it that failed."""
    removal_tried_at: UtcTime | None = None
    """Time of the last such attempt."""
    terminated_at: UtcTime | None = None
