"""Every setting, with its default. Both YAML forms of pools become these structs.

Unknown keys are refused; the loader (`services.settings.settings_file`) turns msgspec's path into
file, line and key, and accepts the older spellings listed in `ALIASES`.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.enums import DrainMode
from schemas.instance_type_catalogue import InstanceTypes, Price
from schemas.launch_offers import Market, Together

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Nodes = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]


UNLIMITED: Final = "unlimited"
"""Instead of a count or a percentage: the budget sets no bound to the rate."""


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of the configuration."""


class PluginSettings(Setting, frozen=True, kw_only=True):
    """A plugin by entry-point name or `module:Class`, with its own options."""

    type: str
    options: dict[str, Any] = {}
    path: str = ""
    """Where in the configuration it stands, for error messages."""


class IncidentSpec(Setting, frozen=True, kw_only=True):
    """From when on many sick nodes are one trouble, and how long that holds them back."""

    nodes: Annotated[int, msgspec.Meta(ge=2, le=100_000)] = 5
    """So many nodes at least, and `percent` of the pool's."""
    percent: Percent = 2.0
    """Of the pool's nodes, or of those with the rack, zone, driver or provider in common."""
    window: Duration = Duration(60)
    """They fall ill within this time."""
    hold: Duration = Duration(900)
    """So long the breaker stays open for it, unless a person closes it. 0s: never."""


class HealthSpec(Setting, frozen=True, kw_only=True):
    """A pool's health and remediation policy."""

    unhealthy_after: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """Consecutive unhealthy results before the node is unhealthy; fatal faults need one."""
    auto_replace: bool = True
    remediation: PluginSettings = PluginSettings(type="replace")
    """What is done about a sick node: `replace`, `ladder`, `alert`, or a plugin of one's own."""
    lost_after: Duration = Duration(300)
    """How long a node may be silent before it is replaced; three times that where the provider
    cannot say whether its instance stands, and not at all where it says that it is gone."""
    incident: IncidentSpec = IncidentSpec()


class BudgetSpec(Setting, frozen=True, kw_only=True):
    """How many nodes of a pool may be out of service at once, and how many be taken out in a time.

    It binds what Navarch does by itself. What a person asks for is bound by the level alone.
    """

    max_unavailable: int | str = "20%"
    """A count, or a percentage of the desired size, rounded up: at least one."""
    max_replacements: int | str = "50%"
    """Begun within `window`: a count, a percentage of the desired size, rounded up, at least three,
    or `unlimited`."""
    max_resets: int | str | None = None
    """GPU resets and reboots begun within `window`, written in the same way. None: three for each
    replacement that may be begun, as many as the ladder has before it."""
    window: Duration = Duration(3600)


class FleetBudgetSpec(Setting, frozen=True, kw_only=True):
    """The same for the fleet as a whole, all pools together."""

    max_unavailable: int | str = "25%"
    """A count, or a percentage of what all pools want, rounded up: at least five."""
    max_replacements: int | str = "50%"
    """Begun within `window`: a count, a percentage of what all pools want, at least ten, or
    `unlimited`."""
    max_resets: int | str | None = None
    """As in a pool."""
    window: Duration = Duration(3600)


Mode = Literal["act", "observe"]
"""observe: every decision is taken and told, and nothing is touched."""
WindowKind = Literal["service", "freeze"]


class WindowSpec(Setting, frozen=True, kw_only=True):
    """A time that comes again.

    freeze: nothing automatic disturbs work in it; service: what can wait begins only in it.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    kind: WindowKind
    start: str
    """A cron expression of five fields: `0 22 * * 5`."""
    duration: Duration
    timezone: str = "UTC"
    """Whose clocks `start` means: `Europe/Berlin`."""


class AdmissionSpec(Setting, frozen=True, kw_only=True):
    """What a new node must pass before it has work; its GPUs and boot checks are always looked at.

    With a diagnostic the node is cordoned at the workload system until it has passed.
    """

    diagnostic: str = ""
    """`boot`, `nvidia-smi`, `memory`, `dcgm-1` to `dcgm-4`, `nvbandwidth`, `nccl`, `burn`, or one
    of the agent's plugins; empty: none."""
    timeout: Duration = Duration(900)
    """How long the diagnostic may take, waiting for the agent included."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """So many refused nodes in a row are sent back and replaced; then people are told, and the
    next is tried an hour later."""


class SetupSettings(Setting, frozen=True, kw_only=True):
    """How new nodes are set up over SSH, where a pool has `setup_commands`."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 22
    sudo: bool = True
    """Run the commands as root, where `ssh_user` is another."""
    ip_wait_timeout: Duration = Duration(900)
    """How long an instance may take to get an address."""
    ssh_timeout: Duration = Duration(600)
    """How long SSH may take to let us in, once there is an address."""
    ssh_connect_timeout: Duration = Duration(30)
    """Of one try to connect."""
    command_timeout: Duration = Duration(600)
    """Of one command."""


