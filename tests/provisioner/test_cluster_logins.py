"""Providers log in to a cluster of their own, and again when a login ends or fails."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.duration import Duration
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.coreweave import CoreWeaveProvider
from tests.provisioner.coreweave_server import TOKEN, CoreWeaveServer
from tests.provisioner.test_coreweave import kubeconfig
from tests.support.inprocess import eventually

SHORT = Duration(0.2)
Make = Callable[..., CoreWeaveProvider]
VERSION = "client.authentication.k8s.io/v1"
TOKENS_ARE_PRINTED = f"""#!/bin/sh
echo >> "$0.runs"
[ "$(wc -l < "$0.runs")" -gt 1 ] && token={TOKEN} || token=ended
echo '{{"apiVersion": "{VERSION}", "kind": "ExecCredential", "status": {{"token": "'$token'"}}}}'
"""


@pytest.fixture
def login(coreweave: CoreWeaveServer, make_coreweave: Make, tmp_path: Path) -> Make:
    """Makes a provider whose kubeconfig runs a program to log in."""

    def made(script: str, **options: object) -> CoreWeaveProvider:
        program, file = tmp_path / "login", tmp_path / "cks.yaml"
        program.write_text(script)
        program.chmod(0o755)
        plugin = {"apiVersion": VERSION, "command": str(program)}
        file.write_bytes(kubeconfig(coreweave.url, exec=plugin))
        return make_coreweave(server="", kubeconfig=str(file), **options)

    return made


async def test_a_program_logs_in_and_again_when_its_token_has_ended(
    login: Make, tmp_path: Path
) -> None:
    """A program logs in as `kubectl` does for EKS and GKE; it is not run for each request."""
    provider = login(TOKENS_ARE_PRINTED)
    for _ in range(3):
        assert [] == await provider.list()
    assert "\n\n" == (tmp_path / "login.runs").read_text()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("#!/bin/sh\necho 'run sso login' >&2; exit 3\n", "returned 3. run sso login"),
        ("#!/bin/sh\necho nonsense\n", "failed to decode process output"),
        ("#!/nowhere/shell\n", "No such file"),
    ],
)
async def test_a_program_that_fails_is_a_matter_for_a_person(
    login: Make, script: str, says: str
) -> None:
    """AUTH, with what the program says."""
    with pytest.raises(ProviderError, match=says) as refused:
        await login(script).list()
    assert "AUTH" == refused.value.kind


async def test_a_program_that_hangs_is_not_run_for_each_request(
    login: Make, tmp_path: Path
) -> None:
    """Each request waits for as long as it may; when the program goes on, so do they."""
    os.mkfifo(tmp_path / "pipe")
    said = TOKENS_ARE_PRINTED.replace("ended", TOKEN)
    provider = login(said.replace("sh\n", f'sh\nread go < "{tmp_path}/pipe"\n'), timeout=SHORT)
    for _ in range(2):
        with pytest.raises(ProviderError, match="no answer") as late:
            await provider.list()
        assert "TRANSIENT" == late.value.kind
    await asyncio.to_thread((tmp_path / "pipe").write_text, "go\n")

    async def listed() -> bool:
        with suppress(ProviderError):
            return await provider.list() == []
        return False

    await eventually(listed)
    assert "\n" == (tmp_path / "login.runs").read_text()


async def test_a_renewed_token_file_is_read_when_the_old_token_is_refused(
    coreweave: CoreWeaveServer, make_coreweave: Make, tmp_path: Path
) -> None:
    """A renewed token file is read without a restart."""
    (tmp_path / "token").write_text("ended\n")
    (tmp_path / "cks.yaml").write_bytes(kubeconfig(coreweave.url, tokenFile="token"))
    provider = make_coreweave(server="", kubeconfig=str(tmp_path / "cks.yaml"))
    with pytest.raises(ProviderError) as refused:
        await provider.list()
    assert "AUTH" == refused.value.kind
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert [] == await provider.list()
