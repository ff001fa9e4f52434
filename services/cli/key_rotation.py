"""Replaces the keys of a running bus, in two steps between which both keys are accepted.

The first step makes another key, has the servers accept it too, and then writes what it signs. The
second has the servers refuse what the key before has signed. Each can be run again after an
interruption: all files are made of the keys', and the servers are given what they lack.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from schemas.permissions import AGENT, GATEWAY, SERVICES, rules
from schemas.settings import NatsSettings
from services.bus.nats.account_updates import (
    Connection,
    Requests,
    connections,
    read_account,
    replace_accounts,
    revoker_options,
    trusted_keys,
)
from services.bus.nats.credentials_file import ROLE_TAG, claims_of_token
from services.bus.nats.nats_accounts import (
    OPERATOR_KEY,
    OPERATOR_SIGNING_KEY,
    REVOKER,
    SYSTEM_KEY,
    AgentKeys,
    BusKeys,
    Key,
    account_key,
    read_agent_keys,
    role_key,
    with_revocations,
)
from services.cli.bus_certificates import AUTHORITY, CERTIFICATE, CLIENTS
from services.cli.bus_keys import PRELOADED, ROTATIONS, stated_keys
from services.cli.nats_config_files import (
    ACCOUNTS,
    REVOCATION_FILE,
    BusDirectory,
    content,
    write_credentials,
)
from services.operator_text.quantities import first_of
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

SHOWN_MAX: Final = 20


if TYPE_CHECKING:
    from services.bus.nats.nats_bus import NatsBus

SECONDS_MAX: Final = 5.0


def token_to_push(
    keys: AgentKeys, token: str, current: str, now: float, signers: Collection[str]
) -> str:
    """The token that the server is to have in place of its own; empty if it has it. Pure.

    What the provisioner has revoked stays revoked. `signers`: the operator's keys of now.
    """
    has, wanted = claims_of_token(current), claims_of_token(token)
    revoked = _revocations(has) | _revocations(wanted)
    kept = {key: until for key, until in revoked.items() if until > now}
    same = content(current) == content(token) and has.get("iss") in signers
    if same and kept.keys() <= _revocations(has).keys():
        return ""
    return with_revocations(keys, token, kept, has.get("iat", 0))


def _revocations(claims: dict[str, object]) -> dict[str, int]:
    body = claims.get("nats")
    found: dict[str, int] = body.get("revocations", {}) if isinstance(body, dict) else {}
    return found


@asynccontextmanager
async def connecting_revoker(directory: Path, nats: NatsSettings) -> AsyncIterator["NatsBus"]:
    """Connect as the user who may read and replace the accounts."""
    # The trim loads the bus's client without what it does not need.
    import services.runtime.import_trim  # noqa: F401, PLC0415
    from services.bus.nats.nats_bus import NatsBus  # noqa: PLC0415

    BusDirectory(directory).fleet()  # it names a directory that is none of a bus
    if (directory / CERTIFICATE).exists():
        nats = msgspec.structs.replace(nats, tls_ca_file=str(directory / AUTHORITY))
    if (certificate := directory / CLIENTS / f"{REVOKER}.pem").exists():
        nats = msgspec.structs.replace(nats, tls_cert_file=str(certificate), tls_key_file="")
    bus = await NatsBus.connect(revoker_options(nats, directory), seconds_max=SECONDS_MAX)
    try:
        yield bus
    finally:
        await bus.close()


async def push_to(server: Requests, directory: Path, at: datetime) -> list[str]:
    """Push what has changed; return the accounts' names."""
    text = (directory / ACCOUNTS).read_text(encoding="ascii")
    stated = stated_keys(text)
    keys = _signer(directory)
    signers = {*stated[OPERATOR_KEY][:1], *stated[OPERATOR_SIGNING_KEY][:1]}
    # Our own account is the last: where our key is accepted no longer, that ends the connection.
    tokens = sorted(PRELOADED.findall(text), key=lambda each: each[0] in stated[SYSTEM_KEY])
    current = {account: await read_account(server, account) for account, _ in tokens}
    # One that the server does not know comes first: it waits for each account that a token names.
    tokens.sort(key=lambda each: bool(current[each[0]]))
    made = [
        token_to_push(keys, token, current[account], at.timestamp(), signers)
        for account, token in tokens
    ]
    changed = [each for each in made if each]
    await replace_accounts(server, changed)
    return [claims_of_token(each)["name"] for each in changed]


async def push(directory: Path, nats: NatsSettings, at: datetime) -> list[str]:
    """Connect, and push what has changed; return the accounts' names."""
    async with connecting_revoker(directory, nats) as server:
        return await push_to(server, directory, at)


