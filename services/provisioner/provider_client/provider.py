"""Defines the contract between the provisioner and a provider plugin.

A plugin is a class with an inner msgspec struct `Options`, constructed with `options=` and
`environment=`, and found by entry point (`navarch.providers`) or as `module:Class`. It maps its
cloud's errors to ProviderError, keeps no state that matters, and decides nothing: what to launch
and when to give up is decided by the provisioner.

The contract that makes crashes harmless:

- `provision` is idempotent by token. Called again with the same token while the instance exists, it
  returns that instance and launches nothing. It returns as soon as the provider has accepted and
  the ID is known, not when the machine is up. Where the cloud has no such token, the plugin says so
  in its capabilities, and puts fleet, pool, name and token into name and tags, so that `list` finds
  an instance whose answer was lost.
- `terminate` of an instance that does not exist, or is being removed, succeeds. It need not wait.
- `list` returns every instance that this plugin launched and that may still cost money, of any
  fleet that shares the account, with its tags; a terminated instance is not in it. A list that is
  incomplete is an error. A provider of many hosts that cannot reach one of them lists that host
  instead, with `may_hold` and no fleet: the absence of instances on that host then proves nothing,
  and the others are handled as usual.
- A cancelled call may or may not have taken effect; calling again must be safe.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from schemas.enums import NoticeEffect
from schemas.launch_offers import Market, Offering
from schemas.offering_records import OfferingPrice, OfferingQuota
from schemas.settings import AgentSettings
from services.provisioner.provider_client.launch_batches import (
    MakeLaunchBatches,
    local_launch_batches,
)
from services.provisioner.provider_client.rate_limit import MakeRateLimiter, local_rate_limiter

InstanceStatus = Literal["pending", "running", "stopping", "stopped"]
"""As the provider sees it. A terminated instance has none: it is not listed."""


class ProvisionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Says what to launch."""

    name: str
    """Unique in the fleet; the instance's name at the provider, where it has names."""
    fleet: str
    pool: str
    node: str
    token: str
    """Idempotency token: the same for every attempt of one intention."""
    instance_type: str
    region: str = ""
    zone: str = ""
    ssh_keys: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    user_data: str = ""
    gpu_count: int = 0
    """0: as many as the instance type has."""
    market: Market | Literal[""] = ""
    """Empty: according to the provider's options."""
    max_price: float = 0.0
    """The most that a spot instance may cost per hour; 0: according to the options."""
    placement_group: str = ""
    """The group to place it in; empty: according to the options."""
    options: dict[str, Any] = {}
    """Of the provider's options those that differ for this launch: of its class's `per_pool`."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as its provider lists it."""

    name: str
    provider_id: str
    status: InstanceStatus = "pending"
    fleet: str = ""
    """From the tags; empty: not launched by a fleet, and never touched."""
    pool: str = ""
    token: str = ""
    instance_type: str = ""
    market: Market | Literal[""] = ""
    """Empty: neither its tags nor the provider say."""
    region: str = ""
    zone: str = ""
    address: str = ""
    host: str = ""
    """The physical machine, if the provider reports it."""
    created_at: datetime | None = None
    dollars_per_hour: float = 0.0
    tags: dict[str, str] = {}
    lasting: bool = False
    """Nothing makes another in its place, so it is never replaced."""
    may_hold: str = ""
    """Set for a host that could not be reached: instances whose ID has this prefix may exist."""


class ScheduledEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a provider will do to an instance, as its API reports."""

    provider_id: str
    event: str
    """Its ID."""
    action: str
    """The provider's term: `instance-retirement`."""
    text: str
    effect: NoticeEffect
    starts_at: datetime | None = None
    """None: at any moment."""
    ends_at: datetime | None = None


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a provider reports of its instances' hosts; whole, or an error is raised."""

    events: tuple[ScheduledEvent, ...] = ()
    impaired: dict[str, str] = {}
    """Provider ID -> which of its status checks fail."""


class QueuedNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a message of a provider's queue of notices."""

    receipt: str
    """By which it is deleted."""
    at: datetime | None = None
    event: ScheduledEvent | None = None
    """None: it announces nothing by itself."""
    changes_reports: bool = False
    """What the provider reports of its hosts has changed."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a provider can do beyond the contract."""

    idempotency_token: bool = False
    """The provider drops a repeated launch by itself."""
    prices: bool = False
    reboot: bool = False
    """An instance can be rebooted (`Reboots`) and keeps its ID, disks and address."""
    region: str = ""
    """The only region it serves; empty: several, or none."""
    sees_region_only: bool = False
    """It lists and removes nothing outside `region`."""
    market: Market = "on-demand"
    """Of a launch that names none."""
    spot: bool = False
    """Whether a launch may name the spot market."""
    reserved: bool = False
    """Whether its options name reserved capacity, which a launch may name as its market."""
    adopts: bool = False
    """Others make its instances: it launches none, and what it lists is adopted."""
    queued_notices: bool = False
    """Its options name a queue of notices (`QueuesNotices`)."""
    list_lag_seconds: float = 0.0
    """How long a new instance may be missing from `list`."""
    fixed_capacity: bool = False
    """It has so many machines: what is removed must be free before another is launched."""
    freed_within_seconds: float = 900.0
    """How long a launch in place of a removed instance waits until its capacity is free."""


