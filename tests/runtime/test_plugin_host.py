"""The plugins of a process: operators' switches, and the ends of processes while a plugin ran."""

import os
from pathlib import Path
from typing import Protocol

import pytest
from prometheus_client import CollectorRegistry

from schemas.plugin_kinds import AUTOSCALER
from schemas.plugin_records import PluginSwitchRecord
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract
from services.runtime.plugin_exits import EXIT_SECONDS, EXITS_MAX, PluginExitFile
from services.runtime.plugin_host import PluginHost
from services.runtime.plugin_metrics import PluginCollector

KEY = "autoscaler acme"
NOW = 1_000_000.0


class Contract(Protocol):
    async def ask(self) -> int: ...


class Plugin:
    async def ask(self) -> int:
        return 3


def guarded(host: PluginHost) -> GuardedPlugin:
    contract = PluginContract(kind=AUTOSCALER, protocols=(Contract,))
    return host.guard(contract, Plugin(), "acme", "pool training")


async def test_a_plugin_that_is_off_is_enabled_without_a_switch_before() -> None:
    """The first word of an operator on a plugin may be that it begins again."""
    host = PluginHost("service")
    guard = guarded(host)
    guard.turn_off("is off: it has not come back 3 times")
    assert [each.about for each in host.failures()] == ["autoscaler acme of pool training"]
    host.apply(PluginSwitchRecord(name="acme", number=1))
    assert await guard.call("ask") == 3
    assert list(host.failures()) == []


async def test_the_metrics_of_a_plugin_are_added_up_over_its_places() -> None:
    """One that fails for one pool does not work, whatever it does for another."""
    host, registry = PluginHost("service"), CollectorRegistry()
    registry.register(PluginCollector(host))
    contract = PluginContract(kind=AUTOSCALER, protocols=(Contract,))
    for pool, times in (("a", 2), ("b", 3)):
        guard = host.guard(contract, Plugin(), "acme", f"pool {pool}")
        for _ in range(times):
            await guard.call("ask")
    guard.turn_off("is off")
    labels = {"kind": "autoscaler", "plugin": "acme"}
    values = {
        each: registry.get_sample_value(f"navarch_plugin_{each}", labels)
        for each in ("calls_total", "failures_total", "blocked_seconds_total", "works")
    }
    assert values == {
        "calls_total": 5.0,
        "failures_total": 0.0,
        "blocked_seconds_total": 0.0,
        "works": 0.0,
    }


async def test_a_disabled_plugin_is_disabled_after_a_restart_and_no_failure() -> None:
    """A switch that is stored applies to plugins that are made later."""
    host = PluginHost("service")
    host.apply(PluginSwitchRecord(name="acme", disabled=True, by="ann", number=1))
    guard = guarded(host)
    with pytest.raises(PluginFailedError, match="is disabled by ann"):
        await guard.call("ask")
    assert list(host.failures()) == []
    host.apply(PluginSwitchRecord(name="acme", number=2))
    assert await guard.call("ask") == 3


def end_in_a_step(folder: Path, now: float) -> PluginExitFile:
    """Begin a process whose plugin is in a step, and leave it as a process that was ended."""
    file = PluginExitFile(folder, "pool-manager", now)
    on_step = file.recorder(KEY, "pool training")
    assert on_step is not None
    on_step("recommend")
    os.close(file._handle)
    return file


def test_the_plugin_in_whose_step_processes_ended_is_counted(tmp_path: Path) -> None:
    """Each end counts once, an end long ago no more, and a clean end or idle plugin not at all."""
    for number in range(EXITS_MAX):
        file = end_in_a_step(tmp_path, NOW + number)
        assert file.recent(KEY, NOW + number, 0.0) == number
    file = PluginExitFile(tmp_path, "pool-manager", NOW + EXITS_MAX)
    assert file.recent(KEY, NOW + EXITS_MAX, 0.0) == EXITS_MAX
    assert file.exits.last == {KEY: "recommend"}
    assert file.recent(KEY, NOW + EXITS_MAX, NOW + EXITS_MAX) == 0
    on_step = file.recorder(KEY, "pool training")
    assert on_step is not None
    on_step("recommend")
    on_step("")
    os.close(file._handle)
    later = PluginExitFile(tmp_path, "pool-manager", NOW + 2 * EXIT_SECONDS)
    assert later.recent(KEY, NOW + 2 * EXIT_SECONDS, 0.0) == 0
    later.close()
    assert not list(tmp_path.glob("plugin-calls/pool-manager.[0-9]*"))
