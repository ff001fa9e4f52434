"""A malformed answer of a service is one sentence of the command, and never a traceback."""

import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from schemas.fleet_queries import Page, Query
from schemas.messages import encode
from services.bus.port import Entry, Reply
from services.cli import __main__
from services.cli.bus_client import BusFleet
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import AnswerError
from tests.redteam.hostile import HOSTILE, UNSAFE

MALFORMED: Final = {
    "nothing": b"",
    "not JSON": b"<html>502 Bad Gateway</html>",
    "not UTF-8": b'{"items": "\xff"}',
    "another type": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "another shape": b'{"items": 7, "id": 7, "desired": "x", "lines": 1, "verb": 2}',
    "items of another shape": b'{"items": [7, null, {"id": {"a": 1}, "name": [], "pool": 3}]}',
    "hostile names": b'{"items": [{"id": "../x", "name": "../x", "instance": "../x\\n"}]}',
    "deep": b'{"items": ' + b"[" * 100_000,
    "hostile fields": encode(Page()).replace(b"items", "it\u202eems\x1b".encode()),
}

NOW: Final = datetime(2026, 11, 29, tzinfo=UTC)


class Liar:
    """A bus on which everything is answered with the same bytes."""

    def __init__(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Answer with these."""
        self.reply = Reply(data, headers or {})

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> Reply:
        """Return the given reply to every request."""
        del subject, data, timeout_seconds
        return self.reply

    async def request_all(self, *_: object) -> list[bytes]:
        """Answer as several replicas."""
        return [self.reply.data] * 2

    async def entries(self, *_: object) -> list[Entry]:
        """Have an entry of these bytes in every bucket."""
        return [Entry("k", self.reply.data, 1, NOW)]

    async def close(self) -> None:
        """Nothing to close."""


COMMANDS: Final = (
    ("status",),
    ("list",),
    ("get", "n1"),
    ("instances",),
    ("leaked",),
    ("offerings",),
    ("sweep", "--dry-run"),
    ("hardware", "list"),
    ("breaker", "show"),
    ("drain", "n1", "--dry-run"),
    ("cordon", "n1"),
    ("ssh", "n1"),
    ("list", "-o", "json"),
    ("get", "n1", "-o", "json"),
    ("hardware", "list", "-o", "json"),
    ("drain", "n1", "--dry-run", "-o", "json"),
    ("sweep", "--dry-run", "-o", "json"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_is_one_sentence(
    command: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 1, and which query, which service and what to do."""

    @asynccontextmanager
    async def connect(_: Any) -> Any:
        yield BusFleet(Liar(MALFORMED[name]))  # type: ignore[arg-type]

    monkeypatch.setattr("services.cli.fleet_connection.connect_fleet", connect)
    monkeypatch.setattr("services.cli.commands.ssh_command.connect_fleet", connect)
    monkeypatch.setattr(sys, "argv", ["navarch", *command, "--nats-url", "nats://127.0.0.1:1"])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    printed = capsys.readouterr()
    assert 1 == ended.value.code
    assert "Traceback" not in printed.err
    assert 1 == len(printed.err.splitlines())
    assert "answered the query" in printed.err
    assert "nats micro ls" in printed.err
    assert any(each in printed.err for each in ("pool-manager", "provisioner"))
    assert not UNSAFE.search(printed.err + printed.out)


@pytest.mark.parametrize("name", HOSTILE)
async def test_the_reason_of_a_refused_query_is_escaped(name: str) -> None:
    """A service's error text is one line."""
    bus = Liar(b"", {"Nats-Service-Error": HOSTILE[name]})
    with pytest.raises(AnswerError) as raised:
        await FleetClient(bus).pages("nodes", Query())  # type: ignore[arg-type]
    assert str(raised.value).isprintable()
