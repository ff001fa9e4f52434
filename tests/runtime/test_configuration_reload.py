"""SIGHUP puts a changed configuration in force; an invalid one changes nothing and is reported."""

import logging
import signal
from pathlib import Path

import pytest

from schemas.messages import decoder
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import Settings
from schemas.topology import POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.runtime.configuration_reload import ConfigurationReload
from tests.support.service_process import service_failures, service_process

SERVICE = "services.pool_manager"
SECONDS_MAX = 60.0
records = decoder(PoolRecord)
CONFIGURATION = """\
fleet: tests
http: {port: 0}
providers: {local: {}}
pools:
  training: {provider: local, instance_type: simulated, min_nodes: 0, max_nodes: MOST}
"""


async def pool_of(bus: NatsBus, most: int) -> None:
    """Wait until the pool may have so many nodes."""
    async for entry in bus.watch(POOLS):
        is_pool = entry.key == pool_key("training") and not entry.removed
        if is_pool and records.decode(entry.value).spec.max_nodes == most:
            return


async def test_a_changed_configuration_is_put_in_force_and_a_wrong_one_is_not(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """The process keeps its PID, reports what is wrong until it is corrected, and still ends."""
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIGURATION.replace("MOST", "4"))
    failures = service_failures(bus)

    async with service_process(
        SERVICE, server.url, "--config", str(file), seconds_max=SECONDS_MAX
    ) as process:
        await pool_of(bus, 4)
        file.write_text(CONFIGURATION.replace("MOST", "-1").replace("min_nodes", "min_node"))
        process.send_signal(signal.SIGHUP)
        refused = await anext(failures)
        assert (refused.status, refused.failure) == ("failing", "configuration-refused")
        assert str(file) in refused.about
        assert "min_node" in refused.reason
        assert "config validate" in refused.remedy

        file.write_text(CONFIGURATION.replace("MOST", "6"))
        for _ in range(3):  # a restart that is under way takes what comes meanwhile
            process.send_signal(signal.SIGHUP)
        recovered = await anext(failures)
        assert (recovered.status, recovered.failure) == ("recovered", "configuration-refused")
        await pool_of(bus, 6)
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_reload_names_the_text_and_whether_it_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is mounted alone is never another after an editor replaced it."""
    caplog.set_level(logging.INFO)
    file = tmp_path / "navarch.yaml"
    file.write_text("fleet: tests")
    reload = ConfigurationReload(Settings, file)
    await reload._read_again(None)
    assert "the same text as before" in caplog.text
    caplog.clear()
    file.write_text("fleet: tests # changed")
    await reload._read_again(None)
    assert "the same text as before" not in caplog.text
    [record] = caplog.records
    assert record.__dict__["configuration"] != record.__dict__["in_force"]
