"""A real sshd runs on loopback with its own home directory, for the duration of a test."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh

from services.primitives.free_ports import free_ports
from tests.support.inprocess import eventually

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host-key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {key}.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 200
MaxSessions 10
SetEnv HOME={folder}/home
"""


def new_key(file: Path) -> None:
    """A key pair as `ssh-keygen` makes it."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(file))
    key.write_public_key(f"{file}.pub")
    file.chmod(0o600)


def make_run_folder() -> None:
    """Make the folder that an sshd of root needs, and that only its service makes otherwise."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)


@asynccontextmanager
async def real_sshd(folder: Path, key: Path) -> AsyncIterator[int]:
    """An sshd that accepts this key and has its home in `folder`; returns its port."""
    new_key(folder / "host-key")
    (folder / "home").mkdir()
    make_run_folder()
    (port,) = free_ports(1)
    config = folder / "sshd_config"
    config.write_text(CONFIG.format(port=port, folder=folder, key=key))
    assert SSHD is not None
    process = await asyncio.create_subprocess_exec(
        SSHD, "-D", "-e", "-f", str(config), stderr=asyncio.subprocess.DEVNULL
    )

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await eventually(listens)
        yield port
    finally:
        process.terminate()
        await process.wait()
