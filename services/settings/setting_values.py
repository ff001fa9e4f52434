"""Finds the default and an example of each setting, for docs/configuration.md (pure).

`EXAMPLES` has those that neither the type of a key nor its default gives: by `Struct.key`, else by
the key's name. A plugin of another package has its own in `msgspec.Meta(examples=[...])`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect as types

from schemas.duration import Duration, decode_hook, written_duration
from schemas.settings import PluginSettings

LINE_CHARS_MAX: Final = 10_000

EXAMPLE_SHA256: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

EXAMPLES: Final[Mapping[str, Any]] = {
    # Where and as whom: names that many sections have.
    "bus_url": "tls://bus.example.com:4222",
    "ca_file": "tls/ca.pem",
    "cordon_floor": "50%",
    "max_quarantined": "10%",
    "command": ["/usr/bin/env", "python3", "/etc/navarch/hook.py"],
    "commands": "/opt/slurm/bin",
    "conf": "/etc/slurm/slurm.conf",
    "context": "gpu-west",
    "dashboard": "http://ray-head:8265",
    "environment": ["SITE_TOKEN"],
    "endpoint_url": "https://ec2.us-east-1.amazonaws.com",
    "gpu_count": 8,
    "headers": {"Authorization": "Bearer ${API_TOKEN}"},
    "instance_type": "h100-8x",
    "key_file": "keys/nodes",
    "kubeconfig": "kubeconfig.yaml",
    "labels": {"team": "research"},
    "max_price": 60.0,
    "max_resets": "30%",
    "max_voluntary": "10%",
    "password": "${SERVICE_PASSWORD}",
    "password_file": "secrets/bmc-password",
    "placement_group": "training-group",
    "pools": ["train-*"],
    "profile": "fleet",
    "region": "us-east-1",
    "regions": ["us-east-1", "us-west-2"],
    "root_gb": 500,
    "secret": "${NAVARCH_SIGNING_KEY}",
    "security_groups": ["sg-0a1b2c3d4e5f60718"],
    "spend_cap": 5000.0,
    "ssh_key": "fleet-key",
    "subnetwork": "gpu-subnet",
    "timezone": "Europe/Berlin",
    "tls_ca_file": "tls/ca.pem",
    "tls_cert_file": "tls/{service}.pem",
    "tls_key_file": "tls/{service}.key",
    "token_file": "secrets/token",
    "user": "navarch",
    "zone": "us-east-1a",
    "zones": ["us-east-1a", "us-east-1b"],
    # The bus, the services, the gateway.
    "NatsSettings.url": "tls://bus.example.com:4222",
    "replicas": 3,
    "HttpSettings.host": "10.0.0.5",
    "GatewaySettings.host": "10.0.0.5",
    "NatsSettings.creds_file": "creds/{service}.creds",
    "NatsSettings.nkey_file": "keys/{service}.nk",
    "agent_signing_file": "keys/agent-signing.nk",
    "revocation_file": "keys/revocation.nk",
    "HttpSettings.port": 9100,
    "install_port": 4223,
    "GatewaySettings.port": 8080,
    "probes_port": 8081,
    "GatewaySettings.tls_cert_file": "tls/gateway.pem",
    "GatewaySettings.tls_key_file": "tls/gateway.key",
    "pagerduty_secret": "${PAGERDUTY_WEBHOOK_SECRET}",
    "slack_secret": "${SLACK_SIGNING_SECRET}",
    "slack_team": "T0123456789",
    "tls_client_ca_file": "tls/operators-ca.pem",
    "sha256": EXAMPLE_SHA256,
    "expires": "2030-01-01T00:00:00Z",
    "TracingSettings.otlp_endpoint": "http://collector:4318/v1/traces",
    "MetricsSettings.otlp_endpoint": "http://collector:4318/v1/metrics",
    "region_bus_urls": {"eu-west-1": "tls://bus.eu.example.com:4222"},
    "package": "/opt/navarch/navarch.whl",
    "defaults": {"drain_timeout": "2h"},
    "health_policy": "health-policy.yaml",
    "fleet": "research",
    # Pools.
    "PoolSpec.provider": "aws",
    "min_nodes": 2,
    "max_nodes": 16,
    "PoolSpec.gpu_count": 8,
    "ssh_keys": ["fleet-key"],
    "ssh_private_key_path": "keys/nodes",
    "setup_commands": ["nvidia-smi -pm 1"],
    "user_data": "auto",
    "autoscaling": {"type": "queue", "jobs_per_node": 1},
    "PoolSpec.metrics": {"type": "slurm", "partition": "train"},
    "AdmissionSpec.diagnostic": "dcgm-2",
    "spares": 1,
    "WindowSpec.name": "friday-evening",
    "WindowSpec.start": "0 22 * * 5",
    "WindowSpec.duration": "8h",
    "PoolSpec.notifiers": ["slurm"],
    "workload_names": "training-[001-016]",
    "checkpoint_timeout": "10m",
    "expire_after": "720h",
    "on_demand_min": "30%",
    "idle_after": "30m",
    "interruption_penalty": "6h",
    "ConsolidationSpec.min_saving": 20.0,
    "RackSpec.nodes": 18,
    "driver_version": "550.90.07",
    "ProviderChoice.name": "aws",
    "priority": 1,
    "ProviderChoice.options": {"placement_group": "training-group"},
    "PlacementSpec.group": "training-group",
    "strategy": "cost",
    "remediation": "ladder",
    # The catalogue of instance types.
    "InstanceTypes.types": {"aws": {"p5.48xlarge": {"gpus": 8, "dollars_per_hour": 55.04}}},
    "InstanceTypes.abstract": {"h100-8x": {"aws": ["p5.48xlarge"]}},
    "TypeSpec.gpus": 8,
    "TypeSpec.gpu": "H100",
    "TypeSpec.rdma_devices": 32,
    "TypeSpec.driver_wait": "15m",
    "TypeSpec.rdma_link_layer": "InfiniBand",
    "TypeSpec.rdma_gbit_per_second": 400.0,
    "TypeSpec.nvlinks": 18,
    "TypeSpec.nvlink_gbyte_per_second": 25.0,
    "TypeSpec.pcie_width": 16,
    "TypeSpec.pcie_generation": 5,
    "rack_nodes": 18,
    "gpu_memory_gb": 80.0,
    "memory_gb": 2048.0,
    "vcpus": 192,
    "TypeSpec.dollars_per_hour": 55.04,
    "spot_dollars_per_hour": 22.5,
    # Sections that name plugins.
    "authenticators": {
        "staff": {"type": "certificate", "grants": [{"match": "OU=gpu", "role": "operator"}]}
    },
    "Settings.providers": {"aws": {"type": "aws", "region": "us-east-1"}},
    "Settings.pools": {
        "training": {
            "provider": "aws",
            "instance_type": "h100-8x",
            "min_nodes": 2,
            "max_nodes": 16,
        }
    },
    "notifier": {"type": "slurm"},
    "Settings.notifiers": {"slurm": {"type": "slurm"}},
    "Settings.alerts": [{"type": "log"}],
    "Settings.event_sinks": {"archive": {"type": "http", "url": "https://events.example.com"}},
    "GatewaySettings.tokens": {"reports": {"sha256": EXAMPLE_SHA256, "role": "viewer"}},
    # Event sinks and alerts.
    "EventSinkSpec.url": "https://events.example.com/navarch",
    "EventSinkSpec.events": ["saga-*"],
    "HoursSpec.start": "07:00",
    "HoursSpec.end": "19:00",
    "days": ["mon", "tue", "wed", "thu", "fri"],
    "AlertRoute.name": "on-call",
    "AlertRoute.events": ["saga-failed", "incident"],
    "AlertRoute.faults": ["xid-79", "silence"],
    "AlertmanagerChannel.Options.urls": ["http://alertmanager-0:9093"],
    "AlertmanagerChannel.Options.labels": {"site": "west"},
    "EmailChannel.Options.host": "smtp.example.com",
    "sender": "navarch@example.com",
    "to": ["gpu-operations@example.com"],
    "api_key": "${OPSGENIE_KEY}",
    "routing_key": "${PAGERDUTY_KEY}",
    "SlackChannel.Options.token": "${SLACK_TOKEN}",
    "channel": "C0123456789",
    "SlackChannel.Options.webhook_url": "https://hooks.slack.com/services/T0/B0/XX",
    "TeamsChannel.Options.webhook_url": "https://prod-01.westeurope.logic.azure.com/workflows/0a1b",
    "mention": "<!here>",
    "buttons": True,
    "AlertWebhookChannel.Options.url": "https://alerts.example.com/navarch",
    # Providers.
    "AwsProvider.Options.image": "ami-0a1b2c3d4e5f60718",
    "AwsProvider.Options.max_price": "40.00",
    "subnets": {"us-east-1a": "subnet-0a1b2c3d"},
    "instance_profile": "gpu-node",
    "capacity_reservation": "cr-0a1b2c3d4e5f60718",
    "notice_queue": "https://sqs.us-east-1.amazonaws.com/123456789012/navarch",
    "tags": {"cost-center": "4711"},
    "DiskOptions.gb": 500,
    "iops": 6000,
    "throughput": 500,
    "kms_key": "1234abcd-12ab-34cd-56ef-1234567890ab",
    "root_device": "/dev/sda1",
    "subscription": "11111111-2222-3333-4444-555555555555",
    "resource_group": "gpu-fleet",
    "location": "eastus",
    "AzureOptions.image": "microsoft-dsvm:ubuntu-hpc:2204:latest",
    "subnet": "/subscriptions/1111/resourceGroups/net/providers/Microsoft.Network/virtualNetworks"
    "/gpu/subnets/nodes",
    "tenant": "66666666-7777-8888-9999-000000000000",
    "client_id": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
    "client_secret_file": "secrets/azure",
    "AzureOptions.ssh_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE0 fleet",
    "security_group": "/subscriptions/1111/resourceGroups/net/providers/Microsoft.Network"
    "/networkSecurityGroups/gpu",
    "scale_set": "training-set",
    "availability_set": "training-set",
    "capacity_reservation_group": "training-reservation",
    "disk_encryption_set": "gpu-disks",
    "identity": "/subscriptions/1111/resourceGroups/gpu/providers/Microsoft.ManagedIdentity"
    "/userAssignedIdentities/node",
    "server": "https://k8s.us-east-04.coreweave.example.com",
    "CoreWeaveProvider.Options.zone": "US-EAST-04A",
    "Taint.key": "example.com/gpu",
    "Taint.value": "training",
    "gpu_driver": "570.124.06",
    "DockerProvider.Options.image": "gpu-node:latest",
    "authorized_keys_file": "keys/authorized_keys",
    "DockerProvider.Options.command": ["/usr/sbin/sshd", "-D"],
    "DockerProvider.Options.environment": {"TZ": "UTC"},
    "publish_address": "127.0.0.1",
    "gpus": 8,
    "cpus": 16.0,
    "memory_mib": 65536,
    "FakeProvider.Options.file": "fake-instances.json",
    "list_lag_calls": 2,
    "list_lag_seconds": 5.0,
    "dollars_per_hour": 30.0,
    "latency_seconds": 1.5,
    "FakeFault.instance": "fake-1",
    "retry_after": 30.0,
    "project": "my-project",
    "GcpOptions.image": "projects/my-project/global/images/family/gpu-node",
    "credentials_file": "secrets/gcp.json",
    "service_account": "gpu-node@my-project.iam.gserviceaccount.com",
    "GcpOptions.disk_type": "hyperdisk-balanced",
    "disk_kms_key": "projects/my-project/locations/us-central1/keyRings/gpu/cryptoKeys/disks",
    "NetworkOptions.network": "gpu-net-1",
    "AcceleratorOptions.type": "nvidia-tesla-t4",
    "reservation": "training-reservation",
    "max_run": "168h",
    "selectors": {"training": "node.example.com/pool=training"},
    "agent_account": "navarch/agent",
    "api_key_file": "secrets/lambda",
    "image_family": "lambda-stack-22-04",
    "file_systems": ["datasets"],
    "LocalProvider.Options.directory": "instances",
    "variables": {"NAVARCH_LOG_LEVEL": "debug"},
    "InventoryMachine.host": "gpu-01.example.com",
    "InventoryMachine.name": "gpu-01",
    "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE0",
    "InventoryMachine.type": "h100-8x",
    "InventoryMachine.bmc": "10.0.1.17",
    "bmc_system": "System.Embedded.1",
    "inventory": "machines.yaml",
    "wipe_command": "rm -rf /scratch/*",
    "ipmi_cipher_suite": 17,
    # Workload systems and authenticators.
    "rest": {"url": "http://slurmctld:6820", "user": "slurm", "token_file": "secrets/token"},
    "SlurmProvider.Options.partitions": {"training": "gpu"},
    "SlurmRestOptions.url": "http://slurmctld:6820",
    "SlurmRestOptions.user": "slurm",
    "SlurmRestOptions.token": "${SLURM_JWT}",
    "version": "v0.0.41",
    "cordon_url": "https://scheduler.example.com/cordon",
    "uncordon_url": "https://scheduler.example.com/uncordon",
    "cordon_gpus_url": "https://scheduler.example.com/cordon-gpus",
    "checkpoint_url": "https://scheduler.example.com/checkpoint",
    "notify_owners_url": "https://scheduler.example.com/owners",
    "drain_url": "https://scheduler.example.com/drain",
    "drain_status_url": "https://scheduler.example.com/drain-status",
    "Grant.match": "gpu-operators",
    "issuer": "https://login.example.com",
    "audience": "navarch",
    "keys_url": "https://login.example.com/keys",
    # Autoscalers and metrics sources.
    "schedule": [{"start": "0 8 * * 1-5", "duration": "10h", "nodes": 8}],
    "Period.start": "0 8 * * 1-5",
    "Period.duration": "10h",
    "Period.nodes": 8,
    "autoscaler": {"type": "queue"},
    "otherwise": 2,
    "fallback": {"type": "reactive"},
    "Composite.Options.autoscalers": [{"type": "reactive"}, {"type": "queue"}],
    "HttpSource.Options.url": "http://scheduler.example.com/load",
    "PrometheusSource.Options.url": "http://prometheus:9090",
    "pending_jobs": 'sum(jobs_pending{pool="$pool"})',
    "queue_depth": 'sum(jobs{pool="$pool"})',
    "utilization": 'avg(DCGM_FI_DEV_GPU_UTIL{pool="$pool"})',
    "busy_nodes": 'count(node_jobs{pool="$pool"} > 0)',
    "partition": "train",
    "gpu_type": "h100",
    "features": ["h100", "ib"],
    "queues": ["ml/gpu"],
    "flavors": ["h100"],
    "KubernetesSource.Options.kueue": {"queues": ["ml/gpu"]},
    "node_labels": {"node.example.com/pool": "training"},
    "CombinedSource.Options.sources": [
        {"type": "slurm"},
        {"type": "prometheus", "url": "http://prometheus:9090", "utilization": "avg(gpu_busy)"},
    ],
}


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """A field's default as a file would have it; None for null, a section or no default."""
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT:
        return None
    if isinstance(default, Duration):
        return written_duration(default)
    if isinstance(default, PluginSettings):
        return default.type
    if isinstance(default, tuple) and any(isinstance(each, msgspec.Struct) for each in default):
        return None
    if isinstance(default, tuple):
        return list(default)
    return None if isinstance(default, msgspec.Struct) else default


