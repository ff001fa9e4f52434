"""`navarch-agent healthy` and `connected`: what prologs and probes learn, also without the bus."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.healthy_command import (
    CONDITIONS_FILE,
    CONNECTED_SECONDS_MAX,
    FILE,
    NOT_CONNECTED,
    OLD_SECONDS,
    UNHEALTHY,
    UNKNOWN,
    judge,
    run,
    run_connected,
    why_not_connected,
)
from agent.own_record import READ_SECONDS, OwnRecord
from agent.settings import AgentConfig
from schemas.held_conditions import ConditionList, HeldCondition
from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock

NOW = 10_000.0


@pytest.mark.parametrize(
    ("found", "text", "code"),
    [
        ({"health": "healthy", "read_at": NOW}, "healthy", 0),
        ({"health": "degraded", "read_at": NOW}, "healthy", 0),
        ({"health": "unhealthy", "reason": "xid-79", "read_at": NOW}, "xid-79", UNHEALTHY),
        ({"health": "unhealthy", "reason": "xid-79", "read_at": 0}, "xid-79", UNHEALTHY),
        ({"health": "healthy", "read_at": NOW - OLD_SECONDS - 1}, "301 s ago", UNKNOWN),
        ({"health": "unknown", "read_at": NOW}, "no verdict", UNKNOWN),
        ({"health": ["x"], "read_at": "y"}, "unknown", UNKNOWN),
        ({"problem": "there is no file"}, "there is no file", UNKNOWN),
        ({}, "unknown", UNKNOWN),
    ],
)
def test_verdict_decides_however_old_a_bad_one_is(
    found: dict[str, Any], text: str, code: int
) -> None:
    """Unhealthy stays unhealthy while the bus is away; old good news is no news."""
    said, exit_code = judge(found, {}, NOW)
    assert text in said
    assert exit_code == code


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"x"', b"\xff", b"{}", b"[" * 60_000])
def test_damaged_file_does_not_stop_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """A node of which nothing is known runs jobs, unless --strict is given."""
    monkeypatch.setenv("NAVARCH_STATE_DIR", str(tmp_path))
    (tmp_path / FILE).write_bytes(content)
    assert run([]) == 0
    assert run(["--strict"]) == UNKNOWN


@asynccontextmanager
async def bus_with(record: NodeRecord) -> AsyncIterator[MemoryBus]:
    """A bus that has the record of a node."""
    server = MemoryServer(SystemClock())
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    await bus.put(NODES, node_key(record.pool, record.node), encode(record))
    yield bus
    await bus.close()
    server.close()


async def test_agent_keeps_a_copy_of_its_record(tmp_path: Path) -> None:
    """The file has the fleet's verdict and its reason as soon as the bus is there."""
    config = AgentConfig(pool="training", node="training-7", state_dir=str(tmp_path))
    record = NodeRecord(
        pool="training", node="training-7", health="unhealthy", health_reason="xid-79 on GPU 3"
    )
    seen = HeldCondition(name="driver-hung", since=1.0, severe=True, message="it hangs")
    listed = ConditionList(boot_id="boot", counter=1, held=(seen,))
    async with bus_with(record) as bus:
        own = OwnRecord(config, SystemClock(), lambda: bus, "boot", lambda: listed)
        copying = asyncio.create_task(own.run())
        async with asyncio.timeout(5):
            while not (tmp_path / FILE).exists():
                await asyncio.sleep(0)
        copying.cancel()
    said, code = judge(json.loads((tmp_path / FILE).read_text()), {}, 0.0)
    assert (said, code) == ("unhealthy: xid-79 on GPU 3", UNHEALTHY)
    local = json.loads((tmp_path / CONDITIONS_FILE).read_text())
    assert judge({}, local, local["seen_at"])[1] == UNHEALTHY


HUNG = {"name": "driver-hung", "since": NOW - 60, "severe": True, "message": "NVML hangs"}
MILD = {"name": "slowed-power", "since": NOW - 60, "message": "power brake"}