class Provider(Protocol):
    """Launches, removes and lists instances; the contract is in this module's docstring."""

    @property
    def name(self) -> str:
        """The name in the configuration, which pools refer to."""

    @property
    def capabilities(self) -> Capabilities:
        """Return what the provider can do beyond the contract."""

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch the instance, or return the one that this token has launched already."""

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance; success if there is none."""

    async def list(self) -> list[Instance]:
        """Return every instance that may still cost money."""

    async def close(self) -> None:
        """Close connections and threads; instances stay."""


@runtime_checkable
class NamesInstances(Protocol):
    """A provider whose API writes the ID of one instance in several forms."""

    def canonical_id(self, provider_id: str) -> str:
        """Return the form by which IDs are compared; every method of the provider takes it."""


@runtime_checkable
class Bootstraps(Protocol):
    """A provider whose instances do not start their agent by themselves."""

    async def bootstrap(self, instance: Instance) -> None:
        """Start the agent on the instance; idempotent."""


@runtime_checkable
class Reboots(Protocol):
    """A provider that can reboot an instance, as its capabilities say."""

    async def reboot(self, instance: Instance) -> None:
        """Begin to reboot it; INVALID if there is none. It may be called twice."""


@runtime_checkable
class ColdRestarts(Protocol):
    """A provider that can switch some of its machines off and on."""

    def can_restart_cold(self, instance: Instance) -> bool:
        """Return whether this instance can be switched off and on."""

    async def restart_cold(self, instance: Instance) -> None:
        """Switch it off and on, which may take minutes; INVALID if it cannot be. Repeatable."""


@runtime_checkable
class ReportsHosts(Protocol):
    """A provider whose API reports scheduled events or status checks."""

    async def report_hosts(self) -> HostReport:
        """Return what is in force now, in a bounded number of requests."""


@runtime_checkable
class QueuesNotices(Protocol):
    """A provider that can read a queue of notices."""

    async def queued_notices(self) -> Sequence[QueuedNotice]:
        """Return some messages; none: there are none now."""

    async def delete_notices(self, receipts: Sequence[str]) -> None:
        """Remove messages whose notices are stored."""


@runtime_checkable
class ReportsFaultyHosts(Protocol):
    """A provider that takes reports of faulty hosts."""

    async def report_faulty_host(self, provider_id: str, fault: str) -> bool:
        """Report a GPU's fault (`xid-79`), and return when the report is complete. Repeatable.

        False: its options say that nothing is to be reported.
        """


@runtime_checkable
class Prices(Protocol):
    """A provider whose API reports prices or capacity."""

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """Return current prices of these types; empty if no pool names any."""


@runtime_checkable
class Quotas(Protocol):
    """A provider whose API reports quotas."""

    async def quotas(self, offerings: Sequence[Offering]) -> Sequence[OfferingQuota]:
        """Return, of those offerings that have one, the quota with the least room."""


@runtime_checkable
class JoinsFabric(Protocol):
    """A provider whose options say which nodes join a network for RDMA."""

    def joins_fabric(self, request: ProvisionRequest) -> bool:
        """Return whether this launch joins it; ProviderError if its options are not valid."""


@runtime_checkable
class IdentifiesPods(Protocol):
    """A provider on whose nodes agents run in pods, each with a token that names its node."""

    async def node_of_pod(self, token: str) -> str:
        """Return the name of the instance on which the token's pod runs.

        INVALID if the token is none, or of another pod than an agent's.
        """


@runtime_checkable
class Resumes(Protocol):
    """A provider whose instances stop with their host."""

    async def resume(self) -> None:
        """Start the instances that stopped with the host, if any."""


ListJoined = Callable[[str], Awaitable[list[Instance]]]
"""Name of a provider -> the machines that joined its pools, by their records."""


async def none_joined(_: str) -> list[Instance]:
    """Return no machine: the records are not known."""
    return []


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment that every provider plugin is constructed with."""

    name: str
    """The provider's own name in the configuration."""
    fleet: str
    nats_url: str
    data_dir: Path
    agent: AgentSettings = AgentSettings()
    agent_signing_file: str = ""
    """Signs each node's credentials (`services.bus.nats.nats_accounts`); empty: none are issued."""
    nats_tls_ca_file: str = ""
    rate_limiter: MakeRateLimiter = local_rate_limiter
    """Limits the request rate across all replicas, for clouds that count an account's requests."""
    launch_batches: MakeLaunchBatches = local_launch_batches
    """Which launches share a request, across all replicas."""
    joined: ListJoined = none_joined
