"""`navarch nats-config`: a directory with the server's configuration and every role's credentials.

A second run keeps every key, every credential and nats.conf, and rewrites accounts.conf, because
an upgrade may change the permissions of roles.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from schemas.names import pool_name, token
from schemas.permissions import (
    ADMIN,
    AGENT,
    BOOTSTRAP,
    OPERATOR,
    READER,
    SERVICES,
    rules,
    shares,
)
from services.bus.nats.credentials_file import ROLE_TAG
from services.bus.nats.nats_accounts import (
    AgentKeys,
    Key,
    account_key,
    agent_credentials,
    credentials,
    key_names,
    kind_of_key,
    new_seed,
    read_agent_keys,
    role_key,
    server_tokens,
)

SECRET: Final = 0o600
USERS: Final = (*SERVICES, OPERATOR, READER, ADMIN)
SIGNING_FILE: Final = "agent-signing.json"
CONF: Final = "nats.conf"
ACCOUNTS: Final = "accounts.conf"


def accounts(fleet: str, seeds: Mapping[str, str], at: datetime) -> str:
    """The permissions part of the server's configuration. Pure."""
    made = server_tokens(fleet, rules(), shares(), seeds, at)
    preloaded = "\n".join(f"  {account}: {token}" for account, token in made.accounts.items())
    return f"""\
# Permissions on the bus of fleet {fleet}. Written by `navarch nats-config`; run that again after an
# upgrade, then `nats-server --signal reload`.

operator: {made.operator}
system_account: {made.system_account}
resolver: MEMORY
resolver_preload: {{
{preloaded}
}}
"""


def server(store: str, listen: str, http: str) -> str:
    """The server's configuration, which includes the accounts. Pure."""
    return f"""\
# One nats-server. Written once by `navarch nats-config`; edit it as needed.

listen: {listen}
http: {http}

jetstream {{
  store_dir: {msgspec.json.encode(store).decode()}
  # Each write is on disk before it is acknowledged; the default loses two minutes in a power cut.
  sync_interval: always
}}

include ./{ACCOUNTS}
"""


def write(
    directory: Path, fleet: str, at: datetime, *, store: str, listen: str, http: str
) -> list[Path]:
    """Write the missing files, and rewrite the accounts; return the written files."""
    token(fleet, "fleet")
    written: list[Path] = []
    keys, users = directory / "keys", directory / "creds"
    for each in (directory, keys, users):
        each.mkdir(parents=True, exist_ok=True)
        each.chmod(0o700)

    def secret(file: Path, text: str) -> None:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET)
        with os.fdopen(handle, "w", encoding="ascii") as opened:
            opened.write(text)
        written.append(file)

    seeds: dict[str, str] = {}
    for name in key_names(rules()):
        file = keys / f"{name}.nk"
        if not file.exists():
            secret(file, new_seed(kind_of_key(name)) + "\n")
        seeds[name] = file.read_text(encoding="ascii").strip()
    roles = rules()

    def account_of(role: str) -> str:
        return Key(seeds[account_key(roles[role].account)]).public

    for user in USERS:
        file = users / f"{user}.creds"
        if not file.exists():
            role = AgentKeys(account=account_of(user), seed=seeds[role_key(user)])
            secret(file, credentials(user, role, at, tags=(f"{ROLE_TAG}{user}",)))
    signing = directory / SIGNING_FILE
    if signing.exists() and not read_agent_keys(signing).bootstrap_seed:
        signing.unlink()  # without bootstrap credentials
    if not signing.exists():
        agents = AgentKeys(
            account=account_of(AGENT),
            seed=seeds[role_key(AGENT)],
            bootstrap_seed=seeds[role_key(BOOTSTRAP)],
        )
        secret(signing, msgspec.json.encode(agents).decode() + "\n")
    tokens = directory / ACCOUNTS
    tokens.write_text(accounts(fleet, seeds, at), encoding="ascii")
    written.append(tokens)
    conf = directory / CONF
    if not conf.exists():
        conf.write_text(server(store, listen, http), encoding="ascii")
        written.append(conf)
    return written


def write_agent(directory: Path, pool: str, node: str, at: datetime) -> Path:
    """Write the credentials of a node that the provisioner does not launch; return the file."""
    pool_name(pool)
    token(node, "node")
    keys = read_agent_keys(directory / SIGNING_FILE)
    file = directory / "creds" / f"{AGENT}-{pool}-{node}.creds"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, SECRET)
    with os.fdopen(handle, "w", encoding="ascii") as opened:
        opened.write(agent_credentials(keys, pool, node, at))
    return file