class ProviderChoice(Setting, frozen=True, kw_only=True):
    """One of the providers that a pool may have nodes from."""

    name: str
    priority: int = 0
    """Lower comes first; the same: as they stand."""
    instance_type: str = ""
    """Empty: the pool's."""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    """Each counts in the region whose name it begins with, else in all of them."""
    market: Market | Literal[""] = ""
    """Empty: the pool's."""
    max_price: Price = 0.0
    """Dollars per hour of one node; 0: the pool's."""


class PlacementSpec(Setting, frozen=True, kw_only=True):
    """How near to each other a pool's nodes are to stand, where the provider lets one say."""

    group: str = ""
    """Placement group at AWS, resource policy at Google."""
    together: Together = ""
    """Prefer the zone, or the region, where most of the pool's nodes are."""


class PoolSpec(Setting, frozen=True, kw_only=True):
    """One pool of GPU nodes."""

    provider: str = ""
    """The only one; where there are several the first of `providers`."""
    instance_type: str = ""
    """As the provider calls it, or an abstract one of the catalogue (`h100-8x`)."""
    min_nodes: Nodes
    max_nodes: Nodes
    providers: tuple[ProviderChoice, ...] = ()
    strategy: PluginSettings = PluginSettings(type="priority")
    """What is launched first of what there is: `priority` (as `providers` and `zones` stand),
    `cost`, `availability`, `round-robin`, or a plugin of one's own."""
    market: Market | Literal[""] = ""
    """Empty: as the provider's own options say."""
    fallback_after: Duration = Duration(600)
    """After this a launch that waits for spot capacity takes on-demand as well. 0s: never."""
    max_price: Price = 0.0
    """Dollars per hour of one node: what costs more is not launched. 0: any."""
    spend_cap: Price = 0.0
    """Dollars per hour that the pool's nodes may cost together. 0: any."""
    placement: PlacementSpec = PlacementSpec()
    region: str = ""
    zones: tuple[str, ...] = ()
    gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """GPUs that each node must have to be admitted; 0: as the provider says."""
    ssh_keys: tuple[str, ...] = ()
    ssh_user: str = "ubuntu"
    ssh_private_key_path: str = ""
    setup_commands: tuple[str, ...] = ()
    user_data: str = ""
    """What the machine is told at its first boot: `auto` (cloud-init that installs and starts the
    agent), or a template's file, beside the configuration where relative; empty: nothing."""
    setup: SetupSettings = SetupSettings()
    labels: dict[str, str] = {}
    cooldown: Duration = Duration(300)
    autoscaling: dict[str, Any] | None = None
    """`type` (reactive, queue, scheduled, predictive, composite, or a plugin) and its options."""
    metrics: dict[str, Any] | None = None
    """`type` (http, or a plugin) and its options: where an autoscaler learns how many jobs wait."""
    health: HealthSpec = HealthSpec()
    budget: BudgetSpec = BudgetSpec()
    admission: AdmissionSpec = AdmissionSpec()
    spares: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Admitted nodes kept cordoned in reserve, beyond the pool's size and beyond max_nodes."""
    mode: Mode = "act"
    """The stricter of the pool's and the fleet's counts."""
    windows: tuple[WindowSpec, ...] = ()
    replace_order: Literal["terminate_first", "provision_first"] = "terminate_first"
    drain: DrainMode = "deadline"
    """deadline: after `drain_timeout` the node goes all the same; wait: not before its work has
    left, and people are told after `drain_timeout`; immediate: the work is told, not waited for."""
    drain_timeout: Duration = Duration(3600)
    """How long running work may take to leave before the node is terminated all the same."""
    launch_timeout: Duration = Duration(1200)
    """How long provision, bootstrap, register and admit may each take."""


class NatsSettings(Setting, frozen=True, kw_only=True):
    """How to reach the bus."""

    url: str = "nats://127.0.0.1:4222"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Of streams and buckets: 3 on a three-server cluster."""
    user: str = ""
    password: str = ""
    creds_file: str = ""
    """In this path and the others `{service}` is the service; for `navarch` it is `operator`."""
    nkey_file: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    """Of the client, where the server verifies clients; with its key in `tls_key_file`."""
    tls_key_file: str = ""
    agent_signing_file: str = ""
    """With which the provisioner makes each node's credentials; `navarch nats-config` writes it."""


