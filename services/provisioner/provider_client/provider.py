"""What a provider is: the contract between the provisioner and whatever makes machines.

A plugin is a class with an inner msgspec struct `Options`, constructed with `options=` and
`environment=`, and found by entry point (`navarch.providers`) or as `module:Class`. It turns its
cloud's errors into ProviderError, keeps no memory that matters, and decides nothing: what to launch
and when to give up is the provisioner's.

The contract that crash-exactness rests on:

- `provision` is idempotent by token. Called again with the same token while the instance exists, it
  returns that instance and makes nothing. It returns as soon as the provider has accepted and the
  id is known, not when the machine is up. Where the cloud has no such token, the plugin says so in
  its capabilities, and puts fleet, pool, name and token into name and tags, so that `list` finds
  what a lost answer left behind.
- `terminate` of what does not exist, or is on its way out, is a success. It need not wait.
- `list` returns every instance that this plugin made and that may still cost money, of any fleet
  that shares the account, with its tags; what is finally gone is not in it. A list that cannot be
  had whole is an error, never a shorter list. A provider of many hosts that cannot look into one
  of them lists that host instead, with `may_hold` and no fleet: nothing is then concluded from the
  absence of what may stand there, and everything else goes on.
- Cancelling any call may leave its effect undone or done; both are healed by calling again.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from schemas.launch_offers import Market
from schemas.offering_records import KnownPrice
from schemas.settings import AgentSettings
from services.provisioner.provider_client.rate_limit import MakeRateLimiter, local_rate_limiter

InstanceStatus = Literal["pending", "running", "stopping", "stopped"]
"""As the provider sees it. What is finally gone has no status: it is not listed."""


class ProvisionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to make."""

    name: str
    """Unique in the fleet; what the instance is called at the provider, where that is possible."""
    fleet: str
    pool: str
    node: str
    token: str
    """Idempotency token: the same for every try of one intention."""
    instance_type: str
    region: str = ""
    zone: str = ""
    ssh_keys: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    user_data: str = ""
    gpu_count: int = 0
    """0: as the instance type has."""
    market: Market | Literal[""] = ""
    """Empty: as the provider's own options say."""
    max_price: float = 0.0
    """Dollars per hour that a spot instance may come to cost; 0: as the options say."""
    placement_group: str = ""
    """Where to put it, near others of the same; empty: as the options say."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider has made."""

    name: str
    provider_id: str
    status: InstanceStatus = "pending"
    fleet: str = ""
    """From the tags; empty: not ours to touch."""
    pool: str = ""
    token: str = ""
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    address: str = ""
    host: str = ""
    """The physical machine, where the provider tells."""
    created_at: datetime | None = None
    dollars_per_hour: float = 0.0
    tags: dict[str, str] = {}
    may_hold: str = ""
    """Set where a provider could not look: an instance whose id begins so may stand here unseen."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider can do beyond the contract."""

    idempotency_token: bool = False
    """The provider itself drops a repeated launch."""
    tags: bool = True
    server_side_ttl: bool = False
    """An instance can be told to end by itself."""
    prices: bool = False
    capacity_hints: bool = False
    host_identity: bool = False
    reboot: bool = False
    """An instance can be rebooted in its place (`Reboots`): it keeps its id, disks and address."""
    region: str = ""
    """The only region it serves; empty: several, or none."""
    sees_region_only: bool = False
    """It lists and removes nothing outside `region`: what was made in another is out of sight."""
    market: Market = "on-demand"
    """Of a launch that names none."""
    spot: bool = False
    """Whether a launch may name the spot market."""
    list_lag_seconds: float = 0.0
    """How long a new instance may be missing from `list`: until then absence proves nothing."""


class Provider(Protocol):
    """Makes, removes and lists instances; the contract is in this module's docstring."""

    @property
    def name(self) -> str:
        """Its name in the configuration, which pools refer to."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond the contract."""
        ...

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Make the instance, or return the one that this token has made already."""
        ...

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance; success where there is none."""
        ...

    async def list(self) -> list[Instance]:
        """Every instance that may still cost money."""
        ...

    async def close(self) -> None:
        """Give back connections and threads; instances stay."""
        ...


@runtime_checkable
class Bootstraps(Protocol):
    """A provider whose instances do not bring up their agent by themselves."""

    async def bootstrap(self, instance: Instance) -> None:
        """Bring the agent onto the instance; idempotent."""
        ...


@runtime_checkable
class Reboots(Protocol):
    """A provider that can reboot an instance; it says so in its capabilities as well."""

    async def reboot(self, instance: Instance) -> None:
        """Begin to reboot it; INVALID where there is none. It may be asked for twice."""
        ...


@runtime_checkable
class Prices(Protocol):
    """A provider whose API tells prices, or where there is capacity."""

    async def prices(self, instance_types: Sequence[str]) -> Sequence[KnownPrice]:
        """What it says now of these types; none at all are asked for where no pool names any."""
        ...


@runtime_checkable
class Resumes(Protocol):
    """A provider whose instances stop when the host that serves them does."""

    async def resume(self) -> None:
        """Start what was stopped with the host; nothing where nothing was."""
        ...


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What every provider plugin is told about the place it runs in."""

    name: str
    """The provider's own name in the configuration."""
    fleet: str
    nats_url: str
    data_dir: Path
    agent: AgentSettings = AgentSettings()
    agent_signing_file: str = ""
    """Signs each node's credentials (`services.bus.nats.nats_accounts`); empty: none are issued."""
    rate_limiter: MakeRateLimiter = local_rate_limiter
    """Keeps calls apart over all replicas, where a cloud counts an account's requests."""