@pytest.mark.parametrize(
    ("found", "seen", "text", "code"),
    [
        ({}, {"held": [HUNG], "seen_at": NOW}, "NVML hangs, since 1970-01-01 02:45", UNHEALTHY),
        ({"health": "healthy", "read_at": 0}, {"held": [MILD, HUNG], "seen_at": NOW}, "NVML", 1),
        ({"health": "healthy", "read_at": NOW}, {"held": [HUNG], "seen_at": NOW}, "healthy", 0),
        ({}, {"held": [MILD], "seen_at": NOW}, "unknown", UNKNOWN),
        ({}, {"held": [HUNG], "seen_at": NOW - OLD_SECONDS - 1}, "unknown", UNKNOWN),
        ({}, {"held": ["x", {}], "seen_at": "now"}, "unknown", UNKNOWN),
        ({}, {"held": 7, "seen_at": NOW}, "unknown", UNKNOWN),
    ],
)
def test_what_the_agent_sees_counts_where_the_fleet_is_not_heard(
    found: dict[str, Any], seen: dict[str, Any], text: str, code: int
) -> None:
    """A fresh verdict decides; without one, a severe condition that the agent sees now does."""
    said, exit_code = judge(found, seen, NOW)
    assert text in said
    assert exit_code == code


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"health": "unhealthy", "read_at": NOW - 2 * READ_SECONDS}, ""),
        ({"read_at": NOW - CONNECTED_SECONDS_MAX - 1}, "46 s ago"),
        ({"read_at": NOW + CONNECTED_SECONDS_MAX + 1}, "-46 s ago"),
        ({"read_at": "y"}, "10000 s ago"),
        ({}, "10000 s ago"),
        ({"problem": "there is no file"}, "there is no file"),
    ],
)
def test_an_agent_that_reads_its_record_is_connected(found: dict[str, Any], why: str) -> None:
    """The node's health does not count: a pod that is not ready repairs no node."""
    said = why_not_connected(found, NOW)
    assert (why in said) if why else said == ""


class Probed(SystemClock):
    """A clock that probes the agent at the end of each pause, ten minutes long."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._time = NOW
        self.said: list[str] = []
        self.done = asyncio.Event()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._time, UTC)

    async def sleep(self, seconds: float) -> None:
        self._time += seconds
        self.said.append(why_not_connected(json.loads(self._file.read_text()), self._time))
        if self._time > NOW + 600:
            self.done.set()
            await asyncio.Event().wait()


async def test_an_agent_stays_connected_while_its_record_stays_the_same(tmp_path: Path) -> None:
    """The file is not written at each read, but before a probe takes it for old."""
    config = AgentConfig(pool="training", node="training-7", state_dir=str(tmp_path))
    record = NodeRecord(
        pool="training", node="training-7", health="healthy", admitted_at=datetime.now(UTC)
    )
    clock, nothing = Probed(tmp_path / FILE), ConditionList(boot_id="boot", counter=1)
    async with bus_with(record) as bus:
        reading = asyncio.create_task(
            OwnRecord(config, clock, lambda: bus, "boot", lambda: nothing).run()
        )
        await clock.done.wait()
        reading.cancel()
    assert set(clock.said) == {""}


def test_a_probe_ends_with_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read before the agent has written it, and options are refused."""
    monkeypatch.setenv("NAVARCH_STATE_DIR", str(tmp_path))
    assert run_connected([]) == NOT_CONNECTED
    (tmp_path / FILE).write_text(json.dumps({"read_at": time.time()}))
    assert run_connected([]) == 0
    assert capsys.readouterr().out.endswith("connected\n")
    assert (run_connected(["--strict"]), run_connected(["--help"])) == (2, 0)


@pytest.mark.parametrize("command", ["healthy", "connected"])
def test_command_loads_nothing_of_the_agent(command: str) -> None:
    """A prolog runs before each job: the command must cost no more than Python itself."""
    program = (
        f"import sys; from agent import command_line; sys.argv = ['x', '{command}', '--help']\n"
        "try: command_line.main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(','.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    loaded = set(done.stderr.rpartition("\n")[2].split(","))
    assert not loaded & {"msgspec", "asyncio", "agent.service", "services", "logging"}
