"""`navarch serve` as a process: it starts, restarts services, locks its directory and cleans up."""

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.cli.fleet_discovery import started_ticks
from services.fleet_client.local_user import token_of, user_name
from services.gateway.gateway_start import PORT_VARIABLE
from tests.support import inprocess

pytestmark = pytest.mark.slow

Leftovers = Callable[[Path], list[str]]
ROOT = Path(__file__).resolve().parents[2]
READY = "every service is ready"


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, without a fleet; the dashboard has a port of its own."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
    return own | {PORT_VARIABLE: "0"} | more


class Served:
    """A `navarch serve` that a test has started."""

    def __init__(self, process: asyncio.subprocess.Process, place: Path) -> None:
        """The process and its directory."""
        self.process = process
        self.place = place
        self.said: list[str] = []

    async def says(self, text: str) -> str:
        """Wait for a line with this text."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stdout.readline()).decode():
                self.said.append(line)
                if text in line:
                    return line
        raise AssertionError(f"it never said {text!r} but {''.join(self.said)}")

    async def rest(self) -> str:
        """Return the output of `serve` until it ends."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.read()).decode()

    def file(self) -> dict[str, Any]:
        """The state that other commands read."""
        state: dict[str, Any] = json.loads((self.place / "data" / "serve.json").read_text())
        return state


@asynccontextmanager
async def serving(
    place: Path, config: Path | str, *more: str, cwd: Path = ROOT, **variables: str
) -> AsyncIterator[Served]:
    """Run `navarch serve` with a configuration, and end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "serve", "--config", config, *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(**variables),
        cwd=cwd,
    )
    try:
        yield Served(process, place)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()


@asynccontextmanager
async def served(
    place: Path, sections: str = "", *more: str, **variables: str
) -> AsyncIterator[Served]:
    """Serve a fleet, without pools by default; kill it if the test fails."""
    place.mkdir(exist_ok=True)
    (place / "navarch.yaml").write_text(f"data_dir: data\n{sections}")
    async with serving(place, place / "navarch.yaml", *more, **variables) as fleet:
        yield fleet


async def navarch(*arguments: str, place: Path) -> tuple[int, str]:
    """Run a command; return its exit code and output."""
    status, out, err = await inprocess.navarch(*arguments, "--config", str(place / "navarch.yaml"))
    return status, out + err


async def test_a_served_fleet_answers_restarts_services_and_stops(
    tmp_path: Path, processes_naming: Leftovers
) -> None:
    """Other commands find it, a second serve does not start, a killed service is restarted."""
    async with served(tmp_path / "fleet") as fleet:
        await fleet.says(READY)
        state = fleet.file()
        assert (tmp_path / "fleet" / "data").stat().st_mode & 0o777 == 0o700
        assert sorted(state["pids"]) == [
            "gateway",
            "health-monitor",
            "metrics",
            "nats-server",
            "notifier",
            "pool-manager",
            "provisioner",
        ]
        assert sorted(state["http"]) == sorted(set(state["pids"]) - {"nats-server"})
        token = tmp_path / "fleet" / "data" / "gateway.token"
        assert token.stat().st_mode & 0o777 == 0o600
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        async with httpx.AsyncClient(base_url=state["http"]["gateway"]) as client:
            answers = [await client.get("/api/v1/pools", headers=each) for each in (headers, {})]
        assert [200, 401] == [each.status_code for each in answers]
        assert (tmp_path / "fleet" / "data" / "serve.json").stat().st_mode & 0o777 == 0o600
        assert state["creds_file"] == str(tmp_path / "fleet/data/bus/owner.creds")
        status, second = await asyncio.gather(
            navarch("status", place=fleet.place), navarch("serve", place=fleet.place)
        )
        assert status == (0, status[1])
        assert "No pool is configured." in status[1]
        assert "The bus is open" not in status[1]
        assert second[0] == 1
        assert f"another navarch serve (pid {fleet.process.pid}) runs in" in second[1]
        os.kill(state["pids"]["notifier"], signal.SIGKILL)
        await fleet.says("notifier ended with -9; restarting it in 0.25 s")
        await fleet.says('"service": "notifier", "msg": "ready"')
        assert fleet.file()["pids"]["notifier"] != state["pids"]["notifier"]
        fleet.process.send_signal(signal.SIGTERM)
        said = await fleet.rest()
        assert await fleet.process.wait() == 0, said
    assert processes_naming(tmp_path) == []
    assert not (tmp_path / "fleet" / "data" / "serve.json").exists()


PLANNED = """
agent: {heartbeat_interval: 1s, heartbeat_ttl: 3s}
providers: {local: {type: local}}
pools:
  p: {provider: local, instance_type: local-2gpu, gpu_count: 2, min_nodes: 2, max_nodes: 3}
alerts:
  - {type: exec, command: [/usr/bin/tee, -a, %s]}
