"""Keys of a running bus are replaced: nothing is lost, and the old ones are refused at the end."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from schemas.permissions import rules
from services.bus.nats.account_updates import UntrustedKeyError
from services.bus.nats.credentials_file import claims_of, claims_of_token
from services.bus.nats.nats_accounts import CLAIMS_UPDATE, SERVERS_STATE, Key, role_key
from services.bus.port import Reply
from services.cli import certificates, key_rotation, nats_config_files
from services.cli.bus_certificates import AUTHORITY, CERTIFICATE, SERVER, BusCertificates
from services.cli.bus_keys import PRELOADED, ROTATIONS, KeyFiles, operators_of, stated_keys
from services.cli.key_rotation import push_to
from services.cli.nats_config_files import ACCOUNTS, add_user, write_accounts
from services.primitives.errors import NavarchError

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


class Servers:
    """Answers the system account's user as a nats-server does, with its trust and its storage."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trusted: list[str] = []
        self.tokens: dict[str, str] = {}
        self.connections: list[dict[str, object]] = []
        self.answers_left = 1_000
        self.restart()

    def restart(self) -> None:
        """Read accounts.conf, and take those of its tokens that are newer."""
        text = (self.directory / ACCOUNTS).read_text()
        self.trusted = operators_of(text)
        for account, token in PRELOADED.findall(text):
            found = self.tokens.get(account, "")
            if not found or claims_of_token(found)["iat"] <= claims_of_token(token)["iat"]:
                self.tokens[account] = token
        signers = {claims_of_token(each)["iss"] for each in self.tokens.values()}
        assert signers <= self.signers(), "an account is lost"

    def signers(self) -> set[str]:
        """The operator's keys that it accepts."""
        claims = [claims_of_token(each) for each in self.trusted]
        return {key for each in claims for key in (each["sub"], *each["nats"]["signing_keys"])}

    def accepted(self) -> set[str]:
        """The keys whose users it lets in."""
        scopes = [claims_of_token(each)["nats"]["signing_keys"] for each in self.tokens.values()]
        return {each["key"] for found in scopes for each in found}

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> Reply:
        """Answer about an account's token."""
        del timeout_seconds
        self.answers_left -= 1
        if self.answers_left < 0:
            raise InterruptedError
        if subject != CLAIMS_UPDATE:
            return Reply(self.tokens.get(subject.split(".")[3], "").encode(), {})
        self.tokens[claims_of_token(data.decode())["sub"]] = data.decode()
        return Reply(b'{"code":200}', {})

    async def request_all(self, subject: str, data: bytes, silence_seconds: float) -> list[bytes]:
        """Answer about the server itself, and who is connected."""
        del data, silence_seconds
        found: dict[str, object] = {"connections": self.connections}
        if subject == SERVERS_STATE:
            found = {"trusted_operators_claim": [claims_of_token(each) for each in self.trusted]}
        return [msgspec.json.encode({"server": {"name": "n1"}, "data": found})]


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    """Return a server with a new fleet's accounts."""
    write_accounts(tmp_path / "bus", "tests", NOW)
    return Servers(tmp_path / "bus")


def public(directory: Path, name: str) -> str:
    """The key that signs now."""
    return Key((directory / "keys" / f"{name}.nk").read_text().strip()).public


async def begin(servers: Servers, what: str) -> list[Path]:
    """The first step, with the restart that it asks for."""
    try:
        return await key_rotation.begin(servers, servers.directory, what, LATER)
    except UntrustedKeyError:
        servers.restart()
        return await key_rotation.begin(servers, servers.directory, what, LATER)


async def finish(servers: Servers, what: str, *, is_forced: bool = False) -> None:
    """Run the second step of a rotation."""
    await key_rotation.finish(servers, servers.directory, what, LATER, is_forced=is_forced)


