"""Declares every setting with its default.

Unknown keys are refused. The loader names file, line and key, and translates older spellings.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.agent_settings import AgentSettings as AgentSettings
from schemas.alert_records import Severity
from schemas.duration import Duration
from schemas.enums import AlertKind, DrainMode
from schemas.event_sink_settings import EventSinkSpec
from schemas.export_settings import MetricsSettings, TracingSettings
from schemas.file_path import PATH_MARK as PATH_MARK
from schemas.file_path import FilePath as FilePath
from schemas.flapping_settings import FlappingSpec
from schemas.gateway_settings import GatewaySettings
from schemas.instance_type_catalogue import InstanceTypes, Price
from schemas.lag_settings import LagSettings
from schemas.launch_offers import Markets
from schemas.lifecycle_settings import ConsolidationSpec
from schemas.placement_settings import PlacementSpec, RackSpec
from schemas.secret_text import SecretText
from schemas.value_limits import UserName

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Nodes = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]

UNLIMITED: Final = "unlimited"
"""In place of a count or a percentage: no limit on the rate."""


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declares a section of the configuration."""


class PluginSettings(Setting, frozen=True, kw_only=True):
    """Names a plugin by entry point or `module:Class`, with its own options."""

    type: str
    options: dict[str, Any] = {}
    path: str = ""
    """Its path in the configuration, for error messages."""


Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class HoursSpec(Setting, frozen=True, kw_only=True):
    """Defines when alerts that are not critical are sent; outside these hours they wait."""

    start: str = "08:00"
    """Hour and minute."""
    end: str = "20:00"
    """Before `start`: on the next day; the day is that of `start`."""
    days: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    """On which."""
    timezone: str = "UTC"
    """`Europe/Berlin`."""


class RateSpec(Setting, frozen=True, kw_only=True):
    """Limits how many alerts a channel sends; others wait, and one alert says how many wait."""

    alerts: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 30
    """So many within `window`."""
    window: Duration = Duration(600)
    """The time over which they count."""


class AlertRoute(Setting, frozen=True, kw_only=True):
    """Selects which alerts a channel gets; the end of what it got follows in any case."""

    name: Annotated[str, msgspec.Meta(max_length=63)] = ""
    """In logs and commands; empty: the type."""
    min_severity: Severity = "info"
    """Less severe alerts are not sent."""
    pools: tuple[str, ...] = ()
    """Names, or patterns (`train-*`); empty: every pool, and the fleet's own services."""
    events: tuple[AlertKind, ...] = ()
    """Empty: every kind."""
    faults: tuple[str, ...] = ()
    """Fault signatures or patterns (`xid-79`, `xid-*`, `silence`); empty: any, and none."""
    hours: HoursSpec | None = None
    """None: at any time."""
    rate: RateSpec = RateSpec()


class AlertSettings(PluginSettings, frozen=True, kw_only=True):
    """Configures one alert channel."""

    route: AlertRoute = AlertRoute()


class IncidentSpec(Setting, frozen=True, kw_only=True):
    """When unhealthy nodes count as one incident, and how long it delays their remediation."""

    nodes: Annotated[int, msgspec.Meta(ge=2, le=100_000)] = 5
    """Minimum number of nodes; `percent` must be reached too."""
    percent: Percent = 2.0
    """Share of the pool's nodes, or of those in the same rack, zone, driver or provider."""
    window: Duration = Duration(60)
    """They become unhealthy within this time."""
    hold: Duration = Duration(900)
    """How long nothing at all is remediated, unless an operator closes the breaker; then only nodes
    with evidence of their own. 0s: there are no incidents."""
    stage: Duration = Duration(120)
    """Minimum time, once the breaker has closed, before twice as many remediations are allowed."""


