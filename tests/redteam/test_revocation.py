"""Credentials of a terminated node are refused within seconds, by a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_disconnections import ReadmitRequest
from schemas.node_events import BusAccess, node_codec
from schemas.saga_params import LaunchSpec
from schemas.settings import NatsSettings
from schemas.stream_specs import MESSAGE_BYTES_MAX
from schemas.topology import EVENTS
from services.bus.nats.account_updates import read_account, replace_accounts, revoker_options
from services.bus.nats.credentials_file import CREDENTIALS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_accounts import (
    REVOKER,
    Key,
    agent_token,
    new_seed,
    read_agent_keys,
    with_revocations,
)
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Headers
from services.bus.protocol.endpoint_replies import reply_data
from services.cli.nats_config_files import ACCOUNTS, REVOCATION_FILE, SIGNING_FILE, write_accounts
from services.notifier import flood_watch
from services.notifier.flood_watch import FloodWatch
from services.primitives.clock import SystemClock
from services.primitives.errors import LoginRefused, Unavailable
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.removal import credentials_revoker
from services.provisioner.removal.credentials_revoker import (
    REVOCATIONS_MAX,
    NodeDisconnector,
    Revoker,
    merge,
    revoked_until,
)
from services.runtime.failure_register import FailureRegister
from tests.support.inprocess import eventually
from tests.support.secured import Secured, nats_config, serving_secured
from tests.support.settling import arriving, without_shares

DAY = 86_400.0
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
AT = NOW.timestamp()


def instance(node: str, key: str) -> InstanceRecord:
    """Return the record of a running node."""
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="t")
    made = instance_decisions.intended_record("training", node, launch, "", datetime.now(UTC))
    return replace(made, state="running", agent_key=key)


def terminated(record: InstanceRecord) -> InstanceRecord:
    """The same, when its absence is confirmed."""
    return replace(record, state="terminated", terminated_at=datetime.now(UTC))


class Place:
    """A secured server, two nodes, and a provisioner that may revoke."""

    def __init__(self, secured: Secured, bus: NatsBus, directory: Path) -> None:
        self.secured = secured
        self.bus = bus
        self.store = InstanceStore(bus)
        self.directory = directory
        self.failures = FailureRegister(CollectorRegistry())

    async def enrolled(self, node: str) -> ConnectOptions:
        """Return the connect options of a node that was given credentials."""
        key = Key(new_seed("user"))
        keys = read_agent_keys(self.secured.directory / SIGNING_FILE)
        now = datetime.now(UTC)
        token = agent_token(keys, "training", node, key.public, now, now + timedelta(days=1))
        file = self.directory / f"{node}.creds"
        file.write_text(CREDENTIALS.format(token=token, seed=key.seed))
        await self.store.create(instance(node, key.public))
        return self.secured.options(f"agent:training/{node}", file)

    async def terminate(self, node: str) -> None:
        """Record that its instance is gone."""
        await self.store.change(f"training.{node}", lambda each: each and terminated(each))

    @contextmanager
    def provisioner(self, file: Path | None = None) -> Iterator[None]:
        """Let a provisioner run; `file`: which it reads in place of the bus's own."""
        file = file or self.secured.directory / REVOCATION_FILE
        settings = NatsSettings(url=self.secured.url, revocation_file=str(file))
        revoker = Revoker(self.bus, SystemClock(), settings, DAY, self.failures)
        running = asyncio.create_task(revoker.run())
        try:
            yield
        finally:
            running.cancel()

    async def refused(self, options: ConnectOptions) -> bool:
        """Return whether the server refuses a new connection; a busy machine may answer late."""
        async with asyncio.timeout(20):
            while True:
                try:
                    bus = await NatsBus.connect(options, seconds_max=0.5)
                except LoginRefused:
                    return True
                except Unavailable:
                    continue
                await bus.close()
                return False


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Yield a secured server, with the provisioner's connection to it."""
    directory = nats_config(tmp_path / "bus")
    async with serving_secured(directory, tmp_path / "nats") as secured:
        bus = await NatsBus.connect(secured.options("provisioner"))
        yield Place(secured, bus, tmp_path)
        await bus.close()


