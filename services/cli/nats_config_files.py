"""Implements `navarch nats-config`: a directory of configuration, keys and credentials.

A second run keeps every key, nats.conf, and every credential that is of these keys; it rewrites
accounts.conf, because an upgrade may change the permissions of roles. The server's certificate is
renewed in time.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from schemas.account_rules import Account
from schemas.account_shares import shares
from schemas.names import pool_name, token
from schemas.permissions import AGENT, BOOTSTRAP, GATEWAY, SERVICES, rules
from services.bus.nats.credentials_file import (
    CREDENTIALS,
    ROLE_TAG,
    claims_of,
    claims_of_token,
    seed_in,
)
from services.bus.nats.file_limits import file_shares, limit_lines, stated_files
from services.bus.nats.nats_accounts import (
    OPERATOR_KEY,
    OPERATOR_SIGNING_KEY,
    REVOKER,
    SYSTEM_KEY,
    AgentKeys,
    BusKeys,
    Key,
    account_key,
    agent_token,
    credentials,
    new_seed,
    read_agent_keys,
    revoker_credentials,
    role_key,
    server_tokens,
)
from services.cli import bus_users
from services.cli.bus_certificates import AUTHORITY, ROUTES, SERVER, TLS, BusCertificates
from services.cli.bus_keys import PRELOADED, KeyFiles, operators_of, stated_keys
from services.cli.bus_users import BusUser
from services.cli.cluster_servers import (
    ClusterServer,
    advertised,
    check_later_run,
    cluster_part,
    quoted,
    url_host,
)
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError

SIGNING_FILE: Final = "agent-signing.json"
REVOCATION_FILE: Final = "revocation.json"
CONF: Final = "nats.conf"
ACCOUNTS: Final = "accounts.conf"
USERS_FILE: Final = "users.json"
CLIENTS_FILE: Final = "clients.yaml"
REPLICAS: Final = 3
"""Of each stream in a cluster, also of five servers."""
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1")


def accounts(
    fleet: str,
    keys: BusKeys,
    at: datetime,
    revoked: Mapping[Account, Mapping[str, int]] = {},
    before: str = "",
    files: int = 0,
) -> str:
    """Return the permissions part of the server's configuration. Pure.

    `files`: how many the server may open, from which the limits of connections follow; 0: as
    `before`.

    A token of `before` stays as it is where nothing but its time would change: the server takes the
    newer of two, and a newer one may have been given to it meanwhile. It reads no other operator's
    token without a restart. While two operators are trusted a token of the new one is older than
    that of the other: servers of a cluster exchange the newest, and not all may trust the new one.
    """
    files = files or stated_files(before)
    limits = file_shares(files).accounts
    made = server_tokens(fleet, rules(), shares(), keys, at, revoked, limits)
    old = dict(PRELOADED.findall(before))
    signer = Key(keys.seeds[OPERATOR_KEY])
    replaced = keys.accepted.get(OPERATOR_KEY, ())
    older = signer if replaced else None
    preloaded = "\n".join(
        f"  {account}: {_unless_same(old.get(account, ''), token, older)}"
        for account, token in made.accounts.items()
    )
    known = {claims_of_token(each)["sub"]: each for each in operators_of(before)}
    operators = [_unless_same(known.get(signer.public, ""), made.operator)]
    for public in replaced:
        if public not in known:
            raise NavarchError(
                f"{ACCOUNTS} lacks operator {public}, which is still needed: restore it"
            )
        operators.append(known[public])
    return f"""\
