"""A node gets the certificate authorities of the bus with its credentials."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from agent.enrollment import renew
from agent.settings import AgentConfig
from schemas.agent_commands import EnrollAnswer
from schemas.messages import encode
from services.bus.nats.credentials_file import CREDENTIALS
from services.bus.nats.nats_accounts import new_seed
from services.bus.port import Bus, Reply
from services.cli.certificates import new_authority, new_key

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
BOTH = "".join(new_authority("tests", new_key(), NOW) for _ in range(2))


class Provisioner:
    """Answers each request for credentials with these authorities."""

    def __init__(self, authority: str) -> None:
        self.authority = authority

    async def request(self, *_: object, **__: Any) -> Reply:
        """Answer with a token and the authorities."""
        return Reply(encode(EnrollAnswer(token="t.t.t", authority=self.authority)), {})


@pytest.mark.parametrize(
    ("sent", "kept"), [(BOTH, BOTH), ("", "old"), (BOTH.replace("MII", "???"), "old")]
)
async def test_the_authorities_are_replaced_by_those_of_the_provisioner(
    tmp_path: Path, sent: str, kept: str
) -> None:
    """Every agent thus knows a new authority; what is no certificate replaces nothing."""
    file, own = tmp_path / "bus-ca.pem", tmp_path / "nats.creds"
    file.write_text("old")
    own.write_text(CREDENTIALS.format(token="a.a.a", seed=new_seed("user")))
    config = AgentConfig(pool="p", node="n1", nats_creds_file=str(own), nats_tls_ca_file=str(file))
    await renew(config, cast("Bus", Provisioner(sent)))

    assert kept == file.read_text()
    assert "t.t.t" in own.read_text()


async def test_authorities_that_cannot_be_written_do_not_keep_credentials_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged: the node works until the old authority is refused."""
    own = tmp_path / "nats.creds"
    own.write_text(CREDENTIALS.format(token="a.a.a", seed=new_seed("user")))
    missing = str(tmp_path / "missing/bus-ca.pem")
    config = AgentConfig(pool="p", node="n1", nats_creds_file=str(own), nats_tls_ca_file=missing)
    await renew(config, cast("Bus", Provisioner(BOTH)))

    assert "t.t.t" in own.read_text()
    assert "keeps the old" in caplog.text
