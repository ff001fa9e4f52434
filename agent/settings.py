"""The agent's settings: environment variables, or a file; the environment wins.

Every key is the variable's name in lower case without `NAVARCH_` (NAVARCH_NATS_URL: `nats_url`).
A file is flat YAML, or has the lines of systemd's environment files where its name ends in `.env`.
An error names the variable, or file and line, and the remedy.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration, decode_hook
from schemas.instance_type_catalogue import (
    DRIVER_WAIT,
    LinkLayer,
    LinkRate,
    NvlinkCount,
    PcieGeneration,
    PcieLanes,
)
from schemas.names import InvalidNameError, node_token, pool_name, token
from services.primitives.errors import ConfigurationError

FILE_BYTES_MAX: Final = 1_048_576
PREFIX: Final = "NAVARCH_"
ENVIRONMENT_SUFFIX: Final = ".env"
"""Of a file with lines as the unit's environment has them."""
BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the settings of an agent."""

    pool: str
    node: str
    kubernetes_node: str = ""
    """Name of the Kubernetes node on which the agent's pod runs: the host name that is reported,
    and the node's name where `node` is not set."""
    instance: str = ""
    """The cloud resource's name; empty: the node's."""
    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str = ""
    nats_password: str = ""
    nats_creds_file: str = ""
    nats_bootstrap_file: str = ""
    """Bootstrap credentials of a new node, for `navarch-agent enroll`."""
    pod_token_file: str = ""
    """Token of the pod in which the agent runs, for the audience `navarch`: it proves on which node
    that is, and the bootstrap credentials are those of a whole pool."""
    nats_tls_ca_file: str = ""
    nats_tls_cert_file: str = ""
    """Client certificate, where the server verifies clients; with its key, or beside that."""
    nats_tls_key_file: str = ""
    nats_inbox_prefix: str = ""
    """Empty: the node's own, the only one that its credentials permit."""
    kmsg: str = "/dev/kmsg"
    kmsg_any_facility: bool = False
    """Accept kernel log lines that a process wrote; only for drills and tests."""
    drills: Literal["refused", "allowed"] = "refused"
    """Whether operators may begin drills on this node (`navarch drill`)."""
    proc: str = "/proc"
    """The host's /proc; a container without the host's process IDs names its mount point."""
    nvml_library: str = ""
    """Empty: the host's libnvidia-ml.so.1."""
    state_dir: str = "/var/lib/navarch-agent"
    boot_id: str = ""
    """Empty: the kernel's."""
    gpu_count: int | None = None
    """GPUs that this host must have; 0: none, and NVML is not used; None: at least one."""
    nvlinks: NvlinkCount | None = None
    """NVLinks that each GPU must have up at boot; 0: not checked; None: those of its model, on a
    host of four or more GPUs."""
    nvlink_gbyte_per_second: LinkRate = 0.0
    """Speed that an NVLink must have in one direction; 0: not known, and not checked."""
    pcie_width: PcieLanes = 0
    """PCIe lanes that each GPU must have; 0: the most that it has had."""
    pcie_generation: PcieGeneration = 0
    """PCIe generation that each GPU must have under load; 0: the highest that it has had."""
    rdma_devices: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    """RDMA devices (InfiniBand, RoCE, EFA) that must be up, at least; 0: those that were up when
    the boot checks passed."""
    rdma_link_layer: LinkLayer = ""
    """Link layer of the ports that count; empty: that of most devices."""
    rdma_gbit_per_second: LinkRate = 0.0
    """Rate that each of their ports must have; 0: the highest that it has had."""
    sys: str = "/sys"
    """The host's /sys, where they are read."""
    interconnect_wait: Duration = Duration(90)
    """How long NVLinks, fabric and RDMA devices may take to come up before the boot check fails:
    the fabric manager is started beside the agent."""
    driver_wait: Duration = DRIVER_WAIT
    """How long the driver may take to be loaded before the boot checks fail: some images install
    it after the agent has started."""
    heartbeat_interval: Duration = Duration(10)
    heartbeat_ttl: Duration = Duration(30)
    sample_interval: Duration = Duration(1)
    telemetry_interval: Duration = Duration(15)
    probe_deadline: Duration = Duration(10)
    """How long one NVML call may take before it counts as hung: calls wait while the driver handles
    a program's exceptions, for seconds where all SMs meet one."""
    cloud: Literal["auto", "none", "aws", "gcp", "azure"] = "auto"
    """Cloud whose metadata service is polled for notices; auto: detected from the firmware."""
    cloud_metadata_url: str = ""
    """Address of the metadata service, for tests; empty: the documented one."""
    cloud_interval: Duration = Duration(5)
    """Interval between polls, where the cloud has no long poll."""
    boot_tests: str = "auto"
    """Tests that a node must pass once a boot, with commas; auto: `nvidia-smi,memory` where the
    GPUs are this host's own; none."""
    diagnose_interval: Duration = Duration(0)
    """Interval of `diagnose_checks`; 0: only on command."""
    diagnose_checks: str = "nvidia-smi,dcgm"
    diagnose_level: Annotated[int, msgspec.Meta(ge=1, le=4)] = 1
    """Level of `dcgm` by schedule and at boot; from 2 on it needs a cordoned node."""
    health_checks: str = "all"
    """Plugins: all that are installed, none, or names and `module:Class` with commas."""
    health_check_deadline: Duration = Duration(30)
    reset_command: str = ""
    """What resets GPUs, called as `nvidia-smi --gpu-reset [-i UUID,…]` is; empty: nvidia-smi."""
    reboot_command: str = ""
    """What reboots the host; empty: `systemctl reboot`, else `shutdown -r now`."""
    cuda_library: str = ""
    """Empty: the host's libcuda.so.1; for the test `memory`."""
    address: str = ""
    rack: str = ""
    """Rack of this host; simultaneous faults in one rack are one incident."""
    exit_without: str = ""
    """The agent ends when this file or directory is gone."""
    log_level: str = "INFO"


