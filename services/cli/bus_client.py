"""Connects the command line to a fleet's bus, with a user's credentials."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from schemas.permissions import ADMIN, CLI, OPERATOR, inbox, user_inbox
from schemas.settings import NatsSettings
from services.bus.nats.connection_expiry import expiries, expiring
from services.bus.nats.connection_options import SERVICE, ConnectOptions
from services.bus.nats.credentials_file import name_of, role_and_key
from services.cli.bus_fleet import BusFleet
from services.cli.bus_users import ROLES
from services.primitives.errors import NavarchError, Unavailable

if TYPE_CHECKING:
    from services.bus.nats.archive_bus import ArchiveBus
    from services.bus.nats.nats_bus import NatsBus

B = TypeVar("B", bound="NatsBus")

CONNECT_SECONDS_MAX: Final = 5.0


def user_options(settings: NatsSettings) -> ConnectOptions:
    """How a user of the fleet connects, by the role in its credentials file."""
    options = ConnectOptions(
        settings=settings, name="navarch-cli", inbox_prefix=inbox(CLI), role=OPERATOR
    )
    role, key = role_and_key(settings.creds_file.replace(SERVICE, OPERATOR))
    if role not in ROLES or role == ADMIN:
        return options
    return replace(options, inbox_prefix=user_inbox(key), may_create_consumers=False)


def person(options: ConnectOptions) -> str:
    """The name of the user whose credentials these are; empty: they are no person's."""
    file = options.settings.creds_file.replace(SERVICE, OPERATOR)
    return name_of(file) if role_and_key(file)[0] in ROLES else ""


@asynccontextmanager
async def connect_fleet(settings: NatsSettings) -> AsyncIterator[BusFleet]:
    """Connect to the fleet; raise NavarchError if no server answers."""
    # The trim loads the bus's client without what it does not need.
    import services.runtime.import_trim  # noqa: F401, PLC0415
    from services.bus.nats.nats_bus import NatsBus  # noqa: PLC0415

    async with _connected(NatsBus, settings) as (_, fleet):
        yield fleet


@asynccontextmanager
async def connect_archives(
    settings: NatsSettings,
) -> AsyncIterator[tuple["ArchiveBus", BusFleet]]:
    """Connect as an administrator, who may take out whole streams and put them in."""
    from services.bus.nats.archive_bus import ArchiveBus  # noqa: PLC0415

    async with _connected(ArchiveBus, settings) as found:
        yield found


@asynccontextmanager
async def _connected(kind: type[B], settings: NatsSettings) -> AsyncIterator[tuple[B, BusFleet]]:
    options = user_options(settings)
    try:
        bus = await kind.connect(options, seconds_max=CONNECT_SECONDS_MAX)
    except Unavailable as error:
        # Not before the server refuses them: this clock may be wrong.
        if ended := expiring(expiries(options, None), datetime.now(UTC), 0.0):
            first = ended[0]
            raise NavarchError(f"{error}; {first.about} {first.reason}: {first.remedy}") from error
        raise
    try:
        yield (
            bus,
            BusFleet(
                bus,
                tuple(bus.expiries()),
                settings.expiry_warning,
                user=person(options),
            ),
        )
    finally:
        await bus.close()