"""


async def test_a_planned_stop_and_start_alerts_no_person(tmp_path: Path) -> None:
    """The nodes are silent for longer than the limit; all are back before anything is decided."""
    sent = tmp_path / "alerts.jsonl"
    registered: dict[str, int] = {}
    for round_ in (1, 2):
        async with served(tmp_path / "fleet", PLANNED % sent) as fleet:
            await fleet.says(READY)
            async with asyncio.timeout(60):
                while list(registered.values()) != [round_, round_]:
                    registered = await registrations(fleet.place)
            fleet.process.send_signal(signal.SIGTERM)
            said = await fleet.rest()
            assert await fleet.process.wait() == 0, said
    assert not sent.exists(), sent.read_text()


async def registrations(place: Path) -> dict[str, int]:
    """Return how often each healthy node in service has registered."""
    found = {}
    _, nodes = await navarch("list", "--health", "healthy", "-o", "json", place=place)
    for each in json.loads(nodes):
        _, rows = await navarch("timeline", each["id"], "-o", "json", place=place)
        found[each["id"]] = [row["title"] for row in json.loads(rows)].count("registered")
    return found


async def test_without_the_gateways_package_all_else_is_served(tmp_path: Path) -> None:
    """An installation without that extra: one warning, and no process that ends again and again."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['litestar'] = None\n")
    path = os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with served(tmp_path / "fleet", PYTHONPATH=path) as fleet:
        await fleet.says(READY)
        await fleet.says("with its extra `gateway`")
        assert "gateway" not in fleet.file()["pids"]


async def test_a_killed_server_is_restarted_on_its_port(tmp_path: Path) -> None:
    """The bus keeps its URL and its store, so every process reconnects."""
    async with served(tmp_path / "fleet") as fleet:
        await fleet.says(READY)
        before = fleet.file()
        os.kill(before["pids"]["nats-server"], signal.SIGKILL)
        await fleet.says("nats-server ended with -9; restarting it")
        async with asyncio.timeout(60):
            while (await navarch("status", place=fleet.place))[0] != 0:
                assert fleet.process.returncode is None
        after = fleet.file()
        assert after["nats_url"] == before["nats_url"]
        assert after["pids"]["nats-server"] != before["pids"]["nats-server"]


async def test_two_fleets_are_served_beside_each_other(
    tmp_path: Path, processes_naming: Leftovers
) -> None:
    """Different data directories share nothing: not a port, not a lock."""
    async with served(tmp_path / "one") as one, served(tmp_path / "two") as two:
        await asyncio.gather(one.says(READY), two.says(READY))
        assert one.file()["nats_url"] != two.file()["nats_url"]
        for fleet in (one, two):
            fleet.process.send_signal(signal.SIGINT)
        await asyncio.gather(one.rest(), two.rest())
        assert [await one.process.wait(), await two.process.wait()] == [0, 0]
    assert processes_naming(tmp_path) == []


async def test_processes_of_a_killed_serve_end_with_it_or_by_the_next(
    tmp_path: Path, processes_naming: Leftovers
) -> None:
    """No second nats-server starts on a store that the first still writes.

    With --open the next one has what is stored as well, and says that any client has.
    """
    async with served(tmp_path / "fleet") as killed:
        await killed.says(READY)
        add = ("hardware", "add", "gpu", "GPU-1", "--reason", "x")
        assert (await navarch(*add, place=killed.place))[0] == 0
        state = killed.file()
        handles = [os.pidfd_open(pid) for pid in state["pids"].values()]
        killed.process.kill()
        await killed.process.wait()
        for handle in handles:
            assert ([handle], [], []) == select.select([handle], [], [], 10)
            os.close(handle)
    # Where the kernel does not end them, the file names them for the next serve.
    left = await asyncio.create_subprocess_exec("sleep", "600")
    ticks = started_ticks(left.pid)
    state["processes"].append({"pid": left.pid, "started_ticks": ticks})
    (killed.place / "data" / "serve.json").write_text(json.dumps(state))
    async with served(tmp_path / "fleet", "", "--open") as fleet:
        await fleet.says("ended 1 process of a killed `navarch serve`")
        await fleet.says("streams were moved to the open account: credentials protect them no")
        assert '"level": "WARN"' in await fleet.says("--open: no credentials are needed")
        assert await left.wait() == -signal.SIGTERM
        await fleet.says(READY)
        status, listed = await asyncio.gather(
            navarch("status", place=fleet.place),
            navarch("hardware", "list", "-o", "json", place=fleet.place),
        )
        assert "The bus is open: every client that reaches it controls the fleet" in status[1]
        async with httpx.AsyncClient(base_url=fleet.file()["http"]["gateway"]) as client:
            assert (await client.get("/api/v1/pools")).status_code == 200
        [denied] = json.loads(listed[1])
        assert (denied["value"], denied["by"]) == ("GPU-1", token_of(user_name()))
        fleet.process.send_signal(signal.SIGTERM)
        await fleet.rest()
        assert await fleet.process.wait() == 0
    assert processes_naming(tmp_path) == []


POOL = """
providers:
  local: {type: local, gpu_count: 0}
pools:
  training: {provider: local, instance_type: local, min_nodes: 1, max_nodes: 1}
"""


async def test_the_agents_of_a_killed_serve_end_too(
    tmp_path: Path, processes_naming: Leftovers
) -> None:
    """Agents outlive a restarted provisioner, but not their fleet."""
    async with served(tmp_path / "fleet", POOL) as killed:
        await killed.says(READY)
        async with asyncio.timeout(60):
            while not any("agent" in each for each in processes_naming(killed.place / "data")):
                await asyncio.sleep(0.1)
        killed.process.kill()
        await killed.process.wait()
        async with asyncio.timeout(20):
            while processes_naming(tmp_path):
                await asyncio.sleep(0.1)
