"""Gives a running server the accounts' tokens: it reads accounts.conf at its start alone."""

from datetime import datetime
from pathlib import Path
from typing import Final

from schemas.permissions import inbox
from schemas.settings import NatsSettings
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import (
    CLAIMS_UPDATE,
    REVOKER,
    AgentKeys,
    claims_lookup,
    read_agent_keys,
    with_revocations,
)
from services.cli.nats_config_files import (
    ACCOUNTS,
    AUTHORITY,
    CERTIFICATE,
    PRELOADED,
    REVOCATION_FILE,
    content,
)
from services.primitives.errors import NavarchError

SECONDS_MAX: Final = 5.0


def token_to_push(keys: AgentKeys, token: str, current: str, now: float) -> str:
    """The token that the server is to have in place of its own; empty if it has it. Pure.

    What the provisioner has revoked stays revoked.
    """
    before, after = content(current), content(token)
    revoked = _revocations(current) | _revocations(token)
    kept = {key: until for key, until in revoked.items() if until > now}
    if before == after and kept.keys() <= _revocations(current).keys():
        return ""
    return with_revocations(keys, token, kept)


def _revocations(token: str) -> dict[str, int]:
    found: dict[str, int] = claims_of_token(token).get("nats", {}).get("revocations", {})
    return found


async def push(directory: Path, url: str, at: datetime) -> list[str]:
    """Push what has changed; return the accounts' names."""
    # The trim loads the bus's client without what it does not need.
    import services.runtime.import_trim  # noqa: F401, PLC0415
    from services.bus.nats.nats_bus import NatsBus  # noqa: PLC0415

    authority = directory / AUTHORITY if (directory / CERTIFICATE).exists() else ""
    settings = NatsSettings(
        url=url, creds_file=str(directory / f"{REVOKER}.creds"), tls_ca_file=str(authority)
    )
    keys = read_agent_keys(directory / REVOCATION_FILE)
    options = ConnectOptions(settings=settings, name=REVOKER, inbox_prefix=inbox(REVOKER))
    bus = await NatsBus.connect(options, seconds_max=SECONDS_MAX)
    pushed: list[str] = []
    try:
        tokens = PRELOADED.findall((directory / ACCOUNTS).read_text(encoding="ascii"))
        for account, token in tokens:
            lookup = claims_lookup(account)
            reply = await bus.request(lookup, b"", timeout_seconds=SECONDS_MAX)
            made = token_to_push(keys, token, reply.data.decode(), at.timestamp())
            if not made:
                continue
            name = claims_of_token(token)["name"]
            reply = await bus.request(CLAIMS_UPDATE, made.encode(), timeout_seconds=SECONDS_MAX)
            if b'"code":200' not in reply.data:
                raise NavarchError(f"the server refuses account {name}: {reply.data[:500]!r}")
            pushed.append(name)
    finally:
        await bus.close()
    return pushed