@pytest.mark.parametrize("what", ROTATIONS)
async def test_both_keys_are_accepted_between_the_steps_and_the_new_one_afterwards(
    servers: Servers, what: str
) -> None:
    """Each key is rotated in two steps; a second run of a step changes nothing."""
    directory = servers.directory
    old = {public(directory, name) for name in ROTATIONS[what]}
    others = (servers.accepted() | servers.signers()) - old
    for _ in range(2):
        await begin(servers, what)
        new = {public(directory, name) for name in ROTATIONS[what]}
        assert not old & new
        assert servers.accepted() | servers.signers() == others | old | new
    for _ in range(2):
        await finish(servers, what)
        servers.restart()
        assert servers.accepted() | servers.signers() == others | new
    for file in (*directory.glob("creds/*.creds"), directory / "revoker.creds"):
        assert claims_of(file.read_text())["iss"] in servers.accepted()
    assert [] == list(directory.glob("keys/*.old"))


def files_of(directory: Path) -> dict[Path, bytes]:
    """Return every file below a folder, with its content."""
    return {each: each.read_bytes() for each in directory.rglob("*") if each.is_file()}


@contextmanager
def restored(directory: Path, files: dict[Path, bytes]) -> Iterator[None]:
    """The directory as it was, with these files."""
    shutil.rmtree(directory)
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    yield


@pytest.mark.parametrize("what", ["metrics", "operator-key"])
async def test_a_rotation_that_is_interrupted_anywhere_is_completed_by_the_next_run(
    tmp_path: Path, what: str
) -> None:
    """A rotation is completed after an interruption at any file or token.

    The server keeps every account over a restart meanwhile.
    """
    directory = write_accounts(tmp_path / "bus", "tests", NOW).path
    before = files_of(directory)
    old = {public(directory, name) for name in ROTATIONS[what]}
    servers = Servers(directory)
    await begin(servers, what)
    after = files_of(directory)
    changed = [each for each in after if before.get(each) != after[each]]
    written = sorted(changed, key=lambda each: each.stat().st_mtime_ns)
    for count in range(len(written) + 1):
        for answers in (0, 3):
            part = before | {file: after[file] for file in written[:count]}
            with restored(directory, before):
                servers = Servers(directory)
            with restored(directory, part):
                servers.answers_left = answers
                with suppress(InterruptedError):
                    await begin(servers, what)
                servers.answers_left = 1_000
                servers.restart()
                await begin(servers, what)
                assert old <= servers.accepted() | servers.signers(), (count, answers)
                await finish(servers, what)
                servers.restart()
                assert not old & (servers.accepted() | servers.signers())


@pytest.mark.parametrize("what", ["agents", "operator-key"])
async def test_an_interrupted_end_is_completed_by_the_next_run(servers: Servers, what: str) -> None:
    """Some of the keys retired, some of the accounts pushed."""
    old = {public(servers.directory, name) for name in ROTATIONS[what]}
    await begin(servers, what)
    (servers.directory / "keys" / f"{ROTATIONS[what][0]}.old").unlink()
    for answers in range(8):
        servers.answers_left = answers
        with suppress(InterruptedError):
            await finish(servers, what)
        servers.restart()
    servers.answers_left = 1_000
    await finish(servers, what)
    servers.restart()

    assert not old & (servers.accepted() | servers.signers())


async def test_the_operator_is_not_dropped_before_the_servers_have_the_new_one(
    servers: Servers,
) -> None:
    """Not even by force: at their restart they would have no accounts."""
    await begin(servers, "agents")
    with pytest.raises(UntrustedKeyError):
        await key_rotation.begin(servers, servers.directory, "operator-key", LATER)
    for restarts, problem in (
        (False, "nats-server n1 .*restart it"),
        (True, "SYS is of the old operator: .* again"),
    ):
        if restarts:
            servers.restart()
        with pytest.raises(NavarchError, match=problem):
            await finish(servers, "operator-key", is_forced=True)
    await begin(servers, "operator-key")
    await finish(servers, "operator-key")
    servers.restart()


