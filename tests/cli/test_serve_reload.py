"""SIGHUP to `navarch serve`: a changed configuration is put in force, process by process."""

import asyncio
import json
import os
import pty
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_serve import READY, ROOT, Leftovers, Served, environment, navarch, served
from tests.support.inprocess import eventually

pytestmark = pytest.mark.slow

DONE = "every process runs with the configuration"
REFUSED = '"level": "ERROR", "service": "serve"'
POOL = """
providers: {local: {type: local, gpu_count: 0}}
pools:
  training: {provider: local, instance_type: local, min_nodes: 0, max_nodes: MOST}
"""


def write(fleet: Served, text: str) -> None:
    """Replace the configuration, as an editor does."""
    draft = fleet.place / "navarch.new"
    draft.write_text(text)
    draft.replace(fleet.place / "navarch.yaml")


async def refused(fleet: Served, text: str) -> str:
    """Return what serve says of this configuration at SIGHUP."""
    write(fleet, text)
    fleet.process.send_signal(signal.SIGHUP)
    line = await fleet.says(REFUSED)
    return str(json.loads(line)["msg"])


async def failures(fleet: Served) -> list[dict[str, Any]]:
    """Return what `navarch status` shows as failing."""
    _, text = await navarch("status", "-o", "json", place=fleet.place)
    found: list[dict[str, Any]] = json.loads(text)["failures"]
    return found


def variables(pid: int) -> list[str]:
    """Return the environment of a process."""
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


async def test_a_valid_configuration_is_put_in_force_and_a_wrong_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process in turn, in an environment that is computed again; the gateway is found."""
    base = "data_dir: data\n" + POOL
    alert = 'alerts: [{type: webhook, url: "http://127.0.0.1:9/${PLACE}"}]\n'
    monkeypatch.setenv("PLACE", "x")
    async with served(tmp_path / "fleet", POOL.replace("MOST", "2")) as fleet:
        await fleet.says(READY)
        before = fleet.file()
        assert "PLACE=x" not in variables(before["pids"]["notifier"])
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            wrong = {
                "alerts.0.url": base.replace("MOST", "3") + alert.replace("PLACE", "OTHER"),
                "cannot take over": base.replace("MOST", "3") + "fleet: other\n",
                "data_dir": base.replace("MOST", "3").replace("data_dir: data", "data_dir: other"),
                "http.port": base.replace("MOST", "3") + f"http: {{port: {port}}}\n",
                "pools.training.max_nodes": base.replace("MOST", "many"),
            }
            for part, text in wrong.items():
                assert part in await refused(fleet, text)
        assert (fleet.file()["pids"], fleet.file()["http"]) == (before["pids"], before["http"])
        assert fleet.file()["reload"]["finished"] == len(wrong)
        found = await eventually(lambda: failures(fleet))
        assert {each["failure"] for each in found} == {"configuration-refused"}

        write(fleet, base.replace("MOST", "3") + alert + f"http: {{port: {port}}}\n")
        fleet.process.send_signal(signal.SIGHUP)
        fleet.said.clear()
        await fleet.says(DONE)
        after = fleet.file()
        assert not set(after["pids"].values()) & set(before["pids"].values()) - {
            before["pids"]["nats-server"]
        }
        assert after["http"]["gateway"] == before["http"]["gateway"]
        assert after["http"]["metrics"] == f"http://127.0.0.1:{port}"
        assert "PLACE=x" in variables(after["pids"]["notifier"])
        said = [json.loads(line) for line in fleet.said]
        turns = [
            each["service"] for each in said if each["msg"] in ("stopping", "stopped", "ready")
        ]
        assert turns == [name for name in turns[::3] for _ in range(3)]
        assert await failures(fleet) == []
        status, pools = await navarch("pool", "list", "-o", "json", place=fleet.place)
        assert (status, json.loads(pools)[0]["max_nodes"]) == (0, 3)
        token = (fleet.place / "data" / "gateway.token").read_text().strip()
        async with httpx.AsyncClient(base_url=before["http"]["gateway"]) as client:
            answer = await client.get("/api/v1/pools", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200
        fleet.process.send_signal(signal.SIGTERM)
        await fleet.rest()
        assert await fleet.process.wait() == 0


SCHEDULER = """#!/bin/sh
read order
case "$order" in *'"status"'*)
  node=$(expr "$order" : '.*"node":"\\([^"]*\\)"')
  test -e PLACE/left && drained=true || drained=false
  echo "{\\"nodes\\": {\\"$node\\": {\\"drained\\": $drained}}}"