async def test_a_terminated_nodes_connection_ends_and_others_go_on(place: Place) -> None:
    """New connections with the node's credentials, which may have been copied, are refused too."""
    options = {node: await place.enrolled(node) for node in ("n1", "n2")}
    buses = {node: await NatsBus.connect(each) for node, each in options.items()}
    with place.provisioner():
        await place.terminate("n1")
        async with asyncio.timeout(10):
            while buses["n1"].connected:
                await asyncio.sleep(0.01)
        assert await place.refused(options["n1"])
        subject = subjects.node_event("training", "n2", "fault")
        assert await buses["n2"].publish(subject, b"{}")
    for each in buses.values():
        await each.close()


async def test_a_replaced_revocation_file_needs_no_restart(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old key is refused after `rotate operator-key`; missed revocations are made up for."""
    monkeypatch.setattr(credentials_revoker, "CHECK_SECONDS", 0.2)
    good = place.secured.directory / REVOCATION_FILE
    file = place.directory / REVOCATION_FILE
    old = replace(read_agent_keys(good), seed=new_seed("operator"))
    file.write_bytes(encode(old))
    copy(good.with_name(f"{REVOKER}.creds"), file.parent)
    options = [await place.enrolled(node) for node in ("n1", "n2", "n3")]
    with place.provisioner(file):
        await place.terminate("n1")
        await logged(caplog, "does not trust key")
        file.write_bytes(b"{")  # half of it is copied
        await place.terminate("n2")
        await logged(caplog, "was replaced, and cannot be used")
        copy(good, file)
        await place.terminate("n3")
        async with asyncio.timeout(60):
            while not all([await place.refused(each) for each in options]):
                await asyncio.sleep(0.05)


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait for a line of the log."""
    async with asyncio.timeout(10):
        while text not in caplog.text:
            await asyncio.sleep(0.01)


async def ended(bus: NatsBus) -> None:
    """Wait for the end of a connection."""
    async with asyncio.timeout(10):
        while bus.connected:
            await asyncio.sleep(0.01)


async def test_a_flooding_node_is_disconnected_until_an_operator_readmits_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of facts ends a node's connection until it is readmitted; another node goes on."""
    monkeypatch.setattr(flood_watch, "GROWTH_MIN", 1)
    monkeypatch.setattr(flood_watch, "EXCESS_MAX", 20.0)
    monkeypatch.setattr(flood_watch, "FACTS_PER_SECOND_MAX", 0.1)
    options = {node: await place.enrolled(node) for node in ("n1", "n2")}
    buses = {node: await NatsBus.connect(each) for node, each in options.items()}
    notifier = await NatsBus.connect(place.secured.options("notifier"))
    operator = await NatsBus.connect(place.secured.options("operator"))
    admin = await NatsBus.connect(place.secured.options("admin"))
    await without_shares(admin)
    watch = FloodWatch(notifier, SystemClock())

    async def flood() -> list[str]:
        subject = subjects.node_event("training", "n1", "fault")
        for number in range(30):
            await buses["n1"].publish(subject, b"%d" % number)
        await arriving(admin)
        shown = await watch.look(0, await notifier.last_sequence(EVENTS.name))
        return [each.reason for each in shown]

    # Without revocation it is a report that says so.
    alone = NodeDisconnector(place.bus, SystemClock(), place.store, can_revoke=False)
    able = NodeDisconnector(place.bus, SystemClock(), place.store, can_revoke=True)
    current = [alone]

    async def disconnect(data: bytes, headers: Headers) -> bytes:
        return await current[0].endpoints[subjects.query("disconnect-node")](data, headers)

    readmit = subjects.order_wildcard("readmit")
    endpoints = {
        subjects.query("disconnect-node"): disconnect,
        readmit: able.endpoints[readmit],
    }
    await place.bus.serve("provisioner", "", endpoints)
    with place.provisioner():
        reports = [await flood() for _ in range(4)]
        assert reports[:3] == [[]] * 3
        assert "not disconnected: the provisioner cannot revoke credentials" in reports[3][0]
        assert buses["n1"].connected
        current[0] = able
        assert await flood() == []
        await ended(buses["n1"])
        assert await place.refused(options["n1"])
        assert buses["n2"].connected
        (failure,) = place.failures.current
        assert (failure.failure, failure.about) == ("node-disconnected", "node n1")
        order = encode(ReadmitRequest(pool="training", node="n1"))
        subject = subjects.order("readmit", "operator")
        reply_data(await operator.request(subject, order, timeout_seconds=30))

        async def back() -> bool:
            return not await place.refused(options["n1"])

        await eventually(back, within_seconds=10)
        record = await place.store.get("training.n1")
        assert place.failures.current == ()
    events = await place.bus.read(EVENTS.name, "navarch.v1.node.training.n1.event.*")
    found = [node_codec.decode(each.data) for each in events if each.data.startswith(b'{"type"')]
    for each in (*buses.values(), notifier, operator, admin):
        await each.close()

    assert record is not None
    assert record.disconnected_at is None
    assert [("", True), ("operator", False)] == [
        (each.by, each.refused) for each in found if isinstance(each, BusAccess)
    ]


async def test_a_node_whose_key_was_revoked_by_mistake_is_reported_and_not_lost(
    place: Place,
) -> None:
    """A rollback of INSTANCES to before a node was readmitted has this effect."""
    options = await place.enrolled("n1")
    record = await place.store.get("training.n1")
    assert record is not None
    keys = read_agent_keys(place.secured.directory / REVOCATION_FILE)
    settings = NatsSettings(url=place.secured.url)
    server = await NatsBus.connect(revoker_options(settings, place.secured.directory))
    token = await read_account(server, keys.account)
    revoked = {record.agent_key: int(datetime.now(UTC).timestamp() + DAY)}
    await replace_accounts(server, [with_revocations(keys, token, revoked)])
    await server.close()
    with place.provisioner():

        async def reported() -> bool:
            return bool(place.failures.current)

        await eventually(reported, within_seconds=30)
        (failure,) = place.failures.current
        found = await place.store.get("training.n1")

    assert await place.refused(options)
    assert "no record says why" in failure.reason
    assert found is not None
    assert found.disconnected_at is not None


async def test_what_terminated_while_no_provisioner_ran_is_revoked_by_the_next(
    place: Place,
) -> None:
    """Each server keeps it over a restart, and where its configuration is written again."""
    options = await place.enrolled("n1")
    await place.terminate("n1")
    assert not await place.refused(options)
    with place.provisioner():

        async def revoked() -> bool:
            return await place.refused(options)

        await eventually(revoked)
    server: EmbeddedServer = place.secured.server
    write_accounts(place.secured.directory, "tests", datetime.now(UTC))
    await server.restart()

    assert await place.refused(options)


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 200)),
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 200)),
    st.floats(0, 200),
)
def test_a_revoked_key_stays_until_its_credentials_have_expired(
    current: dict[str, int], gone: dict[str, float], now: float
) -> None:
    """A key listed by the server or INSTANCES is removed after that, so the list is bounded."""
    found = merge(current, gone, now)

    assert all(until > now for until in found.values())
    assert found.keys() >= {key for key, until in current.items() if until > now} - gone.keys()
    assert found.keys() >= {key for key, until in gone.items() if int(until) > now}
    assert found == merge(found, gone, now)
    assert set(gone) >= merge(current, gone, now, set(current)).keys()


