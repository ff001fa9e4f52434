"""Gives a running server the accounts' tokens: it reads accounts.conf at its start alone."""

from datetime import datetime
from pathlib import Path
from typing import Final

from schemas.settings import NatsSettings
from services.bus.nats.account_updates import read_account, replace_account, revoker_options
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import AgentKeys, read_agent_keys, with_revocations
from services.cli.nats_config_files import (
    ACCOUNTS,
    AUTHORITY,
    CERTIFICATE,
    PRELOADED,
    REVOCATION_FILE,
    content,
)

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
    settings = NatsSettings(url=url, tls_ca_file=str(authority))
    keys = read_agent_keys(directory / REVOCATION_FILE)
    bus = await NatsBus.connect(revoker_options(settings, directory), seconds_max=SECONDS_MAX)
    pushed: list[str] = []
    try:
        tokens = PRELOADED.findall((directory / ACCOUNTS).read_text(encoding="ascii"))
        for account, token in tokens:
            current = await read_account(bus, account)
            if made := token_to_push(keys, token, current, at.timestamp()):
                await replace_account(bus, made)
                pushed.append(claims_of_token(token)["name"])
    finally:
        await bus.close()
    return pushed
