"""The servers of a cluster, as the command line names them: `NAME[=HOST[:PORT]]`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from services.primitives.errors import NavarchError

ROUTE_PORT: Final = 6222
SERVERS: Final = (3, 5)
"""How many a cluster may have: a majority of them decides."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_SERVER: Final = re.compile(
    rf"(?P<name>{_NAME.pattern})(=(?P<host>{_NAME.pattern}|\[[0-9a-fA-F:]+\])(:(?P<port>\d{{1,5}}))?)?"
)


class ClusterServer(NamedTuple):
    """Describes one of several servers."""

    name: str
    host: str
    """By which the others and clients reach it."""
    port: int = ROUTE_PORT
    """On which it accepts the others."""

    @property
    def conf(self) -> str:
        """Return the name of the server's configuration file."""
        return f"nats-{self.name}.conf"

    @property
    def address(self) -> str:
        """Return the host and port at which it accepts the others."""
        return f"{url_host(self.host)}:{self.port}"

    @property
    def route(self) -> str:
        """The URL by which the others reach it."""
        return f"nats-route://{self.address}"


def url_host(host: str) -> str:
    """A host as URLs have it."""
    return f"[{host}]" if ":" in host else host


def quoted(text: str) -> str:
    """Return a string as the server's configuration has it."""
    return msgspec.json.encode(text).decode()


def advertised(one: ClusterServer) -> str:
    """Return the line that names to the others what the server's certificate is for. Pure.

    Without it servers send each other addresses, and try those for ever against certificates that
    are for names.
    """
    return f"  advertise: {quoted(one.address)}\n"


def cluster_part(
    fleet: str, one: ClusterServer, servers: Sequence[ClusterServer], routes: str
) -> str:
    """Return the part of a server's configuration that makes it one of several. Pure.

    `routes`: the folder of the certificates by which the servers know each other.
    """
    urls = ", ".join(each.route for each in servers)
    file = quoted(f"{routes}/{one.name}.pem")
    return f"""
server_name: {one.name}
cluster {{
  name: {quoted(f"navarch-{fleet}")}
  listen: 0.0.0.0:{one.port}
{advertised(one)}\
  # Who joins as a server is past all accounts: only a certificate of routes/ca.pem may.
  tls {{
    cert_file: {file}
    key_file: {file}
    ca_file: {quoted(f"{routes}/ca.pem")}
    verify: true
    timeout: 5
  }}
  routes: [{urls}]
}}
"""


def check_later_run(
    directory: Path, known: Sequence[str], servers: Sequence[ClusterServer]
) -> None:
    """Refuse what the files that are there contradict; they are never rewritten.

    `known`: the names of the servers of the first run.
    """
    if known and sorted(each.name for each in servers) != sorted(known):
        raise NavarchError(
            f"{directory} is of a cluster of {', '.join(sorted(known))}: name each of them by "
            "--server, as before; for others remove routes/ and nats-*.conf, and give every server "
            "its new files"
        )
    for file in (directory / one.conf for one in servers):
        stated = file.read_text(encoding="utf-8") if file.exists() else ""
        moved = next((each for each in servers if stated and each.route not in stated), None)
        if moved is not None:
            raise NavarchError(
                f"{file} has no route {moved.route}: --server gives {moved.name} another address "
                "than before; change `routes` in nats-*.conf by hand, or remove those files to "
                "have them written again, then give every server its new one"
            )


def cluster_servers(stated: Sequence[str]) -> tuple[ClusterServer, ...]:
    """Read what was stated; NavarchError says what is wrong with it."""
    found = tuple(map(_server, stated))
    if found and len(found) not in SERVERS:
        raise NavarchError(
            f"--server names {len(found)} server{'s' if len(found) > 1 else ''}: a cluster has 3 "
            "or 5, each named by an option of its own; leave it out for a single one"
        )
    for what, all_ in (
        ("name", [each.name for each in found]),
        ("address", [(each.host, each.port) for each in found]),
    ):
        if len(set(all_)) < len(all_):
            raise NavarchError(f"--server: two servers have one {what}")
    return found


def _server(text: str) -> ClusterServer:
    read = _SERVER.fullmatch(text)
    port = int(read["port"] or ROUTE_PORT) if read else 0
    if read is None or read["name"] == "ca" or not 0 < port < 1 << 16:
        raise NavarchError(
            f"--server {text!r} is no server: write NAME, NAME=HOST or NAME=HOST:PORT, as in n1, "
            "n1=10.0.0.1 or n1=nats1.example.com:6222"
        )
    return ClusterServer(read["name"], (read["host"] or read["name"]).strip("[]"), port)
