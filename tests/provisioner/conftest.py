"""Providers of clouds, each on the nearest thing to its API that runs here."""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from botocore.loaders import Loader
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from schemas.duration import Duration
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import RULES
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.azure import AzureProvider
from services.provisioner.providers.coreweave import CoreWeaveProvider
from services.provisioner.providers.docker import DockerProvider
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.providers.gcp import GcpProvider
from services.provisioner.providers.lambda_cloud import LambdaProvider
from services.provisioner.providers.local import LocalProvider, stop_all
from services.provisioner.providers.ssh import SshProvider
from tests.provisioner import azure_logins, azure_server, coreweave_server, google_logins
from tests.provisioner.azure_server import AzureServer
from tests.provisioner.coreweave_server import CoreWeaveServer
from tests.provisioner.docker_server import DockerServer
from tests.provisioner.docker_server import serving as serving_docker
from tests.provisioner.gcp_server import GcpServer
from tests.provisioner.gcp_server import serving as serving_gcp
from tests.provisioner.lambda_server import KEY, LambdaServer
from tests.provisioner.lambda_server import serving as serving_lambda
from tests.provisioner.provisioner_parts import FLEET
from tests.provisioner.ssh_machines import USER, Machines, machines
from tests.support.moto_process import running_moto
from tests.support.self_signed import self_signed

SLEEP = ("/bin/sleep", "1000")
"""Runs in an agent's place."""


def place(tmp_path: Path) -> Environment:
    """The environment of each provider; it is called `fake`, as the tests' launches want it."""
    return Environment(name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=tmp_path)


P = TypeVar("P")


@asynccontextmanager
async def remade(
    kind: Callable[..., P], tmp_path: Path, **plain: object
) -> AsyncIterator[Callable[..., P]]:
    """Makes a provider again, with changed options and transport where wanted; closes them all."""
    made: list[Any] = []

    def again(transport: httpx.AsyncBaseTransport | None = None, **changes: object) -> P:
        way = {"transport": transport} if transport else {}
        options = kind.Options(**(plain | changes))
        made.append(kind(options=options, environment=place(tmp_path), **way))
        return made[-1]

    yield again
    for each in made:
        await each.close()


@pytest.fixture
def hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offering without capacity has none for longer than any launch here may take."""
    hour = replace(RULES["CAPACITY"], block_seconds=3600, block_max_seconds=3600)
    monkeypatch.setitem(RULES, "CAPACITY", hour)


@pytest.fixture
def make_fake(tmp_path: Path) -> Callable[..., FakeProvider]:
    """The fake one: its memory is its cloud, so that it is made once for each set of options."""
    made: dict[str, FakeProvider] = {}

    def again(**changes: object) -> FakeProvider:
        options = FakeProvider.Options(**changes)
        return made.setdefault(
            repr(options), FakeProvider(options=options, environment=place(tmp_path))
        )

    return again


@pytest.fixture
def make_fake_file(tmp_path: Path) -> Callable[..., FakeProvider]:
    """The fake one, whose cloud is a file."""

    def again(**changes: object) -> FakeProvider:
        options = FakeProvider.Options(**({"file": str(tmp_path / "fake.json")} | changes))
        return FakeProvider(options=options, environment=place(tmp_path))

    return again


@pytest.fixture
def make_local(tmp_path: Path) -> Iterator[Callable[..., LocalProvider]]:
    """Processes on this machine that only sleep."""
    made: list[LocalProvider] = []

    def again(**changes: object) -> LocalProvider:
        options = LocalProvider.Options(**({"gpu_count": 0} | changes))
        made.append(LocalProvider(options=options, environment=place(tmp_path), command=SLEEP))
        return made[-1]

    yield again
    stop_all(tmp_path / "local")


@pytest.fixture
async def engine() -> AsyncIterator[DockerServer]:
    """Serve a strict Docker engine."""
    async with serving_docker() as server:
        yield server


@pytest.fixture
async def make_docker(
    engine: DockerServer, tmp_path: Path
) -> AsyncIterator[Callable[..., DockerProvider]]:
    """Makes the Docker provider again, with changed options and transport where wanted."""
    async with remade(
        DockerProvider,
        tmp_path,
        image="navarch-node",
        socket=engine.socket,
        containers_max=1000,
    ) as again:
        yield again


@pytest.fixture
def boxes() -> int:
    """Return how many SSH machines the test has."""
    return 8


@pytest.fixture
async def owned(boxes: int, tmp_path: Path) -> AsyncIterator[Machines]:
    """Run the SSH machines of the test."""
    (tmp_path / "machines").mkdir()
    async with machines(tmp_path / "machines", boxes) as all_:
        yield all_


@pytest.fixture
async def make_ssh(owned: Machines, tmp_path: Path) -> AsyncIterator[Callable[..., SshProvider]]:
    """Makes the SSH provider again. No machine here is really rebooted: it is this one."""
    async with remade(
        SshProvider,
        tmp_path,
        user=USER,
        key_file=str(owned.key),
        sudo=False,
        claim_folder="~/claim",
        reboot_command='echo reboot >> "$HOME/rebooted"',
        command_timeout=Duration(5),
        connect_timeout=Duration(5),
        rest=Duration(0),
    ) as again:

        def with_machines(**changes: object) -> SshProvider:
            mine = {} if "inventory" in changes else {"machines": owned.inventory()}
            return again(**(mine | changes))

        yield with_machines


@pytest.fixture
async def lambda_api() -> AsyncIterator[LambdaServer]:
    """Serve a strict Lambda Cloud."""
    async with serving_lambda() as server:
        yield server


@pytest.fixture
async def make_lambda(
    lambda_api: LambdaServer, tmp_path: Path
) -> AsyncIterator[Callable[..., LambdaProvider]]:
    """Makes the Lambda provider again, with changed options and transport where wanted."""
    (tmp_path / "key").write_text(f"{KEY}\n")
    async with remade(
        LambdaProvider,
        tmp_path,
        api_key_file=str(tmp_path / "key"),
        base_url=lambda_api.url,
        ssh_key="laptop",
        request_interval=Duration(0),
        launch_interval=Duration(0),
        list_lag=Duration(0),
    ) as again:
        yield again


@pytest.fixture(scope="session")
def services_read_once() -> Iterator[None]:
    """Botocore describes EC2 in a file of megabytes, which each client otherwise reads again."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("load_service_model", "load_data_with_path"):
            patch.setattr(Loader, name, remembered(getattr(Loader, name)))
        yield