esac
"""
WATCHED = """
reload_on_change: true
agent: {heartbeat_interval: 1s, heartbeat_ttl: 3s}
providers: {local: {type: local, gpu_count: 0}}
notifier: {type: exec, command: [PLACE/scheduler], poll: 1s}
pools:
  training: {provider: local, instance_type: local, min_nodes: 1, max_nodes: MOST}
"""


async def of(fleet: Served, *command: str) -> Any:
    """Return what a command prints as JSON."""
    _, text = await navarch(*command, "-o", "json", place=fleet.place)
    return json.loads(text)


async def test_a_changed_file_is_put_in_force_in_the_middle_of_a_drain(tmp_path: Path) -> None:
    """A process that is killed meanwhile is restarted with it, and the drain ends as it would."""
    place = tmp_path / "fleet"
    place.mkdir()
    (place / "scheduler").write_text(SCHEDULER.replace("PLACE", str(place)))
    (place / "scheduler").chmod(0o755)
    sections = WATCHED.replace("PLACE", str(place))
    async with served(place, sections.replace("MOST", "1")) as fleet:
        await fleet.says(READY)

        async def healthy() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = await of(fleet, "list", "--health", "healthy")
            return found

        async def step() -> list[dict[str, Any]]:
            return [each for each in await of(fleet, "saga", "list") if each["step"] == "drain"]

        [node] = await eventually(healthy)
        assert (await navarch("drain", node["id"], place=place))[0] == 0
        [saga] = await eventually(step)
        write(fleet, "data_dir: data\n" + sections.replace("MOST", "2"))
        await fleet.says("the configuration is valid: restarting each process with it")
        os.kill(fleet.file()["pids"]["notifier"], signal.SIGKILL)
        fleet.said.clear()
        await fleet.says(DONE)
        assert [each["max_nodes"] for each in await of(fleet, "pool", "list")] == [2]
        (place / "left").touch()

        async def ended() -> list[dict[str, Any]]:
            found = await of(fleet, "saga", "list", "--all")
            return [each for each in found if each["saga"] == saga["saga"] and each["ended_at"]]

        [done] = await eventually(ended)
        assert done["status"] == "done"
        assert len(await of(fleet, "list")) == 1
        fleet.process.send_signal(signal.SIGTERM)
        await fleet.rest()
        assert await fleet.process.wait() == 0


async def test_a_serve_that_is_killed_while_it_reloads_leaves_nothing_half_done(
    tmp_path: Path, processes_naming: Leftovers
) -> None:
    """The next one starts with the file."""
    async with served(tmp_path / "fleet", POOL.replace("MOST", "2")) as killed:
        await killed.says(READY)
        write(killed, "data_dir: data\n" + POOL.replace("MOST", "3"))
        killed.process.send_signal(signal.SIGHUP)
        await killed.says('"service": "pool-manager", "msg": "stopped"')
        killed.process.kill()
        await killed.process.wait()
    async with served(tmp_path / "fleet", POOL.replace("MOST", "4")) as fleet:
        await fleet.says(READY)
        assert [each["max_nodes"] for each in await of(fleet, "pool", "list")] == [4]
        fleet.process.send_signal(signal.SIGTERM)
        await fleet.rest()
        assert await fleet.process.wait() == 0
    assert processes_naming(tmp_path) == []


async def test_a_closed_terminal_stops_the_fleet_in_order(
    tmp_path: Path, processes_naming: Leftovers
) -> None:
    """SIGHUP before that is a reload, also of a serve in a terminal."""
    (tmp_path / "navarch.yaml").write_text("data_dir: data\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        program = [sys.executable, "-m", "services.cli", "serve", "--config"]
        os.execve(sys.executable, [*program, str(tmp_path / "navarch.yaml")], environment())
    state = tmp_path / "data" / "serve.json"

    async def reloads(count: int) -> bool:
        os.set_blocking(terminal, False)
        try:
            while os.read(terminal, 65_536):
                pass
        except BlockingIOError:
            pass
        found = json.loads(state.read_text()) if state.exists() else {"http": {}}
        return len(found["http"]) == 6 and found["reload"]["finished"] == count

    await eventually(lambda: reloads(0))
    os.kill(pid, signal.SIGHUP)
    await eventually(lambda: reloads(1))
    os.close(terminal)
    assert await asyncio.to_thread(os.waitpid, pid, 0) == (pid, 0)
    assert not state.exists()
    assert processes_naming(tmp_path) == []
