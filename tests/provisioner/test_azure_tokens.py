"""Azure's access tokens, held to Microsoft's documentation by issuers that refuse the rest.

Proven: azure-identity and what is ours around it obtain tokens in each documented way, renew them,
and report refusals. Not tested: Microsoft itself, and its command line.
"""

import asyncio
import datetime as dt
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from azure.identity._credentials import workload_identity
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import cloud_tokens
from services.provisioner.providers.azure import AzureProvider
from tests.provisioner.azure_logins import AUDIENCE, CLIENT, SECRET, TENANT, AzureLogins
from tests.provisioner.azure_server import AzureServer

Make = Callable[..., AzureProvider]
CHAIN = {"tenant": "", "client_id": ""}
"""Options of a provider without a service principal."""
AWAY = "http://127.0.0.1:9"


@pytest.fixture
def logins(azure: AzureServer) -> AzureLogins:
    """Return the logins that issue the tokens."""
    return azure.logins


async def refusal(provider: AzureProvider, *texts: str) -> str:
    """The kind of the error that there is no token; it says all of these texts."""
    with pytest.raises(ProviderError, match="no access token") as error:
        await provider.list()
    for text in texts:
        assert text in error.value.message
    return error.value.kind


# --- ways ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["principal"]),
        (CHAIN, ["machine system"]),
        ({"tenant": "", "client_id": "identity-7"}, ["machine identity-7"]),
    ],
)
async def test_one_token_serves_many_requests(
    logins: AzureLogins, make_azure: Make, changes: dict[str, str], expected: list[str]
) -> None:
    """One token serves many requests.

    A service principal issues it, or a machine's own identity, or one that it was given.
    """
    provider = make_azure(**changes)
    for _ in range(3):
        await provider.list()
    assert expected == logins.issued


def in_environment(monkeypatch: pytest.MonkeyPatch, logins: AzureLogins, **more: str) -> None:
    """A service principal as Azure's own tools read it."""
    values = {"TENANT_ID": TENANT, "CLIENT_ID": CLIENT, "AUTHORITY_HOST": logins.url} | more
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    for name, value in values.items():
        monkeypatch.setenv(f"AZURE_{name}", value)


async def test_a_principal_in_the_environment_comes_before_the_machine(
    logins: AzureLogins, make_azure: Make, monkeypatch
) -> None:
    """A principal's secret in the environment precedes the machine's identity."""
    in_environment(monkeypatch, logins, CLIENT_SECRET=SECRET)
    await make_azure(**CHAIN).list()
    assert ["principal"] == logins.issued


async def test_a_principal_may_have_a_certificate(
    logins: AzureLogins,
    make_azure: Make,
    monkeypatch,
    tmp_path: Path,
    service_account: tuple[str, str],
) -> None:
    """A certificate's key signs an assertion, which names the certificate."""
    private, logins.certificate_key = service_account
    file = tmp_path / "principal.pem"
    file.write_text(private + certificate_of(private))
    in_environment(monkeypatch, logins, CLIENT_CERTIFICATE_PATH=str(file))
    await make_azure(**CHAIN).list()
    assert ["certificate"] == logins.issued


def certificate_of(private: str) -> str:
    """A certificate of this key, which the key signed."""
    key = load_pem_private_key(private.encode(), None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CLIENT)])
    day = dt.timedelta(days=1)
    now = dt.datetime.now(dt.UTC)
    serial = x509.random_serial_number()
    made = x509.CertificateBuilder(name, name, key.public_key(), serial, now - day, now + day)
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


@pytest.fixture
def subject_file(tmp_path: Path) -> Path:
    """Return the file in which Kubernetes puts a pod's token."""
    file = tmp_path / "subject-token"
    file.write_text("subject-token-1")
    return file


async def test_a_pods_token_is_exchanged_and_read_again(
    logins: AzureLogins, make_azure: Make, monkeypatch, subject_file: Path
) -> None:
    """Workload identity reads the token's file again after the library's ten minutes."""
    in_environment(monkeypatch, logins, FEDERATED_TOKEN_FILE=str(subject_file))
    provider = make_azure(**CHAIN)
    logins.lifetime = 0
    await provider.list()
    logins.subject_tokens = {"subject-token-2"}
    subject_file.write_text("subject-token-2")
    assert "AUTH" == await refusal(provider, "AADSTS")
    later = SimpleNamespace(time=lambda: time.time() + 601)
    monkeypatch.setattr(workload_identity, "time", later)
    await provider.list()
    assert {"federation"} == set(logins.issued)


