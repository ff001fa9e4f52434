"""Renews the credentials of a person: the key stays, so the server needs no change."""

from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from schemas.permissions import USER_ROLES
from services.bus.nats.credentials_file import ROLE_TAG, seed_in
from services.bus.nats.nats_accounts import Key, credentials
from services.cli.bus_users import BusUser
from services.cli.nats_config_files import BusDirectory, role_keys
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError


def renew_user(directory: Path, name: str, at: datetime, valid: timedelta) -> Path:
    """Write credentials of the same key that are valid from now on; return the file.

    NavarchError where there is no such person, or the key is revoked, replaced or lost.
    """
    bus = BusDirectory(directory)
    users = bus.users()
    user = next((each for each in reversed(users) if each.name == name), None)
    if user is None or user.role not in USER_ROLES:
        raise NavarchError(f"there is no person {name!r}: see `navarch nats-config user list`")
    keys = role_keys(user.role, bus.keys())
    file = bus.credentials_file(user)
    seed = seed_in(file.read_text(encoding="ascii")) if file.exists() else ""
    if problem := _obstacle(user, file, seed, Key(keys.seed).public):
        raise NavarchError(
            f"{problem}: `navarch nats-config user revoke {name}` if that was not done, then "
            f"`navarch nats-config user add {name} --role {user.role}`"
        )
    renewed = msgspec.structs.replace(user, issued_at=at, expires_at=at + valid)
    made = credentials(
        *(name, keys, at),
        tags=(ROLE_TAG + user.role,),
        user_seed=seed,
        until=renewed.expires_at,
    )
    bus.write_users([renewed if each is user else each for each in users], at)
    write_secret(file, made)
    return file


def _obstacle(user: BusUser, file: Path, seed: str, signer: str) -> str:
    """Return why the credentials of a user cannot be renewed; empty where they can. Pure."""
    if user.revoked_at is not None:
        return f"the credentials of {user.name} are revoked"
    if not seed or Key(seed).public != user.key:
        return f"{file} does not hold the key of {user.name}, as far as it is known"
    if user.signer != signer:
        return f"the key of role {user.role} was replaced since {user.name} was given credentials"
    return ""