# Permissions on the bus of fleet {fleet}. Written by `navarch nats-config`; run that again after an
# upgrade, then `navarch nats-config push`.
{limit_lines(files)}
operator: [{", ".join(operators)}]
system_account: {made.system_account}
resolver_preload: {{
{preloaded}
}}
"""


def server(store: str, listen: str, http: str, tls_directory: str = "", cluster: str = "") -> str:
    """The server's configuration, which includes the accounts. Pure."""
    tls = f"""
tls {{
  cert_file: {quoted(f"{tls_directory}/server.pem")}
  key_file: {quoted(f"{tls_directory}/server.pem")}
  # To accept only clients with a certificate (`navarch nats-config certificate NAME`):
  # ca_file: {quoted(f"{tls_directory}/ca.pem")}
  # verify: true
}}
"""
    return f"""\
# One nats-server. Written once by `navarch nats-config`; edit it as needed.

listen: {listen}
http: {http}
{tls if tls_directory else ""}{cluster}
jetstream {{
  store_dir: {quoted(store)}
  # Each write is on disk before it is acknowledged; the default loses two minutes in a power cut.
  sync_interval: always
}}

# Keeps the accounts' later tokens: which credentials are revoked.
resolver {{
  type: full
  dir: {quoted(f"{store}/accounts")}
  allow_delete: false
  interval: "2m"
}}
include ./{ACCOUNTS}
"""


def clients(directory: Path, url: str, *, tls: bool, replicas: int = 1) -> str:
    """The part of the services' configuration that names the bus and these files. Pure."""
    several = f"  replicas: {replicas}\n" if replicas > 1 else ""
    authority = f"  tls_ca_file: {quoted(str(directory / AUTHORITY))}\n" if tls else ""
    return f"""\
# For the services' configuration. Written by `navarch nats-config`.
nats:
  url: {quoted(url)}
  creds_file: {quoted(str(directory / "creds" / "{service}.creds"))}
{authority}{several}\
  # For the provisioner only; revoker.creds is beside the second.
  agent_signing_file: {quoted(str(directory / SIGNING_FILE))}
  revocation_file: {quoted(str(directory / REVOCATION_FILE))}
"""


class BusDirectory:
    """Reads and writes the files of one fleet's bus."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: list[Path] = []

    def replace(self, name: str, text: str) -> None:
        """Write a file for its owner alone, unless it says this already."""
        file = self.path / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_secret(file, text)
            self.written.append(file)

    @property
    def stated(self) -> str:
        """The permissions part of the server's configuration; empty before it is first written."""
        file = self.path / ACCOUNTS
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def key_files(self) -> KeyFiles:
        """Return the files of all keys."""
        return KeyFiles(self.path / "keys", stated_keys(self.stated))

    def keys(self) -> BusKeys:
        """Every key; those that there never were are made."""
        files = self.key_files()
        found = files.read()
        self.written += files.written
        return found

    def write_accounts(self, fleet: str, at: datetime, files: int = 0) -> BusKeys:
        """Write what the server must know of the keys and the users; `files`: it may open."""
        keys, before = self.keys(), self.stated
        revoked = bus_users.revocations(self.users(), rules(), at)
        self.replace(ACCOUNTS, accounts(fleet, keys, at, revoked, before, files))
        return keys

    def users(self) -> list[BusUser]:
        """The people and nodes that have, or had, credentials."""
        file = self.path / USERS_FILE
        if not file.exists():
            return []
        try:
            return msgspec.json.decode(file.read_bytes(), type=list[BusUser])
        except msgspec.DecodeError as error:
            raise NavarchError(f"{file} cannot be read: {error}") from error

    def write_users(self, users: Sequence[BusUser], at: datetime) -> None:
        """Store the users, and what the server must know of them."""
        kept = bus_users.current(users, at)
        text = msgspec.json.format(msgspec.json.encode(kept), indent=2).decode()
        self.replace(USERS_FILE, text + "\n")
        self.write_accounts(self.fleet(), at)

    def write_certificates(
        self, made: BusCertificates, fleet: str, servers: Mapping[str, Sequence[str]], at: datetime
    ) -> None:
        """Write certificates of servers that are missing or end soon."""
        made.write(fleet, servers, at)
        self.written += made.written

    def credentials_file(self, user: BusUser) -> Path:
        """The file that is handed over."""
        return self.path / "creds" / bus_users.credentials_file(user)

    def fleet(self) -> str:
        """The fleet's name; NavarchError where nothing was written yet."""
        found = re.search(r"of fleet (\S+)\. Written", self.stated)
        if found is None:
            raise NavarchError(
                f"{self.path} has no {ACCOUNTS}: run `navarch nats-config write` first"
            )
        return found[1]


