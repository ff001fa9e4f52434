"""Writes the credentials that all agents in pods of a pool's nodes share until each has its own.

They permit only to ask for those; the provisioner asks the pods' cluster which node asks.
"""

from datetime import datetime, timedelta
from pathlib import Path

from schemas.names import pool_name
from schemas.permissions import POD
from services.bus.nats.nats_accounts import credentials, new_seed
from services.cli import bus_users
from services.cli.nats_config_files import BusDirectory, bus_user, role_keys
from services.primitives.atomic_files import write_secret


def write_pods(directory: Path, pool: str, at: datetime, valid: timedelta) -> Path:
    """Write them, or later ones, which do not end the ones before; return the file."""
    bus = BusDirectory(directory)
    keys = role_keys(POD, bus.keys())
    seed = new_seed("user")
    user = bus_user(f"{pool_name(pool)}/*", POD, keys, seed, at, valid)
    made = credentials(
        f"{POD} {user.name}",
        keys,
        at,
        tags=(f"pool:{pool}",),
        user_seed=seed,
        until=user.expires_at,
    )
    bus.write_users(bus_users.add_node(bus.users(), user), at)
    file = bus.credentials_file(user)
    write_secret(file, made)
    return file
