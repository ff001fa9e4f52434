"""`navarch simulator fleet` runs agents in real time with a real server and real services."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from schemas.settings import PoolSpec, ProviderChoice
from services.cli.commands.simulator.fleet_command import FleetOptions, run, unplayable
from services.cli.served_bus import ServedBus
from services.gateway.gateway_start import PORT_VARIABLE
from services.primitives.errors import NavarchError

ROOT = Path(__file__).resolve().parents[2]
FLEET = ("-m", "services.cli", "simulator", "fleet")


@pytest.mark.parametrize(
    ("spec", "nodes", "problems"),
    [
        ({}, 3, ""),
        ({}, 0, ""),
        ({}, 5, "it has 2 to 4 nodes (min_nodes, max_nodes)"),
        ({}, 1, "it has 2 to 4 nodes (min_nodes, max_nodes)"),
        ({"provider": "here"}, 3, "its provider here is of type local"),
        ({"providers": (ProviderChoice(name="fake"), ProviderChoice(name="here"))}, 3, "its prov"),
        ({"provider": "elsewhere"}, 3, ""),
    ],
)
def test_a_pool_that_cannot_be_simulated_is_refused(spec, nodes, problems):
    """A pool beyond its limits never reaches its size; real machines have their own agents."""
    values = {"provider": "fake", "instance_type": "x", "min_nodes": 2, "max_nodes": 4, **spec}
    found = unplayable(PoolSpec(**values), nodes, {"fake": "fake", "here": "local"})
    assert problems == found[: len(problems)]
    assert bool(problems) == bool(found)


def test_a_secured_fleet_is_refused_with_the_remedy(tmp_path, monkeypatch):
    """A user's credentials permit none of the nodes' messages."""
    ServedBus(tmp_path, is_open=False).prepare(tmp_path / "nats", "tests", datetime.now(UTC))
    monkeypatch.setenv("NAVARCH_NATS_CREDS_FILE", str(tmp_path / "bus/owner.creds"))
    with pytest.raises(NavarchError, match="start the fleet with `navarch serve --open`"):
        run(FleetOptions(nodes=0, nats_url="nats://127.0.0.1:1"))


@pytest.mark.slow
def test_a_temporary_fleet_replaces_a_node_and_leaves_nothing(tmp_path):
    """Nodes and a dashboard come, an unhealthy node is replaced, and Ctrl-C stops everything."""
    command = (*FLEET, "--nodes", "6", "--boot-seconds", "0.5", "--faults-per-hour", "3600")
    fleet = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), PORT_VARIABLE: "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert fleet.stdout is not None
    lines, pools = [], []
    try:
        for line in fleet.stdout:
            lines.append(line)
            if found := re.match(r"its dashboard is (http://127\.0\.0\.1:\d+/)", line):
                pools = httpx.get(f"{found[1]}api/v1/pools", timeout=10).json()
            if " in service, " in line and " 0 replaced" not in line:
                fleet.send_signal(signal.SIGINT)
                break
        lines += fleet.stdout.readlines()
        assert fleet.wait(timeout=60) == 0
    finally:
        fleet.kill()
        fleet.wait()
        fleet.stdout.close()
    assert [each["name"] for each in pools] == ["simulated"]
    summary = json.loads(lines[-1])
    assert (6, 6, 0, 0) == tuple(summary[key] for key in ("nodes", "active", "lost", "left"))
    assert summary["replaced"] >= 1
    assert 0 < summary["fault_to_cordon_ms_p50"] < 60_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_temporary_fleet_leaves_nothing(tmp_path, processes_naming):
    """No process is left that could stop its services and server in order."""
    fleet = subprocess.Popen(
        [sys.executable, *FLEET, "--nodes", "1"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), PORT_VARIABLE: "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert fleet.stdout is not None
    with fleet.stdout as said:
        assert said.readline().startswith("a fleet of our own: the bus is nats://")
        running = processes_naming(tmp_path)
        fleet.kill()
        assert fleet.wait(timeout=10) == -signal.SIGKILL
        # The process that clears up holds its end of the pipe until it is done.
        assert said.read() == ""
    assert any("nats-server" in each for each in running)
    assert processes_naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