POSITIVE: Final = (
    "heartbeat_interval",
    "sample_interval",
    "telemetry_interval",
    "probe_deadline",
    "cloud_interval",
    "health_check_deadline",
)


def load(environment: Mapping[str, str], file: Path | None = None) -> AgentConfig:
    """Read the settings; raise ConfigurationError where one is missing or wrong."""
    values, lines = _from_file(file) if file is not None else ({}, {})
    for field in msgspec.structs.fields(AgentConfig):
        if text := environment.get(_variable(field.name)):
            values[field.name] = _plain(field.name, text)
            lines.pop(field.name, None)

    def wrong(name: str, problem: str) -> ConfigurationError:
        if name in lines:
            return ConfigurationError(problem, file=str(file), line=lines[name], key=name)
        return ConfigurationError(problem, key=_variable(name))

    if not values.get("node") and (host := values.get("kubernetes_node")):
        values["node"] = node_token(str(host))
    for needed in ("pool", "node"):
        if not values.get(needed):
            raise wrong(needed, f"is not set; name this agent's {needed}")
    try:
        config = msgspec.convert(values, AgentConfig, strict=False, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        raise wrong(path.rstrip("`"), problem) from error
    _check(config, wrong)
    return config


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def boot_id_of(config: AgentConfig) -> str:
    """Return the ID of the host's boot."""
    if config.boot_id:
        return config.boot_id
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError as error:
        problem = f"is not set, and the kernel names no boot: {error}"
        raise ConfigurationError(problem, key="NAVARCH_BOOT_ID") from error


def hostname_of(config: AgentConfig) -> str:
    """Return the name by which workload systems find the host: in a pod, not the pod's own."""
    return config.kubernetes_node or socket.gethostname()


def _plain(field: str, text: str) -> Any:
    if field == "kmsg_any_facility":
        return {"1": True, "0": False}.get(text, text)
    return text


def environment_values(text: str) -> dict[str, str]:
    """Return the agent's variables in a file of lines `NAME=value`, as systemd reads it. Pure."""
    known = {_variable(each.name) for each in msgspec.structs.fields(AgentConfig)}
    split = (line.partition("=") for line in text.splitlines())
    found = ((name.strip(), value.strip().strip("\"'")) for name, _, value in split)
    return {name: value for name, value in found if name in known}


def _text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            return opened.read(FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=str(file)) from error


def _from_file(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    if file.suffix == ENVIRONMENT_SUFFIX:
        found = environment_values(_text(file))
        keys = {_variable(each.name): each.name for each in msgspec.structs.fields(AgentConfig)}
        return {keys[name]: _plain(keys[name], text) for name, text in found.items() if text}, {}
    # Imported here because most agents are configured by their environment.
    from services.settings.yaml_document import read_document  # noqa: PLC0415

    document = read_document(str(file), _text(file))
    if not isinstance(document.value, dict):
        raise ConfigurationError("expected `key: value` lines", file=str(file), line=1)
    known = {field.name for field in msgspec.structs.fields(AgentConfig)}
    for name, value in document.value.items():
        if name not in known:
            problem = f"not a setting; remove it (known: {sorted(known)})"
            raise document.error((name,), problem)
        if isinstance(value, dict | list):
            raise document.error((name,), "expected a single value")
    return document.value, {name: document.lines[name,] for name in document.value}


def _check(config: AgentConfig, wrong: Callable[[str, str], ConfigurationError]) -> None:
    for name, check in (("pool", pool_name), ("node", lambda value: token(value, "node"))):
        try:
            check(getattr(config, name))
        except InvalidNameError as error:
            raise wrong(name, str(error)) from error
    ttl = float(config.heartbeat_ttl)
    if ttl < 1 or not ttl.is_integer():
        raise wrong("heartbeat_ttl", f"{ttl:g}s: the server counts whole seconds, from 1s")
    for name in POSITIVE:
        if getattr(config, name) <= 0:
            raise wrong(name, "must be more than 0")
    if config.heartbeat_interval >= ttl:
        raise wrong(
            "heartbeat_interval",
            f"{config.heartbeat_interval:g}s is not below the heartbeat's life of {ttl:g}s: "
            "lower it, or raise NAVARCH_HEARTBEAT_TTL",
        )
    if config.log_level not in logging.getLevelNamesMapping():
        known = "DEBUG, INFO, WARNING, ERROR, CRITICAL"
        raise wrong("log_level", f"{config.log_level!r} is no level (known: {known})")
    if config.gpu_count is not None and config.gpu_count < 0:
        raise wrong("gpu_count", "must be 0 or more")
