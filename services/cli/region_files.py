"""`navarch nats-config region`: the files of a region's server, to which its agents connect.

It is a leaf node of the fleet's servers. It stores nothing, and knows the agents' account alone:
neither keys nor other credentials of the fleet are in its files. Its own credentials permit what
the agents of its pools may, and nothing else.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from schemas.account_rules import Account
from schemas.names import pool_name, token
from schemas.permissions import AGENT, BOOTSTRAP, POD, REGION, rules
from schemas.region_permissions import NAMES, agent_there
from services.bus.nats.credentials_file import ROLE_TAG, claims_of, seed_in
from services.bus.nats.nats_accounts import (
    account_key,
    credentials,
    new_seed,
    region_tokens,
)
from services.cli import bus_users
from services.cli.bus_certificates import AUTHORITY, CERTIFICATE, TLS, BusCertificates
from services.cli.cluster_servers import quoted
from services.cli.nats_config_files import (
    ACCOUNTS,
    CONF,
    BusDirectory,
    bus_user,
    is_signed_by,
    role_keys,
)
from services.primitives.errors import NavarchError

REGIONS: Final = "regions"
LEAFNODES: Final = "leafnodes.conf"
LEAF_PORT: Final = 7422
CREDENTIALS: Final = "region.creds"
VALID: Final = timedelta(days=3650)
"""Of a region's credentials; no agent sees them, so nothing could warn of their end."""
_TLS: Final = re.compile(rf'^\s*cert_file: "(.*/{re.escape(CERTIFICATE)})"$', re.MULTILINE)
_HUB: Final = re.compile(r"(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::(?P<port>\d{1,5}))?")


def hub_part(port: int, certificate: str) -> str:
    """Return what the fleet's own servers include, to accept servers of regions. Pure.

    `certificate`: where they find theirs; empty: without TLS.
    """
    file = quoted(certificate)
    encrypted = f"  tls {{\n    cert_file: {file}\n    key_file: {file}\n  }}\n"
    return f"""\
# Servers of regions connect here. Written once by `navarch nats-config region`.
leafnodes {{
  listen: 0.0.0.0:{port}
{encrypted if certificate else ""}\
}}
"""


def server(
    name: str, hubs: Sequence[str], agents: str, there: str, *, listen: str, http: str, tls: bool
) -> str:
    """Return the configuration of a region's server. Pure.

    `agents`: public key of the agents' account. `there`: where the server finds its files.
    """
    scheme = "tls" if tls else "nats-leaf"
    urls = ", ".join(quoted(f"{scheme}://{each}") for each in hubs)
    pem, authority = (quoted(f"{there}/{each}") for each in (CERTIFICATE, AUTHORITY))
    own = f"tls {{\n  cert_file: {pem}\n  key_file: {pem}\n}}\n" if tls else ""
    trusted = f"    tls {{ ca_file: {authority} }}\n" if tls else ""
    return f"""\
# The nats-server of region {name}. Written by `navarch nats-config region`.

server_name: {quoted(f"region-{name}")}
listen: {listen}
http: {http}
{own}\
# Within a minute it notices that the fleet's servers are out of reach.
ping_interval: "20s"
leafnodes {{
  remotes: [{{
    urls: [{urls}]
    account: {agents}
    credentials: {quoted(f"{there}/{CREDENTIALS}")}
{trusted}\
  }}]
}}
include ./{ACCOUNTS}
"""


def accounts(bus: BusDirectory, at: datetime) -> str:
    """Return whom the server knows."""
    every = rules()
    roles = {each: every[each] for each in (BOOTSTRAP, POD)} | {AGENT: agent_there(every[AGENT])}
    revoked = bus_users.revocations(bus.users(), every, at).get(Account.AGENTS, {})
    made = region_tokens(bus.fleet(), roles, NAMES, bus.keys(), at, revoked)
    preloaded = "\n".join(f"  {account}: {each}" for account, each in made.accounts.items())
    return f"""\
# The agents of fleet {bus.fleet()}. Written by `navarch nats-config region`.

operator: {made.operator}
system_account: {made.system_account}
resolver: MEMORY
resolver_preload: {{
{preloaded}
}}
"""