def _signer(directory: Path) -> AgentKeys:
    """The operator's signing key of now: a rotation hands the provisioner its file later."""
    file = directory / "keys" / f"{OPERATOR_SIGNING_KEY}.nk"
    if not file.exists():
        return read_agent_keys(directory / REVOCATION_FILE)
    return AgentKeys(account="", seed=file.read_text(encoding="ascii").strip())


class OldKeyInUseError(NavarchError):
    """Something still uses what the former key has signed."""

    def __init__(self, what: str, used: Sequence[str]) -> None:
        shown = first_of(used, SHOWN_MAX)
        super().__init__(
            f"still of the old key, and refused afterwards: {shown}. Give them credentials "
            "of the new key first, or, if the old key was stolen, use --force. Nothing was "
            f"changed (`navarch nats-config rotate {what}` began this)"
        )


def is_under_way(directory: Path, what: str) -> bool:
    """Return whether the keys of before are still accepted."""
    return any((directory / "keys" / f"{name}.old").exists() for name in ROTATIONS[what])


async def begin(server: Requests, directory: Path, what: str, at: datetime) -> list[Path]:
    """Make the new keys and have the servers accept them; return the files written."""
    bus = BusDirectory(directory)
    fleet, files = bus.fleet(), bus.key_files()
    for name in ROTATIONS[what]:
        files.renew(name)
    keys = bus.write_accounts(fleet, at)
    await push_to(server, directory, at)
    # Not before the servers accept what the new keys sign.
    write_credentials(bus, keys, at)
    return [*files.written, *bus.written]


async def finish(
    server: Requests, directory: Path, what: str, at: datetime, *, is_forced: bool = False
) -> list[Path]:
    """Have the servers refuse what the old keys signed; return the files written."""
    bus = BusDirectory(directory)
    fleet = bus.fleet()
    used = await users_of_old_keys(server, directory, what, at)
    if used and not is_forced:
        raise OldKeyInUseError(what, used)
    for name in ROTATIONS[what]:
        bus.key_files().retire(name)
    bus.write_accounts(fleet, at)
    await push_to(server, directory, at)
    return bus.written


async def users_of_old_keys(
    server: Requests, directory: Path, what: str, at: datetime
) -> list[str]:
    """Return who still depends on the keys of before: connections, people, and servers."""
    bus = BusDirectory(directory)
    keys = bus.keys()
    old = {key for name in ROTATIONS[what] for key in keys.accepted.get(name, ())}
    if not old:
        return []
    if OPERATOR_KEY in ROTATIONS[what]:
        await _require_new_operator(server, keys)
    found: list[str] = []
    for account in _accounts(what, keys):
        found += connection_names(await connections(server, account), old)
    found += [
        f"{each.name}'s credentials"
        for each in bus.users()
        if each.signer in old and each.state(at) == "valid"
    ]
    return list(dict.fromkeys(found))


def connection_names(found: Iterable[Connection], signers: set[str]) -> list[str]:
    """Return what is connected with a token of these signers, in words. Pure."""
    return [
        escape_line(f"{_who(each)} at {each.ip}") for each in found if each.issuer_key in signers
    ]


def _who(connection: Connection) -> str:
    tags = dict(each.partition(":")[::2] for each in connection.tags)
    if "node" in tags:
        return f"{AGENT} {tags.get('pool', '')}/{tags['node']}"
    role = tags.get(ROLE_TAG.rstrip(":"), "")
    return (
        role if role in (*SERVICES, GATEWAY) else f"{role or REVOKER} {connection.authorized_user}"
    )


def _accounts(what: str, keys: BusKeys) -> list[str]:
    roles = {role_key(role): each.account for role, each in rules().items()}
    names = {account_key(roles[name]) for name in ROTATIONS[what] if name in roles}
    if role_key(REVOKER) in ROTATIONS[what]:
        names.add(SYSTEM_KEY)
    return sorted(keys.accounts[name] for name in names)


async def _require_new_operator(server: Requests, keys: BusKeys) -> None:
    """Raise NavarchError where a server or an account depends on the operator before."""
    begin_again = "run `navarch nats-config rotate operator-key` again"
    public, signing = (
        Key(keys.seeds[name]).public for name in (OPERATOR_KEY, OPERATOR_SIGNING_KEY)
    )
    for name, trusted in (await trusted_keys(server)).items():
        if public not in trusted:
            raise NavarchError(
                f"nats-server {name} does not trust the new operator yet: give it the new "
                f"accounts.conf, restart it, and {begin_again}"
            )
    for account in keys.accounts.values():
        claims = claims_of_token(await read_account(server, account))
        if claims.get("iss") not in (public, signing):
            raise NavarchError(
                f"the servers' token of account {claims.get('name')} is of the old operator: "
                f"{begin_again}"
            )
