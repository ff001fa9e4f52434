"""The keys and the store of the bus that `navarch serve` starts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas import permissions
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, HEALTH_EVENTS, POOLS
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_accounts import Key, new_seed
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.cli.bus_client import user_options
from services.cli.nats_config_files import add_user
from services.cli.served_bus import ServedBus
from services.primitives.clock import SystemClock
from services.primitives.errors import SetupError, Unavailable

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG = timedelta(days=3650)
FACT = "navarch.v1.node.p.n1.event.fault"


def prepare(data: Path, *, is_open: bool = False) -> str:
    """Return what a start does before the server's."""
    return ServedBus(data, is_open).prepare(data / "nats", "tests", NOW)


def secrets(data: Path) -> dict[str, bytes]:
    """Return every key and credentials file."""
    files = (each for each in (data / "bus").rglob("*") if each.is_file())
    return {str(each): each.read_bytes() for each in files if each.name != "accounts.conf"}


def test_keys_are_their_owners_alone_and_kept(tmp_path: Path) -> None:
    """Directories 0700, secrets 0600; a second start changes none of them."""
    prepare(tmp_path)
    before = secrets(tmp_path)
    prepare(tmp_path)

    folders = [tmp_path / "bus", tmp_path / "bus/keys", tmp_path / "bus/creds"]
    assert [0o700] * 3 == [each.stat().st_mode & 0o777 for each in folders]
    assert {0o600} == {Path(each).stat().st_mode & 0o777 for each in before}
    assert before == secrets(tmp_path)


REMEDY = "remove {bus}; the next start then makes new keys, keeps everything that is stored"


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("keys/operator.nk", None, f"operator.nk is lost: restore it .* or {REMEDY}"),
        ("keys/role-metrics.nk", None, f"role-metrics.nk is lost: .*{REMEDY}"),
        ("keys/role-agent.nk", None, f"role-agent.nk is lost: .*{REMEDY}"),
        ("keys/role-metrics.nk", "", f"role-metrics.nk is damaged: .*{REMEDY}"),
        ("keys/account-users.pub", "garbage\n", f"account-users.pub is damaged: .*{REMEDY}"),
        ("keys/role-metrics.nk", "\xff", f"role-metrics.nk is damaged: .*{REMEDY}"),
        ("keys/account-fleet.pub", "OTHER", f"account-fleet.pub is damaged: .*{REMEDY}"),
        ("keys/role-metrics.nk", "OTHER", f"role-metrics.nk is not the key that .*{REMEDY}"),
    ],
)
def test_a_lost_or_damaged_file_is_named_with_the_remedy(
    file: str, content: str | None, text: str, tmp_path: Path
) -> None:
    """One sentence, before anything is started; the remedy works."""
    prepare(tmp_path)
    bus = tmp_path / "bus"
    if content is None:
        (bus / file).unlink()
    else:
        seed = new_seed("account")
        other = Key(seed).public if file.endswith(".pub") else seed
        content = other if content == "OTHER" else content
        (bus / file).write_text(content, encoding="latin-1")
    with pytest.raises(SetupError, match=text.format(bus=bus)) as found:
        prepare(tmp_path)
    assert "\n" not in str(found.value)
    bus.rename(tmp_path / "removed")
    prepare(tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        *("owner.creds", "agent-signing.json", "accounts.conf", "creds/metrics.creds"),
        *("revoker.creds", "revocation.json"),
    ],
)
def test_what_the_keys_determine_is_written_again(file: str, tmp_path: Path) -> None:
    """Lost or damaged: nothing that was given to others depends on it."""
    prepare(tmp_path)
    found = tmp_path / "bus" / file
    before = found.read_text()
    found.write_text("garbage")
    prepare(tmp_path)
    assert before.splitlines()[0] == found.read_text().splitlines()[0]
    found.unlink()
    prepare(tmp_path)
    assert before.splitlines()[0] == found.read_text().splitlines()[0]


async def test_what_is_stored_outlives_the_change_of_accounts(tmp_path: Path) -> None:
    """Open, secured, secured with new keys, open: streams, buckets and durables' positions."""
    moved, sequences, floors = [], [], []
    for name, is_open, new_keys in (
        ("a", True, False),
        ("b", False, False),
        ("c", False, True),
        ("d", True, False),
    ):
        if new_keys:
            (tmp_path / "bus").rename(tmp_path / "lost")
        moved.append(bool(prepare(tmp_path, is_open=is_open)))
        again = prepare(tmp_path, is_open=is_open)
        served = ServedBus(tmp_path, is_open)
        server = EmbeddedServer(tmp_path / "nats", config=served.config, sync=False)
        admin = "" if is_open else str(add_user(tmp_path / "bus", name, "admin", NOW, LONG))
        settings = NatsSettings(url=await server.start(), creds_file=admin)
        bus = await NatsBus.connect(
            ConnectOptions(settings=settings, name="t", inbox_prefix=permissions.inbox("admin"))
        )
        if not sequences:
            await set_up(bus, SystemClock(), replicas=1)
            await bus.put(POOLS, "pool.p", b"kept")
            await bus.publish(FACT, b"{}")
            deliveries = bus.consume(HEALTH_EVENTS)
            await (await anext(deliveries)).ack()
            await deliveries.aclose()
        sequences.append(await bus.publish(FACT, b"{}"))
        entry = await bus.get(POOLS, "pool.p")
        info = await bus.admin(f"CONSUMER.INFO.{EVENTS.name}.{HEALTH_EVENTS.name}", {})
        floors.append(info["ack_floor"]["stream_seq"])
        await bus.close()
        await server.stop()
        assert (entry and entry.value, again) == (b"kept", "")

    assert [False, True, True, True] == moved
    assert [2, 3, 4, 5] == sequences
    assert [1, 1, 1, 1] == floors


def test_streams_of_two_accounts_are_not_mixed(tmp_path: Path) -> None:
    """Neither is dropped without a word."""
    prepare(tmp_path)
    for account in ("$G", "AABC"):
        (tmp_path / "nats/js/jetstream" / account / "streams/EVENTS").mkdir(parents=True)
    with pytest.raises(SetupError, match=r"streams of several accounts \(\$G, AABC\): leave the"):
        prepare(tmp_path)


async def test_another_local_user_is_refused(tmp_path: Path) -> None:
    """The server asks for credentials, which only the owner can read."""
    prepare(tmp_path)
    served = ServedBus(tmp_path, is_open=False)
    server = EmbeddedServer(tmp_path / "nats", config=served.config, sync=False)
    url = await server.start()
    with pytest.raises(Unavailable, match="refuses the login"):
        await NatsBus.connect(user_options(NatsSettings(url=url)), seconds_max=0.5)
    settings = NatsSettings(url=url, creds_file=served.operator_file)
    bus = await NatsBus.connect(user_options(settings))
    is_open = bus.is_open
    await bus.close()
    await server.kill()

    assert not is_open
    assert url in served.command(url)
    assert f"--creds {served.operator_file} --inbox-prefix _INBOX.user.U" in served.command(url)