def example_of(kind: type[Any], field: msgspec.structs.FieldInfo) -> Any:
    """A value that a file may have for this key; None where nothing says one."""
    info, default = types.type_info(field.type), default_of(field)
    declared = (each for each in kind.__mro__ if field.name in getattr(each, "__annotations__", {}))
    owner = next(declared, kind)
    for found in (
        _declared(info),
        EXAMPLES.get(f"{owner.__qualname__}.{field.name}"),
        *(each for each in _choices(info) if each not in ("", default)),
        EXAMPLES.get(field.name),
        default or _of_block(info),
    ):
        if found is not None and (_names_plugins(info) or _fits(found, field.type)):
            return found
    return None


def as_yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(
        msgspec.to_builtins(value),
        default_flow_style=True,
        width=LINE_CHARS_MAX,
        sort_keys=False,
        allow_unicode=True,
    )
    return text.removesuffix("...\n").strip()


def _fits(value: Any, kind: Any) -> bool:
    """Whether a key may have this value: another package's plugin has keys of the same names."""
    try:
        msgspec.convert(value, kind, dec_hook=decode_hook)
    except msgspec.ValidationError:
        return False
    return True


def _names_plugins(info: Any) -> bool:
    """Whether a key's values are plugins, whose options this does not know."""
    match info:
        case types.StructType():
            return issubclass(info.cls, PluginSettings)
        case types.VarTupleType():
            return _names_plugins(info.item_type)
        case types.DictType():
            return _names_plugins(info.value_type)
        case _:
            return False