def write(
    directory: Path,
    fleet: str,
    at: datetime,
    *,
    store: str,
    listen: str,
    http: str,
    hosts: Sequence[str] = (),
    server_directory: str = "",
    servers: Sequence[ClusterServer] = (),
    files: int = 0,
) -> list[Path]:
    """Write the missing files, and rewrite the accounts; return the written files.

    `hosts`: names and addresses by which clients reach a server; empty: without TLS.
    `server_directory`: where a server finds this directory. `servers`: of a cluster; empty: one.
    `files`: how many a server may open; 0: as it was, or enough.
    """
    known = [each.stem for each in (directory / ROUTES).glob("*.pem") if each.stem != "ca"]
    check_later_run(directory, known, servers)
    bus = write_accounts(directory, fleet, at, files)
    if hosts:
        bus.write_certificates(BusCertificates(directory), fleet, {SERVER: hosts}, at)
    there = server_directory or str(directory.absolute())
    tls = f"{there}/{TLS}" if hosts else ""
    if servers:
        of_routes = BusCertificates(directory, ROUTES)
        names = {each.name: (each.host,) for each in servers}
        bus.write_certificates(of_routes, f"{fleet} routes", names, at)
    elif not (directory / CONF).exists():
        bus.replace(CONF, server(store, listen, http, tls))
    for each in servers:
        part = cluster_part(fleet, each, servers, f"{there}/{ROUTES}")
        made = server(store, listen, http, tls, part)
        file = directory / each.conf
        # One that is as an earlier release wrote it has no `advertise`.
        if not file.exists() or file.read_text("utf-8") == made.replace(advertised(each), ""):
            bus.replace(each.conf, made)
    scheme, port = ("tls" if hosts else "nats"), listen.rpartition(":")[2]
    reached = [each.host for each in servers] or [hosts[0] if hosts else LOCAL_HOSTS[1]]
    url = ",".join(f"{scheme}://{url_host(each)}:{port}" for each in reached)
    text = clients(directory.absolute(), url, tls=bool(hosts), replicas=REPLICAS if servers else 1)
    bus.replace(CLIENTS_FILE, text)
    return bus.written


def write_accounts(directory: Path, fleet: str, at: datetime, files: int = 0) -> BusDirectory:
    """Write the missing keys and credentials, and rewrite the accounts.

    `files`: how many the server may open; 0: as it was, or enough.
    """
    token(fleet, "fleet")
    bus = BusDirectory(directory)
    for each in ("", "keys", "creds", "tls"):
        (directory / each).mkdir(parents=True, exist_ok=True)
        (directory / each).chmod(0o700)
    keys = bus.write_accounts(fleet, at, files)
    write_credentials(bus, keys, at)
    return bus


def write_credentials(bus: BusDirectory, keys: BusKeys, at: datetime) -> None:
    """Write the services' credentials that are not of these keys, and the provisioner's keys."""
    for service in (*SERVICES, GATEWAY):
        name, signer = f"creds/{service}.creds", role_keys(service, keys)
        if not is_signed_by(signer, bus.path / name):
            bus.replace(name, credentials(service, signer, at, tags=(ROLE_TAG + service,)))
    agents = msgspec.structs.replace(
        role_keys(AGENT, keys), bootstrap_seed=keys.seeds[role_key(BOOTSTRAP)]
    )
    bus.replace(SIGNING_FILE, msgspec.json.encode(agents).decode() + "\n")
    seed = keys.seeds[OPERATOR_SIGNING_KEY]
    revoking = msgspec.structs.replace(agents, seed=seed, bootstrap_seed="")
    bus.replace(REVOCATION_FILE, msgspec.json.encode(revoking).decode() + "\n")
    revoker = AgentKeys(account=keys.accounts[SYSTEM_KEY], seed=keys.seeds[role_key(REVOKER)])
    if not is_signed_by(revoker, bus.path / f"{REVOKER}.creds"):
        bus.replace(f"{REVOKER}.creds", revoker_credentials(keys, at))


def role_keys(role: str, keys: BusKeys) -> AgentKeys:
    """Return what makes the credentials of a role's users. Pure."""
    account = keys.accounts[account_key(rules()[role].account)]
    return AgentKeys(account=account, seed=keys.seeds[role_key(role)])