class HttpSettings(Setting, frozen=True, kw_only=True):
    """Each service's readiness, liveness and metrics endpoint."""

    host: str = "127.0.0.1"
    port: Port = 0
    """0: a free one; the service logs it and `nats micro info` shows it."""


class TracingSettings(Setting, frozen=True, kw_only=True):
    """OpenTelemetry export; off where no endpoint is named."""

    otlp_endpoint: str = ""
    """`http://collector:4318/v1/traces`; OTEL_EXPORTER_OTLP_ENDPOINT counts as well."""


class AgentSettings(Setting, frozen=True, kw_only=True):
    """What agents are told, and what their silence means."""

    bus_url: str = ""
    """Where agents on nodes reach the bus, for `{{.ControlPlane}}`; empty: `nats.url`."""
    heartbeat_interval: Duration = Duration(10)
    heartbeat_ttl: Duration = Duration(30)
    """Whole seconds, as the server counts them."""
    sample_interval: Duration = Duration(1)
    telemetry_interval: Duration = Duration(15)
    enroll_within: Duration = Duration(3600)
    """How long after its launch is decided a new node may fetch its credentials."""
    package: str = "navarch[credentials]"
    """What `user_data: auto` has pip install, where the image holds no agent: a name or a URL."""


class LagSettings(Setting, frozen=True, kw_only=True):
    """From when on people are told that a service does not keep up with its messages."""

    messages: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """So many wait that no replica has taken."""
    age: Duration = Duration(60)
    """The oldest of them has waited so long."""
    interval: Duration = Duration(10)
    """How often the server is asked."""


class ServerSettings(Setting, frozen=True, kw_only=True):
    """An older file's `server:` section; honoured where it still means something."""

    address: str = ""
    heartbeat_interval: Duration | None = None
    health_check_interval: Duration | None = None
    autoscale_interval: Duration = Duration(30)
    health_policy: str = ""


PROVIDER_PLUGINS: Final = "navarch.providers"
NOTIFIER_PLUGINS: Final = "navarch.notifiers"
ALERT_CHANNEL_PLUGINS: Final = "navarch.alert_channels"
HEALTH_CHECK_PLUGINS: Final = "navarch.health_checks"
REMEDIATOR_PLUGINS: Final = "navarch.remediators"
AUTOSCALER_PLUGINS: Final = "navarch.autoscalers"
METRICS_SOURCE_PLUGINS: Final = "navarch.metrics_sources"
SCHEDULER_PLUGINS: Final = "navarch.schedulers"
"""Entry-point groups in which plugins are found by name."""


class Settings(Setting, frozen=True, kw_only=True):
    """The whole configuration file."""

    fleet: str = "default"
    mode: Mode = "act"
    """observe: for every pool."""
    nats: NatsSettings = NatsSettings()
    http: HttpSettings = HttpSettings()
    tracing: TracingSettings = TracingSettings()
    agent: AgentSettings = AgentSettings()
    lag: LagSettings = LagSettings()
    server: ServerSettings = ServerSettings()
    providers: dict[str, PluginSettings] = {}
    pools: dict[str, PoolSpec] = {}
    defaults: dict[str, Any] = {}
    """What every pool says unless it says otherwise; pools made by request, too."""
    budget: FleetBudgetSpec = FleetBudgetSpec()
    spend_cap: Price = 0.0
    """Dollars per hour that all instances of the fleet may cost together. 0: any."""
    instance_types: InstanceTypes = InstanceTypes()
    """What is added to, or put right in, the catalogue that ships in config/."""
    notifier: PluginSettings = PluginSettings(type="noop")
    alerts: tuple[PluginSettings, ...] = (PluginSettings(type="log"),)
    health_policy: str = ""
    """Path of the policy; empty: the one that ships in config/."""
    data_dir: str = ".navarch"
    """Where the embedded server and local instances keep their files."""


ALIASES: dict[str, str] = {
    "scale_up_threshold": "scale_up_at",
    "scale_down_threshold": "scale_down_at",
    "unhealthy_threshold": "unhealthy_after",
    "cooldown_period": "cooldown",
    "autoscaler": "autoscaling",
}
"""Older spelling -> ours; `scaling:` is folded into its pool, a list of pools becomes a mapping."""