class HealthSpec(Setting, frozen=True, kw_only=True):
    """Configures a pool's health and remediation policy."""

    unhealthy_after: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """Consecutive unhealthy results before the node is unhealthy; fatal faults need one."""
    auto_replace: bool = True
    """false: unhealthy nodes are reported and not remediated."""
    remediation: PluginSettings = PluginSettings(type="replace")
    """How an unhealthy node is remediated: `replace`, `ladder`, `alert`, or a plugin."""
    lost_after: Duration = Duration(300)
    """How long a node may be silent before it is replaced; three times that where the provider
    cannot report its instance, and at once where the provider reports it gone."""
    flapping: FlappingSpec = FlappingSpec()
    incident: IncidentSpec = IncidentSpec()
    cordon_scope: Literal["node", "gpu"] = "node"
    """gpu: only the GPU gets no new work where its fault's rule and the notifiers allow that."""


class BudgetSpec(Setting, frozen=True, kw_only=True):
    """Limits how many nodes of a pool may be out of service at once, and disruptions per window.

    Both limit automation. Requests of operators are limited by `max_unavailable` only.
    """

    max_unavailable: int | str = "20%"
    """A count, or a percentage of the desired size, rounded up: at least one."""
    max_replacements: int | str = "50%"
    """Started within `window`: a count, a percentage (rounded up, at least 3), or `unlimited`."""
    max_resets: int | str | None = None
    """The same of GPU resets and reboots. None: three for each allowed replacement."""
    max_voluntary: int | str | None = None
    """The same for no fault: age, drift, price, notices. None: half of `max_replacements`."""
    max_quarantined: int | str | None = "100%"
    """Unhealthy nodes quarantined at once, beyond `max_unavailable`: a count (0: none), or a share
    of the desired size, rounded up: at least one. 100%: only `cordon_floor` bounds them."""
    cordon_floor: int | str | None = None
    """Nodes that stay schedulable whatever is quarantined: a count, or a percentage of the desired
    size, rounded down. None: 0 for faults that the kernel or NVML calls fatal, else 50%."""
    window: Duration = Duration(3600)
    """Time over which `max_replacements`, `max_resets` and `max_voluntary` count."""


class FleetBudgetSpec(Setting, frozen=True, kw_only=True):
    """Limits disruptions of the whole fleet, all pools together."""

    max_unavailable: int | str = "25%"
    """A count, or a percentage of all desired sizes, rounded up: at least five."""
    max_replacements: int | str = "50%"
    """Started within `window`: a count, `unlimited`, or a share of all sizes, at least ten."""
    max_resets: int | str | None = None
    """As in a pool."""
    max_voluntary: int | str | None = None
    """As in a pool."""
    max_quarantined: int | str | None = None
    """As in a pool, of all desired sizes: at least five."""
    window: Duration = Duration(3600)
    """Time over which `max_replacements`, `max_resets` and `max_voluntary` count."""


Mode = Literal["act", "observe"]
"""observe: decisions are published and not performed."""
WindowKind = Literal["service", "freeze"]


class WindowSpec(Setting, frozen=True, kw_only=True):
    """Defines a recurring maintenance window.

    freeze: no automatic disruption during it; service: deferrable disruptions start only during it.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    """Name in logs and commands."""
    kind: WindowKind
    """service or freeze, as above."""
    start: str
    """A cron expression of five fields: `0 22 * * 5`."""
    duration: Duration
    """How long it lasts from each `start`."""
    timezone: str = "UTC"
    """Time zone of `start`: `Europe/Berlin`."""


class AdmissionSpec(Setting, frozen=True, kw_only=True):
    """Selects what a new node must pass before it has work, besides its GPU count and boot checks.

    With a diagnostic the node is cordoned at the workload system until it has passed.
    """

    diagnostic: str = ""
    """`boot`, `nvidia-smi`, `memory`, `dcgm-1` to `dcgm-4`, `nvbandwidth`, `nccl`, `burn`, or one
    of the agent's plugins; empty: none."""
    timeout: Duration = Duration(900)
    """Time limit of the diagnostic, including the wait for the agent."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """Consecutive refused nodes that are terminated and replaced; then operators are notified, and
    the next launch follows an hour later."""


class SetupSettings(Setting, frozen=True, kw_only=True):
    """Configures how new nodes are set up over SSH, where a pool has `setup_commands`."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 22
    """SSH port of the nodes."""
    sudo: bool = True
    """Run the commands as root, where `ssh_user` is another."""
    ip_wait_timeout: Duration = Duration(900)
    """How long an instance may take to get an address."""
    ssh_timeout: Duration = Duration(600)
    """How long the SSH login may take, once there is an address."""
    ssh_connect_timeout: Duration = Duration(30)
    """Time limit of one connection attempt."""
    command_timeout: Duration = Duration(600)
    """Time limit of one command."""