async def test_what_uses_the_old_key_is_named_and_keeps_it(servers: Servers) -> None:
    """Connections by what their tokens say, people by name; --force ends them."""
    directory = servers.directory
    add_user(directory, "alice", "viewer", NOW, timedelta(days=90))
    used = {name: public(directory, role_key(name)) for name in ("metrics", "agent", "viewer")}
    servers.connections = [
        {"issuer_key": used["metrics"], "ip": "10.0.0.1", "tags": ["role:metrics"]},
        {"issuer_key": used["agent"], "ip": "\x1b[2J", "tags": ["pool:p", "node:n1"]},
    ]
    for what, named in (
        ("metrics", "metrics at 10.0.0.1"),
        ("agents", r"agent p/n1 at \\u001b"),
        ("viewer", "alice's credentials"),
    ):
        await begin(servers, what)
        with pytest.raises(key_rotation.OldKeyInUseError, match=named):
            await finish(servers, what)
        before = servers.accepted()
        await finish(servers, what, is_forced=True)
        assert before - servers.accepted()


@pytest.mark.parametrize("name", ["role-metrics", "operator", "role-revoker", "role-agent"])
async def test_a_lost_key_is_not_silently_another_and_can_be_replaced(
    servers: Servers, name: str
) -> None:
    """The accounts stay, and so does what is stored in them; what the lost key signed goes on."""
    directory = servers.directory
    accounts = set(servers.tokens)
    lost = public(directory, name)
    (directory / "keys" / f"{name}.nk").unlink()
    what = next(what for what, names in ROTATIONS.items() if name in names)
    with pytest.raises(NavarchError, match=f"{name}.nk is lost: .*rotate {what}"):
        write_accounts(directory, "tests", LATER)
    await begin(servers, what)

    assert lost in servers.accepted() | servers.signers()
    await finish(servers, what)
    servers.restart()
    assert lost not in servers.accepted() | servers.signers()
    assert accounts == set(servers.tokens)


async def test_all_keys_lost_leave_the_accounts(servers: Servers) -> None:
    """accounts.conf states what they are: another key for each is accepted beside them."""
    accounts = set(servers.tokens)
    shutil.rmtree(servers.directory / "keys")
    (servers.directory / "keys").mkdir()
    await begin(servers, "all")

    assert accounts == set(servers.tokens)
    assert 2 * len(rules()) + 2 == len(servers.accepted())
    await finish(servers, "all")
    servers.restart()
    assert len(rules()) + 1 == len(servers.accepted())


async def test_a_key_of_a_backup_is_refused(servers: Servers) -> None:
    """An old seed would take the place of the new one, and an old list accept a stolen key."""
    directory = servers.directory
    before = files_of(directory)
    await begin(servers, "metrics")
    between = files_of(directory)
    await finish(servers, "metrics")
    seed, old = (directory / "keys" / f"role-metrics.{each}" for each in ("nk", "old"))
    new = seed.read_bytes()
    seed.write_bytes(before[seed])
    with pytest.raises(NavarchError, match=r"role-metrics.nk is not the key .* states: restore"):
        write_accounts(directory, "tests", LATER)
    seed.write_bytes(new)
    old.write_bytes(between[old])
    with pytest.raises(NavarchError, match=r"left from an earlier rotation; remove it"):
        write_accounts(directory, "tests", LATER)
    old.unlink()
    write_accounts(directory, "tests", LATER)


async def test_a_lost_accounts_conf_is_written_again_from_the_keys(servers: Servers) -> None:
    """While the operator is replaced it cannot be: it has the token of the one before."""
    file = servers.directory / ACCOUNTS
    accounts, accepted = set(servers.tokens), servers.accepted()
    file.unlink()
    write_accounts(servers.directory, "tests", LATER)
    servers.restart()
    assert (accounts, accepted) == (set(servers.tokens), servers.accepted())
    await begin(servers, "operator-key")
    file.unlink()
    with pytest.raises(NavarchError, match=r"lacks operator O.*: restore it"):
        write_accounts(servers.directory, "tests", LATER)


