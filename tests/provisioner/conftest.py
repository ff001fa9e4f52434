"""Providers of clouds, each on the nearest thing to its API that runs here."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from services.provisioner.provider import Environment
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.gcp import GcpProvider
from tests.provisioner.gcp_server import GcpServer
from tests.provisioner.gcp_server import serving as serving_gcp
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


@pytest.fixture(scope="session")
def service_account() -> tuple[str, str]:
    """A private key and its public one, in PEM."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


@pytest.fixture
async def gcp(service_account: tuple[str, str]) -> AsyncIterator[GcpServer]:
    """A strict Compute Engine."""
    async with serving_gcp(service_account[1]) as api:
        yield api


@pytest.fixture
async def make_gcp(
    gcp: GcpServer, service_account: tuple[str, str], tmp_path: Path
) -> AsyncIterator[Callable[..., GcpProvider]]:
    """Makes the Google provider anew, on that server."""
    key = tmp_path / "key.json"
    account = {
        "type": "service_account",
        "client_email": "navarch@p.iam.gserviceaccount.com",
        "private_key": service_account[0],
        "private_key_id": "1",
        "token_uri": f"{gcp.url}/token",
    }
    key.write_text(json.dumps(account))
    environment = Environment(
        name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=tmp_path
    )
    made: list[GcpProvider] = []

    def again(**changes: object) -> GcpProvider:
        plain = {
            "project": "my-project",
            "image": "projects/p/global/images/family/gpu",
            "credentials_file": str(key),
            "base_url": f"{gcp.url}/compute/v1",
            "metadata_url": gcp.url,
        }
        options = GcpProvider.Options(**(plain | changes))
        made.append(GcpProvider(options=options, environment=environment))
        return made[-1]

    yield again
    for each in made:
        await each.close()
