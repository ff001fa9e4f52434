"""Gives a running server the accounts' tokens: it reads accounts.conf at its start alone."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from schemas.settings import NatsSettings
from services.bus.nats.account_updates import (
    Requests,
    read_account,
    replace_accounts,
    revoker_options,
)
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import (
    OPERATOR_KEY,
    OPERATOR_SIGNING_KEY,
    REVOKER,
    SYSTEM_KEY,
    AgentKeys,
    read_agent_keys,
    with_revocations,
)
from services.cli.bus_certificates import AUTHORITY, CERTIFICATE, CLIENTS
from services.cli.bus_keys import PRELOADED, stated_keys
from services.cli.nats_config_files import (
    ACCOUNTS,
    REVOCATION_FILE,
    BusDirectory,
    content,
)

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