async def test_a_pods_missing_token_is_named(
    logins: AzureLogins, make_azure: Make, monkeypatch
) -> None:
    """A missing token may still appear: Kubernetes writes it while the pod starts."""
    in_environment(monkeypatch, logins, FEDERATED_TOKEN_FILE="/nowhere/token")
    assert "TRANSIENT" == await refusal(make_azure(**CHAIN), "/nowhere/token")


async def test_the_login_of_the_command_line_comes_last(
    logins: AzureLogins, make_azure: Make, tmp_path: Path
) -> None:
    """The token is taken from what `az account get-access-token` prints."""
    token = {
        "accessToken": logins.issue("command line"),
        "expiresOn": "2100-01-01 00:00:00.000000",
        "expires_on": 4_102_444_800,
        "subscription": "s",
        "tenant": TENANT,
        "tokenType": "Bearer",
    }
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/az"
    wanted = f"account get-access-token --output json --resource {AUDIENCE}"
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = '{wanted}' ] || exit 2\necho '{json.dumps(token)}'\n"
    )
    program.chmod(0o755)
    await make_azure(**CHAIN, metadata_url=AWAY).list()


@pytest.mark.parametrize(
    "said",
    ["ERROR: Please run 'az login' to setup account.", "AADSTS70043: expired. Run: az login"],
)
async def test_a_command_line_without_a_login_names_the_remedy(
    make_azure: Make, tmp_path: Path, said: str
) -> None:
    """AUTH: a user must act."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/az"
    program.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    assert "AUTH" == await refusal(make_azure(**CHAIN, metadata_url=AWAY), "az login")


# --- renewal -------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, CHAIN])
async def test_an_expired_token_is_renewed(
    logins: AzureLogins, make_azure: Make, changes: dict[str, str]
) -> None:
    """A list takes four requests, each with a token."""
    provider = make_azure(**changes)
    for logins.lifetime in (0, 3600):
        await provider.list()
    assert 5 == len(logins.issued)


async def test_callers_at_once_share_one_request(logins: AzureLogins, make_azure: Make) -> None:
    """One that is cancelled meanwhile does not cancel it for the others."""
    provider = make_azure()
    logins.silent.clear()
    first, *others = [asyncio.create_task(provider.list()) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    logins.silent.set()
    assert [[]] * 19 == await asyncio.gather(*others)
    assert ["principal"] == logins.issued


# --- refusals ------------------------------------------------------------------------------------


async def test_a_revoked_secret_is_reported(
    azure: AzureServer, logins: AzureLogins, make_azure: Make
) -> None:
    """AUTH, with Microsoft's code and the settings; the Resource Manager is not called."""
    provider = make_azure()
    logins.lifetime = 0
    await provider.list()
    azure.calls.clear()
    logins.secrets.clear()
    assert "AUTH" == await refusal(provider, "AADSTS7000215", "the secret of providers.fake")
    assert [] == azure.calls


async def test_without_a_metadata_service_the_error_has_the_remedy(make_azure: Make) -> None:
    """TRANSIENT: it may come back. What the chain tried is said, too."""
    texts = ("no answer; outside of Azure set tenant, client_id", "Azure CLI not found")
    assert "TRANSIENT" == await refusal(make_azure(**CHAIN, metadata_url=AWAY), *texts)


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (JSONResponse({"error": "invalid_request"}, 400), "AUTH", "assigned to this resource"),
        (JSONResponse({"error": "Too Many Requests"}, 429), "TRANSIENT", "HTTP 429"),
        (JSONResponse({"error": "x"}, 410), "TRANSIENT", "HTTP 410"),
        (JSONResponse({"error": "x"}, 503), "TRANSIENT", "HTTP 503"),
        (JSONResponse([]), "TRANSIENT", "HTTP 200"),
        (PlainTextResponse("<html>"), "TRANSIENT", "HTTP 200"),
    ],
)
async def test_a_metadata_service_that_issues_nothing_is_reported_at_once(
    logins: AzureLogins, make_azure: Make, answer: Response, kind: str, text: str
) -> None:
    """The library repeats no request, since the provisioner does; then it goes on."""
    provider = make_azure(**CHAIN)
    logins.answers = [answer]
    assert kind == await refusal(provider, text)
    await provider.list()


