"""Providers of clouds, each on the nearest thing to its API that runs here."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from services.provisioner.provider import Environment
from services.provisioner.providers.aws import AwsProvider
from tests.provisioner.support import FLEET

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """A moto server in a process of its own; its URL."""
    command = [sys.executable, "-m", "tests.provisioner.moto_server"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "moto did not start"
        yield url
        process.kill()


@pytest.fixture
async def make_aws(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., AwsProvider]]:
    """Makes the AWS provider anew, on an empty account."""
    async with httpx.AsyncClient() as client:
        (await client.post(f"{moto}/moto-api/reset")).raise_for_status()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    environment = Environment(
        name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=tmp_path
    )
    made: list[AwsProvider] = []

    def again(**changes: object) -> AwsProvider:
        plain = {"region": "us-east-1", "image": "ami-03cf127a", "endpoint_url": moto}
        options = AwsProvider.Options(**(plain | changes))
        made.append(AwsProvider(options=options, environment=environment))
        return made[-1]

    yield again
    for each in made:
        await each.close()
