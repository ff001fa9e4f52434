"""`navarch ssh` against an SSH server with the real client: only the pinned key is accepted."""

import asyncio
import shutil
from pathlib import Path

import asyncssh
import pytest
from msgspec.structs import replace

from schemas.settings import PoolSpec, SetupSettings
from services.cli.commands.ssh_command import command_line
from tests.cli.test_ssh import instance

SSH = shutil.which("ssh")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(SSH is None, reason="no ssh here: apt-get install openssh-client"),
]


def greet(process: "asyncssh.SSHServerProcess[str]") -> None:
    """Print the requested command and end."""
    process.stdout.write(f"ran {process.command}\n")
    process.exit(0)


async def run(words: list[str]) -> tuple[int | None, str]:
    """Run the command line; return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_ssh_connects_only_to_the_machine_that_was_set_up(tmp_path: Path) -> None:
    """Another machine at its address is refused before anything is sent to it."""
    for name in ("key", "host", "other"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(tmp_path / name))
        key.write_public_key(str(tmp_path / f"{name}.pub"))
        (tmp_path / name).chmod(0o600)
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[str(tmp_path / "host")],
        authorized_client_keys=str(tmp_path / "key.pub"),
        process_factory=greet,
    )
    spec = PoolSpec(
        min_nodes=0,
        max_nodes=1,
        ssh_private_key_path=str(tmp_path / "key"),
        setup=SetupSettings(port=server.get_port()),
    )
    known = tmp_path / "known"
    record = instance("web-1", address="127.0.0.1", host_key="pinned")
    seen = []
    for name in ("host", "other"):
        kind, text, *_ = (tmp_path / f"{name}.pub").read_text().split()
        known.write_text(f"web-1 {kind} {text}\n")
        seen.append(await run(command_line(record, spec, known, ["nvidia-smi", "-L"])))
    known.unlink()
    first = replace(record, host_key="")
    seen.append(await run(command_line(first, spec, known, ["hostname"])))
    server.close()
    await server.wait_closed()

    assert (0, "ran nvidia-smi -L\n") == seen[0]
    assert 0 != seen[1][0]
    assert "Host key verification failed" in seen[1][1]
    assert 0 == seen[2][0]
    assert known.read_text().startswith("web-1 ssh-ed25519 ")
