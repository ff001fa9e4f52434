"""The nats-server of `navarch serve` and of the tests: how its start and its end are bounded."""

import os
from pathlib import Path

import pytest

from services.bus.nats.embedded_server import EmbeddedServer, go_memory_bytes
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
    """Another process may have the port by then; after three tries the error says that it ended."""
    counted = ("sh", "-c", f"echo tried >> {tmp_path}/tries; exit 7", "sh")
    server = EmbeddedServer(tmp_path, through=counted)

    with pytest.raises(SetupError, match="ended at once with 7"):
        await server.start()
    assert (tmp_path / "tries").read_text().split() == ["tried"] * 3


@pytest.mark.parametrize(("limit", "own"), [("2147483648", True), ("max", False), ("", False)])
def test_half_of_the_memory_is_the_servers(tmp_path: Path, limit: str, *, own: bool) -> None:
    """The container's limit counts, or the host's memory where there is none."""
    file = tmp_path / "memory.max"
    if limit:
        file.write_text(f"{limit}\n")
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert go_memory_bytes(file) == min(host, 2**31 if own else host) // 2


async def test_what_the_environment_says_of_go_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has fewer collections by default, and an operator's own setting instead."""
    monkeypatch.setenv("GOGC", "50")
    server = EmbeddedServer(tmp_path)
    await server.start()
    environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    await server.stop()
    assert b"GOGC=50" in environment
    assert f"GOMEMLIMIT={go_memory_bytes()}".encode() in environment
