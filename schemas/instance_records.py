"""Records of instances: bucket INSTANCES, key `<pool>.<node>`."""

from schemas.enums import InstanceState
from schemas.launch_offers import Offering
from schemas.messages import Record, UtcTime
from schemas.saga_params import LaunchSpec


class InstanceRecord(Record, frozen=True, kw_only=True):
    """INSTANCES `<pool>.<node>`: what costs money, from the intention to the confirmed absence."""

    pool: str
    instance: str
    """Our own name: the node's."""
    state: InstanceState = "intended"
    provider: str
    token: str
    """Idempotency token and tag: the same for every try of this intention."""
    launch: LaunchSpec
    offering: Offering | None = None
    """What was chosen, recorded before it is asked for; None: nothing has been asked for yet."""
    provider_id: str = ""
    region: str = ""
    zone: str = ""
    address: str = ""
    host_key: str = ""
    """SSH host key as first seen, `ssh-ed25519 AAAA…`; another one at this address is refused."""
    host: str = ""
    """The physical machine, where the provider tells."""
    agent_key: str = ""
    """Public key that this node's credentials were issued for; no second key gets any."""
    saga: str = ""
    attempts: int = 0
    asks: int = 0
    """How many have asked a provider without idempotency tokens: all but the first look before."""
    rebooted: str = ""
    """Saga and step of the last reboot that the provider accepted: it is not asked for twice."""
    error: str = ""
    dollars_per_hour: float = 0.0
    intended_at: UtcTime
    running_at: UtcTime | None = None
    terminating_at: UtcTime | None = None
    """Since when it should be gone; how long that may take decides what is called leaked."""
    removal_attempts: int = 0
    """How often its provider was asked in vain to remove it, as far as that was noted."""
    tried_at: UtcTime | None = None
    """When it was asked last."""
    terminated_at: UtcTime | None = None