@pytest.mark.parametrize("answer", [PlainTextResponse("<html>"), JSONResponse([]), Response()])
@pytest.mark.parametrize("status", [200, 502])
async def test_an_answer_that_is_no_token_is_an_error(
    logins: AzureLogins, make_azure: Make, answer: Response, status: int
) -> None:
    """An answer without a token, such as a proxy's, is an error."""
    answer.status_code = status
    logins.answers = [answer]
    provider = make_azure()
    assert "TRANSIENT" == await refusal(provider)
    await provider.list()


@pytest.mark.parametrize("token", ["", "line\r\nX-Other: 1", "\u20ac"])
@pytest.mark.parametrize("changes", [{}, CHAIN])
async def test_what_cannot_be_sent_is_no_token(
    azure: AzureServer, make_azure: Make, changes: dict[str, str], token: str
) -> None:
    """A token that cannot be part of a request is refused."""
    until = int(time.time()) + 3600
    garbage = {"access_token": token, "expires_in": 3600, "expires_on": until, "resource": "r"}
    azure.logins.answers = [JSONResponse(garbage)]
    assert "TRANSIENT" == await refusal(make_azure(**changes))
    assert [] == azure.calls


async def test_an_issuer_that_does_not_answer_is_waited_for_until_a_named_time(
    logins: AzureLogins, make_azure: Make, monkeypatch
) -> None:
    """One request serves all that wait, however many; then there is another."""
    monkeypatch.setattr(cloud_tokens, "TOKEN_SECONDS_MAX", 0.1)
    provider = make_azure()
    logins.silent.clear()
    waiting = [refusal(provider, "none after 0.1 s") for _ in range(200)]
    assert {"TRANSIENT"} == set(await asyncio.gather(*waiting))
    logins.silent.set()
    monkeypatch.setattr(cloud_tokens, "TOKEN_SECONDS_MAX", 60.0)
    await provider.list()
    assert len(logins.issued) <= 2


async def test_only_a_trusted_server_is_sent_the_secret(make_azure: Make, monkeypatch) -> None:
    """Logins trust the same certificates as all other requests."""
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "TRANSIENT" == await refusal(make_azure(), "certificate verify failed")


async def test_an_answer_without_an_end_is_read_until_a_named_time(
    logins: AzureLogins, make_azure: Make, monkeypatch
) -> None:
    """Each of its parts comes in time; the next request is another."""
    monkeypatch.setattr(cloud_tokens, "TOKEN_SECONDS_MAX", 0.2)
    logins.answers = [StreamingResponse(drops(), media_type="application/json")]
    provider = make_azure()
    assert "TRANSIENT" == await refusal(provider, "none after")
    monkeypatch.setattr(cloud_tokens, "TOKEN_SECONDS_MAX", 60.0)
    assert [] == await provider.list()


async def drops() -> AsyncIterator[bytes]:
    """Yield a byte now and then."""
    while True:
        yield b" "
        await asyncio.sleep(0.01)


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"client_secret_env": "NOWHERE"}, "variable NOWHERE is not set"),
        ({"client_secret_file": "/nowhere/secret"}, "No such file"),
        ({"client_secret_file": "/dev/null"}, "is empty"),
        ({"client_id": ""}, "client_id: must be set"),
        ({"tenant": "", "client_secret_file": "/dev/null"}, "needs tenant and client_id"),
        ({"login_url": "http://login.example"}, "providers.fake: .*http://login.example.*https"),
        ({"tenant": "a b"}, "providers.fake: .*tenant"),
    ],
)
def test_without_a_secret_the_service_does_not_start(
    make_azure: Make, changes: dict[str, str], says: str
) -> None:
    """The error names the provider, the setting and the ways out."""
    with pytest.raises(ConfigurationError, match=says):
        make_azure(**changes)


def test_a_certificate_in_the_environment_that_is_none_is_named(
    logins: AzureLogins, make_azure: Make, monkeypatch
) -> None:
    """A certificate that cannot be read is named when the service starts."""
    in_environment(monkeypatch, logins, CLIENT_CERTIFICATE_PATH="/nowhere/principal.pem")
    with pytest.raises(ConfigurationError, match=r"providers.fake: .*/nowhere/principal.pem"):
        make_azure(**CHAIN)


def test_without_its_package_the_error_names_the_extra(make_azure: Make, monkeypatch) -> None:
    """A control plane without nodes at Azure need not install it."""
    monkeypatch.setitem(sys.modules, "azure.core.exceptions", None)
    with pytest.raises(ConfigurationError, match=r"providers.fake: .*'navarch\[azure\]'"):
        make_azure()