def test_an_authority_is_replaced_whatever_is_interrupted(tmp_path: Path) -> None:
    """The next run completes either step after each file; a second run changes nothing."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "tls").mkdir()
    hosts = ["a.example", "10.0.0.1"]
    made = BusCertificates(tmp_path)
    with pytest.raises(NavarchError, match="without TLS"):
        made.begin("tests", NOW)
    made.write("tests", {SERVER: hosts}, NOW)
    accepted, server = tmp_path / AUTHORITY, tmp_path / CERTIFICATE
    old = accepted.read_text()
    states = [files_of(tmp_path)]
    for step in (lambda: made.begin("tests", LATER), lambda: made.finish(LATER)):
        before = files_of(tmp_path)
        step()
        after = files_of(tmp_path)
        changed = [each for each in after if before.get(each) != after[each]]
        for count in range(1, len(changed) + 1):
            parts = sorted(changed, key=lambda each: each.stat().st_mtime_ns)[:count]
            # A file that was removed was renamed, which is the second step's first change.
            kept = {each: text for each, text in before.items() if each in after}
            states.append(kept | {each: after[each] for each in parts})
    assert 6 == len(states)
    for state in states:
        with restored(tmp_path, state):
            if made.is_under_way or state == states[0]:
                with suppress(NavarchError):  # its end was interrupted
                    made.begin("tests", LATER)
                assert old in accepted.read_text()
                assert certificates.is_issued_by(server.read_text(), accepted.read_text())
                made.finish(LATER)
            assert 1 == certificates.count(accepted.read_text())
            assert old != accepted.read_text()
            assert certificates.is_current(server.read_text(), accepted.read_text(), hosts, LATER)
            made.finish(LATER)
            made.write_client("alice", LATER)


def test_a_lost_key_of_the_authority_is_named(tmp_path: Path) -> None:
    """A lost key is named, and a rotation replaces it; the server's certificate stays accepted."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "tls").mkdir()
    made = BusCertificates(tmp_path)
    made.write("tests", {SERVER: ["a.example"]}, NOW)
    (tmp_path / "keys/ca.key").unlink()
    made.write("tests", {SERVER: ["a.example"]}, LATER)
    for problem in (
        lambda: made.write("tests", {SERVER: ["b.example"]}, LATER),
        lambda: made.write_client("alice", LATER),
    ):
        with pytest.raises(NavarchError, match=r"ca.key is lost: .* rotate authority"):
            problem()
    made.begin("tests", LATER)
    made.finish(LATER)
    made.write("tests", {SERVER: ["b.example"]}, LATER)


def test_no_seed_of_an_account_is_kept(servers: Servers) -> None:
    """A seed of an account would permit anything in it, and could change only with the account."""
    stated = stated_keys((servers.directory / ACCOUNTS).read_text())
    keys = KeyFiles(servers.directory / "keys", stated).read()
    publics = {Key(each).public for each in keys.seeds.values()}

    assert not publics & set(keys.accounts.values())
    assert set(keys.accounts.values()) == set(servers.tokens)


async def test_an_account_that_is_new_is_pushed_before_those_that_name_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for unknown accounts, as when an upgrade gave services one of their own."""
    monkeypatch.setattr(nats_config_files, "shares", list)
    write_accounts(servers.directory, "tests", LATER)
    servers.tokens.clear()
    servers.restart()
    monkeypatch.undo()
    write_accounts(servers.directory, "tests", LATER + timedelta(days=1))
    (services,) = stated_keys((servers.directory / ACCOUNTS).read_text())["account-services"]
    del servers.tokens[services]
    pushed = await push_to(servers, servers.directory, LATER)

    assert "tests-services" == pushed[0]
    assert {"tests-fleet", "tests-agents", "tests-users"} <= set(pushed)
