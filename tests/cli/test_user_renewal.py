"""A person's credentials are renewed in time, and nothing is restarted."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.permissions import OPERATOR
from schemas.settings import NatsSettings
from services.bus.nats.nats_bus import NatsBus
from services.cli.bus_client import user_options
from services.cli.bus_users import BusUser
from services.cli.nats_config_files import ACCOUNTS, BusDirectory, add_user, revoke_user
from services.cli.user_renewal import renew_user
from services.primitives.errors import NavarchError
from services.provisioner.removal.user_expiry import KnownUser, endings
from tests.support.secured import nats_config, serving_secured

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


async def test_renewed_credentials_are_accepted_by_the_running_server(tmp_path: Path) -> None:
    """The key is the same, and the accounts of the server are as they were."""
    directory = nats_config(tmp_path / "bus")
    file = add_user(directory, "alice", OPERATOR, NOW - 2 * DAY, DAY)
    async with serving_secured(directory, tmp_path / "nats") as server:
        stated = (directory / ACCOUNTS).read_text()
        found = NatsSettings(url=server.url, creds_file=str(file))
        with pytest.raises(NavarchError, match="refuses the login"):
            await NatsBus.connect(user_options(found), seconds_max=1)
        assert renew_user(directory, "alice", NOW, 365 * DAY) == file
        assert (directory / ACCOUNTS).read_text() == stated
        bus = await NatsBus.connect(user_options(found), seconds_max=20)
        await bus.close()
    [alice] = [each for each in BusDirectory(directory).users() if each.name == "alice"]
    assert (alice.expires_at, alice.state(NOW + 300 * DAY)) == (NOW + 365 * DAY, "valid")


@pytest.mark.parametrize("obstacle", ["unknown", "revoked", "lost"])
def test_what_cannot_be_renewed_is_named(tmp_path: Path, obstacle: str) -> None:
    """A revoked key stays revoked, and a key that is not here cannot be signed again."""
    directory = nats_config(tmp_path / "bus")
    file = add_user(directory, "alice", OPERATOR, NOW, DAY)
    match obstacle:
        case "unknown":
            name, said = "bob", "no person 'bob'"
        case "revoked":
            revoke_user(directory, "alice", NOW)
            name, said = "alice", "alice are revoked"
        case _:
            file.unlink()
            name, said = "alice", "does not hold the key"
    before = BusDirectory(directory).users()
    with pytest.raises(NavarchError, match=said):
        renew_user(directory, name, NOW, DAY)
    assert BusDirectory(directory).users() == before


def test_people_whose_credentials_end_are_reported_once_and_until_they_are_renewed() -> None:
    """Later credentials, revoked ones and those of nodes, whose agents report them, are not."""

    def user(name: str, days: float, role: str = "operator", *, revoked: bool = False) -> KnownUser:
        at = NOW + days * DAY
        return KnownUser(name=name, role=role, expires_at=at, revoked_at=NOW if revoked else None)

    users = [
        *(user("alice", 20), user("bob", 20), user("bob", 300)),
        *(user("carol", 20, revoked=True), user("training/n7", 20, "agent"), user("dora", -1)),
    ]
    found = {each.what: each.at for each in endings(users, NOW)}
    assert found == {
        "the credentials of alice (operator)": NOW + 20 * DAY,
        "the credentials of bob (operator)": NOW + 300 * DAY,
    }


def test_what_is_read_of_a_user_is_what_is_written() -> None:
    """The provisioner reads the file of another program by a type of its own."""
    assert set(KnownUser.__struct_fields__) <= set(BusUser.__struct_fields__)