def remembered(load: Callable[..., Any]) -> Callable[..., Any]:
    """The same for every loader: the files do not change."""
    found: dict[Any, Any] = {}

    def once(loader: Loader, *names: str, **more: str | None) -> Any:
        key = (*names, *more.items())
        if key not in found:
            found[key] = load(loader, *names, **more)
        return found[key]

    return once


@pytest.fixture(scope="session")
def moto(services_read_once: None) -> Iterator[str]:
    """Run moto's server in a process of its own and yield its URL."""
    del services_read_once
    with running_moto() as url:
        yield url


@pytest.fixture
async def make_aws(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., AwsProvider]]:
    """Makes the AWS provider again, on an empty account."""
    async with httpx.AsyncClient() as client:
        (await client.post(f"{moto}/moto-api/reset")).raise_for_status()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    async with remade(
        AwsProvider,
        tmp_path,
        region="us-east-1",
        image="ami-03cf127a",
        endpoint_url=moto,
    ) as again:
        yield again


@pytest.fixture(scope="session")
def service_account() -> tuple[str, str]:
    """Return a private key and its public key, in PEM."""
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
    """Serve a strict Compute Engine."""
    async with serving_gcp(service_account[1]) as api:
        yield api


@pytest.fixture
async def make_gcp(
    gcp: GcpServer,
    service_account: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Callable[..., GcpProvider]]:
    """Makes the Google provider again, on that server; this machine has no login of its own."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    key = tmp_path / "key.json"
    account = {
        "type": "service_account",
        "client_email": google_logins.ACCOUNT,
        "private_key": service_account[0],
        "private_key_id": "1",
        "token_uri": f"{gcp.url}/token",
    }
    key.write_text(json.dumps(account))
    async with remade(
        GcpProvider,
        tmp_path,
        project="my-project",
        image="projects/p/global/images/family/gpu",
        credentials_file=str(key),
        base_url=f"{gcp.url}/compute/v1",
        prices_url=gcp.url,
        metadata_url=gcp.url,
    ) as again:
        yield again


@pytest.fixture(scope="session")
def azure_identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a certificate for loopback and its key."""
    file = tmp_path_factory.mktemp("azure") / "identity.pem"
    file.write_text("".join(self_signed()))
    return file


@pytest.fixture
async def azure(azure_identity: Path) -> AsyncIterator[AzureServer]:
    """Serve a strict Azure."""
    async with azure_server.serving(str(azure_identity)) as api:
        yield api


@pytest.fixture
async def make_azure(
    azure: AzureServer, azure_identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., AzureProvider]]:
    """Makes the Azure provider again, on that server; this machine has no login of its own."""
    for name in [each for each in os.environ if each.startswith(("AZURE_", "IDENTITY_", "MSI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("AZURE_CLIENT_SECRET", azure_logins.SECRET)
    monkeypatch.setenv("SSL_CERT_FILE", str(azure_identity))
    async with remade(
        AzureProvider,
        tmp_path,
        subscription=azure_server.SUBSCRIPTION,
        resource_group=azure_server.GROUP,
        location="eastus",
        image="/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/images/gpu",
        subnet=azure_server.SUBNET,
        tenant=azure_logins.TENANT,
        client_id=azure_logins.CLIENT,
        ssh_key="ssh-ed25519 A",
        base_url=azure.url,
        login_url=azure.logins.url,
        metadata_url=azure.url,
        prices_url=azure.url,
        poll_interval=Duration(0),
    ) as again:
        yield again


@pytest.fixture
async def coreweave() -> AsyncIterator[CoreWeaveServer]:
    """Serve a strict cluster of CoreWeave's."""
    async with coreweave_server.serving() as api:
        yield api


@pytest.fixture
async def make_coreweave(
    coreweave: CoreWeaveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., CoreWeaveProvider]]:
    """Makes the CoreWeave provider again, on that cluster, with changed options where wanted."""
    monkeypatch.setenv("COREWEAVE_API_TOKEN", coreweave_server.TOKEN)
    async with remade(
        CoreWeaveProvider,
        tmp_path,
        server=coreweave.url,
        zone="US-EAST-04A",
        settle=Duration(0.2),
        poll_interval=Duration(0),
    ) as again:
        yield again
