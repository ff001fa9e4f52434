"""Declares who a GPU is, and its readings as telemetry carries them."""

from typing import Any

import msgspec

from schemas.value_limits import Float, Identifier, Int, Name

Metric = Int | Float | str | bool
"""A value that a health policy can use."""


class GpuIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's identity, stable over resets, reboots and moves to another node."""

    index: Int
    uuid: Identifier = ""
    serial: Identifier = ""
    pci: Identifier = ""
    """Bus ID as in the kernel log: `0000:3b:00`, lower case, without function."""
    name: str = ""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check; `detail` is one sentence."""

    name: str
    ok: bool
    detail: str = ""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU's readings; unsupported readings are absent."""

    index: Int
    uuid: Name = ""
    utilization_percent: Int | None = None
    memory_used_bytes: Int | None = None
    memory_total_bytes: Int | None = None
    power_watts: Float | None = None
    temperature_celsius: Int | None = None
    memory_temperature_celsius: Int | None = None
    temperature_margin_celsius: Int | None = None
    sm_clock_mhz: Int | None = None
    throttle_reasons: Int | None = None
    ecc_dbe_volatile: Int | None = None
    ecc_sbe_volatile: Int | None = None
    ecc_dbe_aggregate: Int | None = None
    ecc_sbe_aggregate: Int | None = None
    remapped_correctable: Int | None = None
    remapped_uncorrectable: Int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: Int | None = None
    nvlink_errors: Int | None = None
    nvlinks_up: Int | None = None
    nvlink_mbyte_per_second: Int | None = None
    """Speed that the NVLinks that are up have in common, of each in one direction."""
    pcie_replays: Int | None = None
    pcie_width: Int | None = None
    pcie_generation: Int | None = None
    memory_utilization_percent: Int | None = None
    memory_clock_mhz: Int | None = None
    power_limit_watts: Float | None = None
    nvlink_domain: Name = ""
    """`ClusterUUID.CliqueId` of the NVLink fabric of several hosts that the GPU has joined."""
    fabric_state: Int | None = None
    """NVML's: 1 not started, 2 in progress, 3 completed; absent without a fabric."""
    fabric_status: Int | None = None
    """NVML's return code of the registration with the fabric; 0: success."""
    fabric_health_mask: Int | None = None
    """NVML's bits: degraded bandwidth, route recovery, unhealthy routes, configuration …"""
    recovery_action: Int | None = None
    """NVML's recovery action that the GPU asks for; 0: none."""
    extra: dict[str, Any] = {}
