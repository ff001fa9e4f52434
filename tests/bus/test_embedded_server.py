"""The nats-server of `navarch serve` and of the tests: how its start and its end are bounded."""

import os
from pathlib import Path

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.primitives.errors import SetupError


async def test_a_server_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    """The start fails with a sentence that names the log, and leaves no process behind."""
    never = ("sh", "-c", "exec tail -f /dev/null", "sh")
    server = EmbeddedServer(tmp_path, through=never, ready_seconds_max=0.2)

    with pytest.raises(SetupError, match=r"not answered within 0\.2 s.*nats-server\.log"):
        await server.start()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


async def test_a_server_that_ends_is_tried_again_on_another_port(tmp_path: Path) -> None:
    """Its port may have been taken meanwhile; after three tries the error says that it ended."""
    counted = ("sh", "-c", f"echo tried >> {tmp_path}/tries; exit 7", "sh")
    server = EmbeddedServer(tmp_path, through=counted)

    with pytest.raises(SetupError, match="ended at once with 7"):
        await server.start()
    assert (tmp_path / "tries").read_text().split() == ["tried"] * 3
