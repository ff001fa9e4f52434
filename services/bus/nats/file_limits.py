"""Shares nats-server's open files out: each connection takes one, and so does what is stored.

A server that has no file left stores nothing. Go raises its limit to the hard one at the start.
"""

import re
from typing import Final, NamedTuple

from schemas.account_rules import Account
from schemas.permissions import CONNECTIONS_MAX

STORE_FILES: Final = 256
"""For streams, logs and the resolver: with the streams of a fleet it has about 90 open."""
SERVICE_CONNECTIONS: Final = 128
"""For the services' replicas, gateways and administrators."""
FILES_MIN: Final = 1_024
"""With fewer a server is refused."""
FILES_WANTED: Final = 65_536
"""With so many all agents and users of the largest fleet find room."""
FILES_MAX: Final = 1_048_576
FEW_FILES: Final = """\
# nats-server may open {} files, of which it needs some for what it stores.
max_connections: {}
"""
USERS_SHARE: Final = 4
"""One connection in so many is a user's, where there are few."""


class FileShares(NamedTuple):
    """Says how many connections a server takes, and how many of whom."""

    server: int
    agents: int
    users: int

    @property
    def accounts(self) -> dict[str, int]:
        """Return the limit of each account that has one."""
        return {Account.AGENTS: self.agents, Account.USERS: self.users}


def file_shares(files: int) -> FileShares:
    """Return what the accounts may take of so many files, with a reserve for services. Pure."""
    files = max(FILES_MIN, min(files, FILES_MAX))
    left = files - STORE_FILES - SERVICE_CONNECTIONS
    users = min(CONNECTIONS_MAX[Account.USERS], left // USERS_SHARE)
    agents = min(CONNECTIONS_MAX[Account.AGENTS], left - users)
    return FileShares(min(files, FILES_WANTED) - STORE_FILES, agents, users)


def limit_lines(files: int) -> str:
    """Return the lines of the server's configuration about few files; empty of enough. Pure."""
    return "" if files >= FILES_WANTED else FEW_FILES.format(files, file_shares(files).server)


def stated_files(text: str) -> int:
    """Return how many files the server may open, by its configuration. Pure."""
    found = re.search(r"^# nats-server may open (\d+) files", text, re.MULTILINE)
    return int(found[1]) if found else FILES_WANTED


def low_limit(files: int) -> str:
    """Return what a low limit of open files means, and the remedy; empty where it is high. Pure."""
    if files >= FILES_WANTED:
        return ""
    shares = file_shares(files)
    return (
        f"nats-server may open {files:,} files, which is enough for {shares.agents:,} agents and "
        f"{shares.users:,} users; for more allow {FILES_WANTED:,}: `LimitNOFILE={FILES_WANTED}` in "
        "its unit, `ulimits: {nofile: …}` in compose, or `ulimit -Hn` of the shell"
    )