def _declared(info: Any) -> Any:
    """What `msgspec.Meta(examples=[...])` says."""
    found = info.extra_json_schema if isinstance(info, types.Metadata) else None
    return next(iter((found or {}).get("examples", ())), None)


def _choices(info: Any) -> list[Any]:
    """What a key may be, where that is listed."""
    match info:
        case types.BoolType():
            return [True, False]
        case types.LiteralType():
            return list(info.values)
        case types.EnumType():
            return [each.value for each in info.cls]
        case types.Metadata():
            return _choices(info.type)
        case types.UnionType():
            return [each for part in info.types for each in _choices(part)]
        case _:
            return []


def _of_block(info: Any) -> Any:
    """A block of keys with those that it requires, or with its first."""
    match info:
        case types.StructType() if not issubclass(info.cls, PluginSettings):
            fields = msgspec.structs.fields(info.cls)
            chosen = [each for each in fields if each.required] or fields[:1]
            return {each.encode_name: example_of(info.cls, each) for each in chosen}
        case types.UnionType():
            return next((found for each in info.types if (found := _of_block(each))), None)
        case types.VarTupleType() | types.ListType():
            return [found] if (found := _of_block(info.item_type)) else None
        case types.DictType():
            return {"name": found} if (found := _of_block(info.value_type)) else None
        case types.Metadata():
            return _of_block(info.type)
        case _:
            return None