def is_signed_by(keys: AgentKeys, file: Path) -> bool:
    """Return whether a credentials file is whole, and of this role."""
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    claims = claims_of(text)
    found = claims.get("nats", {}).get("issuer_account"), claims.get("iss")
    return found == (keys.account, Key(keys.seed).public) and "END USER NKEY SEED" in text


def server_hosts(named: Iterable[str], urls: Iterable[str]) -> list[str]:
    """Return the names and addresses of a server: those given, those of its URLs, and this host.

    Pure.
    """
    found = [*named]
    for each in urls:
        for url in each.split(","):
            host = url.strip().partition("://")[2].rpartition("@")[2]
            host = host.partition("/")[0]
            bare = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
            found.append(bare.strip("[]"))
    return list(dict.fromkeys([*(each for each in found if each), *LOCAL_HOSTS]))


def bus_user(
    name: str, role: str, keys: AgentKeys, seed: str, at: datetime, valid: timedelta
) -> BusUser:
    """Return who has the credentials of this seed, which the role's keys sign. Pure."""
    return BusUser(
        name=name,
        role=role,
        key=Key(seed).public,
        signer=Key(keys.seed).public,
        issued_at=at,
        expires_at=at + valid,
    )


def add_user(directory: Path, name: str, role: str, at: datetime, valid: timedelta) -> Path:
    """Write the credentials of a new user; return the file."""
    bus = BusDirectory(directory)
    seed = new_seed("user")
    bus_users.require_role(role)
    keys = role_keys(role, bus.keys())
    user = bus_user(name, role, keys, seed, at, valid)
    users = bus_users.add(bus.users(), user)
    made = credentials(
        name, keys, at, tags=(ROLE_TAG + role,), user_seed=seed, until=user.expires_at
    )
    bus.write_users(users, at)
    file = bus.credentials_file(user)
    write_secret(file, made)
    return file


def revoke_user(directory: Path, name: str, at: datetime) -> None:
    """Have the server refuse a user's credentials, once it is given the accounts again."""
    bus = BusDirectory(directory)
    users = bus_users.revoke(bus.users(), name, at)
    bus.write_users(users, at)
    for each in users:
        if each.name == name:
            bus.credentials_file(each).unlink(missing_ok=True)


def write_agent(directory: Path, pool: str, node: str, at: datetime, valid: timedelta) -> Path:
    """Write the credentials of a node that no provider launches, of the key that it has."""
    pool_name(pool)
    token(node, "node")
    bus = BusDirectory(directory)
    keys = read_agent_keys(directory / SIGNING_FILE)
    until = at + valid
    user = BusUser(name=f"{pool}/{node}", role=AGENT, key="", issued_at=at, expires_at=until)
    file = bus.credentials_file(user)
    seed = (seed_in(file.read_text(encoding="ascii")) if file.exists() else "") or new_seed("user")
    key = Key(seed).public
    users = bus_users.add_node(
        bus.users(), msgspec.structs.replace(user, key=key, signer=Key(keys.seed).public)
    )
    made = agent_token(keys, pool, node, key, at, until)
    bus.write_users(users, at)
    write_secret(file, CREDENTIALS.format(token=made, seed=seed))
    return file


def _unless_same(before: str, made: str, older: Key | None = None) -> str:
    """The token that was made, unless it differs from the one before in nothing but its time.

    `older`: sign it with this key, as of the second before the other.
    """
    old, new = claims_of_token(before), claims_of_token(made)
    if _timeless(old) == _timeless(new):
        return before
    if not old or older is None:
        return made
    body = {name: each for name, each in new["nats"].items() if name not in ("type", "version")}
    return older.sign(new["nats"]["type"], new["sub"], new["name"], body, old["iat"] - 1)


def content(token_: str) -> dict[str, object]:
    """Return what an account's token permits, revocations aside."""
    nats = claims_of_token(token_).get("nats", {})
    return {name: each for name, each in nats.items() if name != "revocations"}


def _timeless(claims: Mapping[str, object]) -> dict[str, object]:
    return {name: each for name, each in claims.items() if name not in ("iat", "jti")}
