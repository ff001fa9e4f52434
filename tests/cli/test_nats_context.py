"""The command `navarch nats-context` writes what the `nats` command needs, for its user alone."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.permissions import OPERATOR, user_inbox
from services.bus.nats.credentials_file import role_and_key, seed_in
from services.cli.commands.nats_context_command import nats_context
from services.cli.nats_config_files import add_user
from services.primitives.errors import NavarchError
from tests.support.secured import nats_config

URL = "nats://10.0.0.1:4222"


@pytest.fixture
def creds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an operator's credentials, and a home of the `nats` command."""
    directory = nats_config(tmp_path / "bus")
    found = add_user(directory, "alice", OPERATOR, datetime.now(UTC), timedelta(days=1))
    monkeypatch.setenv("NAVARCH_NATS_CREDS_FILE", str(found))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NAVARCH_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_context_names_the_file_so_that_renewed_credentials_are_used(
    creds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only its owner may read it, and the output names the end of a request's subject."""
    nats_context("mine", nats_url=URL)
    file = tmp_path / "config/nats/context/mine.json"
    found = json.loads(file.read_text())
    assert (found["url"], found["creds"]) == (URL, str(creds))
    assert found["inbox_prefix"] == user_inbox(role_and_key(str(creds))[1])
    assert file.stat().st_mode & 0o077 == 0
    assert "request.scale.alice" in capsys.readouterr().out


def test_a_printed_context_has_the_credentials_in_it(
    creds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Containers have files that the host does not have, and another address of the bus."""
    nats_context(url="nats://127.0.0.1:4222", printed=True, nats_url=URL)
    found = json.loads(capsys.readouterr().out)
    assert (found["url"], found["user_seed"]) == (
        "nats://127.0.0.1:4222",
        seed_in(creds.read_text()),
    )
    assert found["user_jwt"] in creds.read_text()
    assert not (tmp_path / "config").exists()


def test_a_name_that_leads_elsewhere_is_refused(creds: Path) -> None:
    """The name becomes the name of a file."""
    assert creds
    with pytest.raises(NavarchError, match="cannot name a context"):
        nats_context("../x", nats_url=URL)