class ProviderChoice(Setting, frozen=True, kw_only=True):
    """Configures one of the providers that a pool uses."""

    name: str
    """Its name under the fleet's `providers`."""
    priority: int = 0
    """Lower comes first; equal ones in their order."""
    instance_type: str = ""
    """Empty: the pool's."""
    regions: tuple[str, ...] = ()
    """Regions, in order of preference; empty: the pool's."""
    zones: tuple[str, ...] = ()
    """Each belongs to the region whose name it begins with, else to all of them."""
    market: Markets = ""
    """Empty: the pool's."""
    max_price: Price = 0.0
    """Dollars per hour of one node; 0: the pool's."""
    options: dict[str, Any] = {}
    """Options of the provider that differ for the pool's nodes: image, disk, networks."""


class PoolSpec(Setting, frozen=True, kw_only=True):
    """Configures one pool of GPU nodes."""

    provider: str = ""
    """The only provider; with several, the first of `providers`."""
    instance_type: str = ""
    """The provider's name, or an abstract one of the catalogue (`h100-8x`)."""
    min_nodes: Nodes
    """The pool is never sized below this."""
    max_nodes: Nodes
    """The pool is never sized above this."""
    providers: tuple[ProviderChoice, ...] = ()
    strategy: PluginSettings = PluginSettings(type="priority")
    """Which offering is launched first: `priority` (order of `providers` and `zones`), `cost`,
    `availability`, `round-robin`, or a plugin."""
    market: Markets = ""
    """Or several in order of preference, `[reserved, spot]`; empty: as the provider's options."""
    on_demand_min: int | str = 0
    """Nodes that are never spot, on demand or reserved: a count, or a percentage of the desired
    size, rounded up; the others are as `market` says. 0: none need be."""
    fallback_after: Duration = Duration(600)
    """After this time a launch waiting for spot capacity also takes on-demand. 0s: never."""
    interruption_penalty: Duration = Duration(0)
    """Spot offerings whose instances the cloud took away come after others; each time counts half
    after so long. 0s: that is not remembered."""
    max_price: Price = 0.0
    """Maximum dollars per hour of one node. 0: no limit."""
    spend_cap: Price = 0.0
    """Maximum dollars per hour of all the pool's nodes. 0: no limit."""
    placement: PlacementSpec = PlacementSpec()
    rack: RackSpec = RackSpec()
    region: str = ""
    """Region of the nodes; empty: the provider's."""
    zones: tuple[str, ...] = ()
    """Zones of the nodes, in order of preference; empty: any."""
    gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """GPUs that each node must have to be admitted; 0: as the provider reports."""
    ssh_keys: tuple[str, ...] = ()
    """Keys that may log in, as the provider names or takes them."""
    ssh_user: UserName = "ubuntu"
    """Login user for `setup_commands` and `navarch ssh`."""
    ssh_private_key_path: FilePath = ""
    """Private key of that user."""
    setup_commands: tuple[str, ...] = ()
    """Shell commands run over SSH on each new node, in order."""
    user_data: str = ""
    """Of the first boot: `auto` (cloud-init that installs the agent), a template, or empty."""
    setup: SetupSettings = SetupSettings()
    labels: dict[str, str] = {}
    """Labels of the pool's nodes."""
    nodes: Literal["launched", "adopted", "enrolled"] = "launched"
    """adopted: others make its nodes (Karpenter), and Navarch adopts those that are listed.
    enrolled: machines that exist join it with a token, and none is replaced or terminated."""
    cooldown: Duration = Duration(300)
    """Least time between two changes of size by the autoscaler."""
    autoscaling: dict[str, Any] | None = None
    """`type` (reactive, queue, scheduled, predictive, composite, or a plugin) and its options."""
    metrics: dict[str, Any] | None = None
    """`type` (http, or a plugin) and its options: the autoscaler's source of queue lengths."""
    health: HealthSpec = HealthSpec()
    budget: BudgetSpec = BudgetSpec()
    admission: AdmissionSpec = AdmissionSpec()
    spares: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Spares to keep, beyond the pool's size and beyond max_nodes."""
    mode: Mode = "act"
    """The stricter of the pool's and the fleet's mode applies."""
    windows: tuple[WindowSpec, ...] = ()
    replace_order: Literal["terminate_first", "provision_first"] = "terminate_first"
    """Whether a replaced node is terminated before its successor is launched, or after."""
    provision_first_for: Duration = Duration(1800)
    """After this time without room for one more node, the next try terminates the cordoned node
    before it launches its successor, although the order is provision_first. 0s: never."""
    notifiers: tuple[str, ...] = ()
    """The workload systems that run work on its nodes, by their names in the fleet's `notifiers`;
    empty: the fleet's `notifier`."""
    workload_names: str = ""
    """`training-[001-064]`: names that the workload system has for the pool's nodes. It is sized by
    them alone: `navarch slurm resume` and `suspend` say which of them are to have a node."""
    drain: DrainMode = "deadline"
    """deadline: terminate after `drain_timeout` at the latest; wait: only when its work has
    finished, with an alert after `drain_timeout`; immediate: notify the work and do not wait."""
    drain_timeout: Duration = Duration(3600)
    """How long running work may take to finish before the node is terminated anyway."""
    checkpoint_timeout: Duration = Duration(0)
    """How much of that the work has to leave by itself after it was asked for a checkpoint, before
    the workload system is asked to drain the node; 0s: it is not asked."""
    launch_timeout: Duration = Duration(1200)
    """How long provision, bootstrap, register and admit may each take."""
    expire_after: Duration = Duration(0)
    """A node older than this is replaced, when it has no work or in a service window from nine
    tenths of it on. 0s: never."""
    drift: Literal["ignore", "report", "replace"] = "ignore"
    """Nodes launched with another image, user data, instance type, set-up or labels than the pool
    has now: left alone, reported, or replaced like those that are too old."""
    consolidation: ConsolidationSpec = ConsolidationSpec()
    idle_after: Duration = Duration(0)
    """Nodes that have had no work for so long are removed, down to min_nodes, where their agents
    and the workload system agree on that. 0s: never."""
    driver_version: str = ""
    """Driver that the nodes should have: with `drift`, another one is reported. Empty: any."""