def test_ten_thousand_terminated_nodes_fit_the_accounts_token(tmp_path: Path) -> None:
    """The server takes no larger message; a day later the list is empty."""
    directory = write_accounts(tmp_path, "tests", NOW).path
    keys = read_agent_keys(directory / REVOCATION_FILE)
    lines = (directory / ACCOUNTS).read_text().splitlines()
    token = next(each.split()[1] for each in lines if each.strip().startswith(keys.account))
    gone = {f"U{number:055}": AT + DAY for number in range(REVOCATIONS_MAX + 100)}
    wanted = merge({}, gone, AT)
    made = with_revocations(keys, token, wanted)

    assert REVOCATIONS_MAX == len(wanted)
    assert len(made) < MESSAGE_BYTES_MAX
    assert {} == merge(wanted, {}, AT + DAY)
    assert token != with_revocations(keys, made, {})


@pytest.mark.parametrize(
    ("state", "key", "revoked"),
    [
        ("terminated", "U" + "A" * 55, True),
        ("terminated", "", False),
        ("running", "U" + "A" * 55, False),
        ("terminating", "U" + "A" * 55, False),
        ("disconnected", "U" + "A" * 55, True),
    ],
)
def test_only_what_is_gone_is_revoked(state: str, key: str, *, revoked: bool) -> None:
    """The key is revoked until its last credentials have expired, and an hour, as clocks differ."""
    record = replace(instance("n1", key), state=state, terminated_at=NOW)
    if state == "disconnected":
        record = replace(record, state="running", disconnected_at=NOW)

    assert (AT + DAY + 3600 if revoked else 0.0) == revoked_until(record, DAY)
