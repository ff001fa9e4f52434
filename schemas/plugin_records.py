"""The health of plugins as services answer it, and the switch that takes one out."""

from typing import Literal

import msgspec

from schemas.messages import Record
from schemas.value_limits import Int, Name, UtcTime

PluginState = Literal["works", "failing", "off", "disabled"]
"""off: it blocked, or ended its service, too often; disabled: an operator took it out."""


class PluginHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The record says what one process knows of one plugin."""

    kind: str
    name: str
    """The name that the configuration gives it: its entry point, or `module:Class`."""
    about: str = ""
    """What it is used for there: `pool training`, `provider acme`."""
    package: str = ""
    """Empty: Navarch's own."""
    version: str = ""
    service: str = ""
    state: PluginState = "works"
    calls: int = 0
    failures: int = 0
    slowest_seconds: float = 0.0
    cpu_seconds: float = 0.0
    blocked_seconds: float = 0.0
    """How long it has kept its thread in all; 0 for Navarch's own, which are not measured."""
    grown_bytes: int = 0
    """By how much the process grew while it ran."""
    threads_lost: int = 0
    """Threads that were given up as it did not return."""
    last_error: str = ""
    """With file and line in the plugin."""
    last_error_at: UtcTime | None = None
    reason: str = ""
    """The sentence about it, while it fails."""


class PluginSwitchRecord(Record, frozen=True, kw_only=True):
    """LEASES `pool-manager.plugin.<digest>`: an operator's word on the plugins of a name."""

    name: Name
    disabled: bool = False
    """False: it was enabled again, which also ends `off`."""
    by: Name = ""
    at: UtcTime | None = None
    number: Int = 0
    """Counts the changes."""


class PluginSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The order `plugin-switch` takes plugins out, or begins with them again."""

    name: Name
    disabled: bool
    by: Name = ""


class PluginExits(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of a service's processes while a plugin ran, in its file of the data directory."""

    ended: dict[str, tuple[float, ...]] = {}
    """Kind and name of a plugin -> when, in seconds since 1970."""
    last: dict[str, str] = {}
    """Kind and name of a plugin -> the call that was recorded last."""