class NatsSettings(Setting, frozen=True, kw_only=True):
    """Configures the connection to the bus."""

    url: str = "nats://127.0.0.1:4222"
    """Address of the NATS server."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Replicas of streams and buckets: 3 on a three-server cluster."""
    user: str = ""
    """User at a server that has passwords."""
    password: SecretText = ""
    """The user's password."""
    creds_file: FilePath = ""
    """In this and the other paths `{service}` is the service; for `navarch` it is `operator`."""
    nkey_file: FilePath = ""
    """Seed of an NKey, in place of `creds_file`."""
    tls_ca_file: FilePath = ""
    """Certificate authority of the server; empty: those of the machine."""
    tls_cert_file: FilePath = ""
    """Client certificate, where the server verifies clients."""
    tls_key_file: FilePath = ""
    """The certificate's key; empty: it is in the same file."""
    agent_signing_file: FilePath = ""
    """Key with which the provisioner signs node credentials; `navarch nats-config` writes it."""
    revocation_file: FilePath = ""
    """Key that revokes credentials of terminated nodes. `revoker.creds` is beside it."""
    expiry_warning: Duration = Duration(30 * 86_400)
    """How long before a certificate or credentials expire operators are notified."""


class HttpSettings(Setting, frozen=True, kw_only=True):
    """Configures each service's readiness, liveness and metrics endpoint."""

    host: str = "127.0.0.1"
    """Address that it listens on; `0.0.0.0`: every one of the machine."""
    port: Port = 0
    """0: a free one; the service logs it and `nats micro info` shows it."""