def write_region(
    directory: Path,
    name: str,
    at: datetime,
    *,
    pools: Sequence[str],
    hubs: Sequence[str],
    hosts: Sequence[str],
    listen: str,
    http: str,
    server_directory: str = "",
) -> list[Path]:
    """Write the files of a region's server, and what the fleet's servers include; return them.

    `pools`: whose agents connect to it. `hubs`: where it reaches the fleet's servers. `hosts`: by
    which agents reach it.
    """
    token(name, "region")
    bus = BusDirectory(directory)
    bus.fleet()  # it names a directory that is none of a bus
    reached, names = [_hub(each) for each in hubs], sorted(set(map(pool_name, pools)))
    certificate = _certificate(directory)
    if certificate and not hosts:
        raise NavarchError("--host: name the region's server, as its agents reach it")
    folder = directory / REGIONS / name
    for each in (folder.parent, folder, folder / TLS):
        each.mkdir(mode=0o700, exist_ok=True)
    region = BusDirectory(folder)
    _write_credentials(bus, region, name, names, at)
    there = server_directory or str(folder.absolute())
    agents = bus.keys().accounts[account_key(Account.AGENTS)]
    urls = [f"{host}:{port}" for host, port in reached]
    region.replace(
        CONF, server(name, urls, agents, there, listen=listen, http=http, tls=bool(certificate))
    )
    region.replace(ACCOUNTS, accounts(bus, at))
    if certificate:
        called = f"region-{name}"
        bus.write_certificates(BusCertificates(directory), bus.fleet(), {called: hosts}, at)
        own = (directory / TLS / f"{called}.pem").read_text(encoding="ascii")
        region.replace(CERTIFICATE, own)
        region.replace(AUTHORITY, (directory / AUTHORITY).read_text(encoding="ascii"))
    if not (directory / LEAFNODES).exists():
        bus.replace(LEAFNODES, hub_part(reached[0][1], certificate))
    return [*bus.written, *region.written]


def includes_leafnodes(directory: Path) -> bool:
    """Return whether each of the fleet's servers is configured to accept servers of regions."""
    return all(LEAFNODES in each.read_text(encoding="utf-8") for each in _configurations(directory))


def _write_credentials(
    bus: BusDirectory, region: BusDirectory, name: str, pools: Sequence[str], at: datetime
) -> None:
    """Write them, unless there are some that are valid and of these pools."""
    text, keys = "", role_keys(REGION, bus.keys())
    users, called = bus.users(), f"{REGION}-{name}"
    if is_signed_by(keys, region.path / CREDENTIALS):
        text = (region.path / CREDENTIALS).read_text(encoding="ascii")
    claims, tags = claims_of(text), (ROLE_TAG + REGION, *(f"pool:{each}" for each in pools))
    soon = at + VALID / 10
    kept = any(each.key == claims.get("sub") and each.state(soon) == "valid" for each in users)
    if kept and claims["nats"].get("tags") == list(tags):
        return
    seed = seed_in(text) if kept else new_seed("user")
    user = bus_user(called, REGION, keys, seed, at, VALID)
    # Those of a key that is being replaced have their successor in these.
    users = [
        each
        for each in users
        if each.name != called or each.signer == user.signer or each.state(at) != "valid"
    ]
    made = credentials(called, keys, at, tags=tags, user_seed=seed, until=user.expires_at)
    bus.write_users(bus_users.add_node(users, user), at)
    region.replace(CREDENTIALS, made)


def _configurations(directory: Path) -> list[Path]:
    several = sorted(each for each in directory.glob("nats-*.conf"))
    return several or [each for each in (directory / CONF,) if each.exists()]


def _certificate(directory: Path) -> str:
    """Where the fleet's servers find their certificate; empty: they are without TLS."""
    for each in _configurations(directory):
        if found := _TLS.search(each.read_text(encoding="utf-8")):
            return found[1]
    return ""


def _hub(text: str) -> tuple[str, int]:
    read = _HUB.fullmatch(text)
    port = int(read["port"] or LEAF_PORT) if read else 0
    if read is None or not 0 < port < 1 << 16:
        raise NavarchError(
            f"--hub {text!r} is no server: write HOST or HOST:PORT, as in nats1.example.com:7422 "
            "or [fd00::1]"
        )
    return read["host"], port
