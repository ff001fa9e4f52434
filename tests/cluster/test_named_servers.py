"""Servers whose certificates are for names, as in containers: what they log, and how often.

Each server reads a hosts file of its own mount namespace, in which all names are this machine.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from services.cli.cluster_servers import cluster_servers
from services.cli.nats_config_files import ACCOUNTS, CONF, write
from services.cli.region_files import LEAF_PORT, LEAFNODES, REGIONS, write_region
from services.primitives.free_ports import free_ports
from tests.cluster.test_secured_cluster import LOOK_SECONDS, Server, conf_of, until
from tests.support.secured import WHERE

NOW = datetime.now(UTC)
NAMES: Final = ("n1", "n2", "n3")
HOSTS: Final = "127.0.0.1 localhost n1 n2 n3 eu\n"
OWN_HOSTS: Final = ("unshare", "-rm", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')
QUIET_SECONDS: Final = 1.0
"""A server that repeats a failed attempt does so ten times and more in it."""
QUIET_WITHIN_SECONDS: Final = 20.0
"""A server may take this long after the last has joined."""


def separable() -> bool:
    """Return whether a process may have a hosts file of its own here."""
    if shutil.which("unshare") is None:
        return False
    tried = (*OWN_HOSTS, "/etc/hosts", "true")
    return subprocess.run(tried, capture_output=True, check=False, timeout=30).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not separable(), reason="no user namespaces here, and not root"),
]


async def quiet(name: str, server: Server) -> None:
    """Wait until a server logs nothing for a while; fail with the line that it repeats."""
    begun = time.monotonic()
    seen, since = len(server.log), begun
    while (now := time.monotonic()) < since + QUIET_SECONDS:
        if len(server.log) > seen:
            seen, since = len(server.log), now
        if now > begun + QUIET_WITHIN_SECONDS:
            without_time = re.sub(r"(?m)^\[\d+\] \S+ \S+ ", "", server.log)
            [(line, times)] = Counter(
                re.sub(r"[0-9a-f]{8,}|\d+", "#", without_time).splitlines()
            ).most_common(1)
            pytest.fail(f"{name} does not come to rest, {times} times: {line}")
        await asyncio.sleep(LOOK_SECONDS)


async def test_servers_come_to_rest(tmp_path: Path) -> None:
    """A server hears of another from the third before it has met it, and a region's server joins.

    The third is stopped while the second starts, so what it reads first is the gossip.
    """
    bus, hosts = tmp_path / "bus", tmp_path / "hosts"
    hosts.write_text(HOSTS)
    leaf_ports = dict(zip(NAMES, free_ports(3), strict=True))
    route_ports = free_ports(3)
    stated = [f"{name}={name}:{port}" for name, port in zip(NAMES, route_ports, strict=True)]
    known = cluster_servers(stated)
    write(bus, "tests", NOW, **WHERE, servers=known, hosts=NAMES)
    where = {"listen": WHERE["listen"], "http": "127.0.0.1:-1"}
    hubs = [f"n1:{leaf_ports['n1']}"]
    write_region(bus, "eu", NOW, pools=["training"], hubs=hubs, hosts=["eu"], **where)
    made = {"eu": (bus / REGIONS / "eu" / CONF).read_text()}
    leafnodes = (bus / LEAFNODES).read_text()
    for one in known:
        port = str(leaf_ports[one.name])
        text = leafnodes.replace(str(leaf_ports["n1"]), port).replace(str(LEAF_PORT), port)
        made[one.name] = conf_of(bus, one) + text.replace("0.0.0.0", "127.0.0.1")
    servers: dict[str, Server] = {}
    for name, conf in made.items():
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy((bus / REGIONS / "eu" if name == "eu" else bus) / ACCOUNTS, folder)
        servers[name] = Server(folder, conf, name, (*OWN_HOSTS, str(hosts)))
    try:
        for name in ("n1", "n3"):
            await servers[name].start()
        await until(lambda: _are_peers(servers["n1"], "n3"))
        os.kill(servers["n3"].pid, signal.SIGSTOP)
        await servers["n2"].start()
        await until(lambda: _are_peers(servers["n2"], "n1"))
        os.kill(servers["n3"].pid, signal.SIGCONT)
        await until(lambda: _are_peers(servers["n2"], "n1", "n3"))
        await servers["eu"].start()
        await until(lambda: "Leafnode connection created" in servers["eu"].log)
        for name, each in servers.items():
            await quiet(name, each)
    finally:
        await asyncio.gather(*(each.kill() for each in servers.values() if each.pid))


async def _are_peers(server: Server, *names: str) -> bool:
    return await server.peers() == set(names)