class ServerSettings(Setting, frozen=True, kw_only=True):
    """Configures the pool-manager's own intervals."""

    autoscale_interval: Duration = Duration(30)
    """How often the pools' autoscalers are asked."""


PROVIDER_PLUGINS: Final = "navarch.providers"
NOTIFIER_PLUGINS: Final = "navarch.notifiers"
ALERT_CHANNEL_PLUGINS: Final = "navarch.alert_channels"
HEALTH_CHECK_PLUGINS: Final = "navarch.health_checks"
REMEDIATOR_PLUGINS: Final = "navarch.remediators"
AUTOSCALER_PLUGINS: Final = "navarch.autoscalers"
METRICS_SOURCE_PLUGINS: Final = "navarch.metrics_sources"
SCHEDULER_PLUGINS: Final = "navarch.schedulers"
AUTHENTICATOR_PLUGINS: Final = "navarch.authenticators"
"""Entry-point groups of plugins."""


class Settings(Setting, frozen=True, kw_only=True):
    """Declares the whole configuration file."""

    fleet: str = "default"
    """Name of the fleet, which its instances carry at the provider."""
    mode: Mode = "act"
    """observe: for every pool."""
    nats: NatsSettings = NatsSettings()
    http: HttpSettings = HttpSettings()
    gateway: GatewaySettings = GatewaySettings()
    authenticators: dict[str, PluginSettings] = {}
    """Ways to know the gateway's callers, by name, asked in this order after its tokens."""
    tracing: TracingSettings = TracingSettings()
    metrics: MetricsSettings = MetricsSettings()
    agent: AgentSettings = AgentSettings()
    lag: LagSettings = LagSettings()
    server: ServerSettings = ServerSettings()
    providers: dict[str, PluginSettings] = {}
    """By the name that pools use."""
    pools: dict[str, PoolSpec] = {}
    """By name."""
    defaults: dict[str, Any] = {}
    """Defaults of every pool, including pools created by request."""
    budget: FleetBudgetSpec = FleetBudgetSpec()
    spend_cap: Price = 0.0
    """Maximum dollars per hour of all instances of the fleet. 0: no limit."""
    instance_types: InstanceTypes = InstanceTypes()
    """Additions and corrections to the catalogue in config/."""
    notifier: PluginSettings = PluginSettings(type="noop")
    """The workload system of every pool that names none of `notifiers`."""
    notifiers: dict[str, PluginSettings] = {}
    """More workload systems, by the name that pools use."""
    alerts: tuple[AlertSettings, ...] = (AlertSettings(type="log"),)
    """Channels that operators are alerted by."""
    event_sinks: dict[str, EventSinkSpec] = {}
    """Where events are sent as CloudEvents, by name."""
    health_policy: str = ""
    """Path of the policy; empty: the one in config/."""
    data_dir: FilePath = ".navarch"
    """Where the embedded server and local instances keep their files."""
    reload_on_change: bool = False
    """Put a changed file in force without SIGHUP; of other files the health policy counts."""
