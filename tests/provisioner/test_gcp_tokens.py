"""Google's access tokens, held to its documentation by issuers that refuse the rest.

Proven: google-auth and what is ours around it obtain tokens in each documented way, renew them,
and report refusals. Not tested: Google itself.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from services.primitives.errors import ConfigurationError
from services.primitives.redaction import redacted
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import cloud_tokens, gcp_http
from services.provisioner.providers.gcp import GcpProvider
from tests.provisioner.gcp_server import GcpServer
from tests.provisioner.google_logins import AWS_TYPE, JWT_TYPE, GoogleLogins
from tests.support.self_signed import self_signed

Make = Callable[..., GcpProvider]


@pytest.fixture
def logins(gcp: GcpServer) -> GoogleLogins:
    """Return the logins that issue the tokens."""
    return gcp.logins


def written(file: Path, content: object) -> str:
    """Write a credentials file and return its path."""
    file.write_text(json.dumps(content))
    return str(file)


@pytest.fixture
def subject_file(tmp_path: Path) -> Path:
    """Return the file in which the federation's own issuer puts its token."""
    file = tmp_path / "subject-token"
    file.write_text("subject-token-1")
    return file


@pytest.fixture
def federated(logins: GoogleLogins, tmp_path: Path, subject_file: Path) -> str:
    """The configuration of a federation whose tokens are in a file."""
    source = {"file": str(subject_file)}
    return written(tmp_path / "federation.json", logins.federation(source))


async def refusal(provider: GcpProvider, *texts: str) -> str:
    """The kind of the error that there is no token; it says all of these texts."""
    with pytest.raises(ProviderError, match="no access token") as error:
        await provider.list()
    for text in texts:
        assert text in error.value.message
    return error.value.kind


class Rerouted(httpx.AsyncHTTPTransport):
    """Sends every request to one server, whatever host it is for."""

    def __init__(self, url: httpx.URL) -> None:
        super().__init__()
        self._url = url

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to another address, otherwise as it is."""
        request.url = self._url.copy_with(raw_path=request.url.raw_path)
        return await super().handle_async_request(request)


def of_gcloud(tmp_path: Path) -> Path:
    """The file that gcloud writes."""
    (tmp_path / "gcloud").mkdir()
    return tmp_path / "gcloud/application_default_credentials.json"


# --- ways ----------------------------------------------------------------------------------------


async def listed_thrice(provider: GcpProvider) -> None:
    """Three requests, which one token serves."""
    for _ in range(3):
        assert [] == await provider.list()


async def test_one_token_serves_many_requests(logins: GoogleLogins, make_gcp: Make) -> None:
    """One token serves many requests.

    A service account's key gets it, and on a Google machine its metadata server.
    """
    await listed_thrice(make_gcp())
    await listed_thrice(make_gcp(credentials_file=""))
    assert ["key", "machine"] == logins.issued


async def test_application_default_credentials_come_before_the_metadata_server(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path, monkeypatch, federated: str
) -> None:
    """First the file of the variable, then that of gcloud."""
    key = (tmp_path / "key.json").read_text()
    of_gcloud(tmp_path).write_text(key)
    await listed_thrice(make_gcp(credentials_file=""))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", federated)
    await listed_thrice(make_gcp(credentials_file=""))
    assert ["key", "federation"] == logins.issued


async def test_tokens_of_another_issuer_are_exchanged(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path, federated: str
) -> None:
    """Workload identity federation gives the pool's own token or a service account's."""
    await listed_thrice(make_gcp(credentials_file=federated))
    changed = json.loads(Path(federated).read_text())
    changed["service_account_impersonation_url"] = logins.impersonation_url
    file = written(tmp_path / "impersonating.json", changed)
    await listed_thrice(make_gcp(credentials_file=file))
    assert ["federation", "federation", "impersonation"] == logins.issued


async def test_the_issuers_token_may_come_by_http(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path
) -> None:
    """The issuer's token may come from a URL, such as another cloud's metadata service."""
    source = {
        "url": f"{logins.url}/issuer",
        "headers": {"Metadata": "true"},
        "format": {"type": "json", "subject_token_field_name": "value"},
    }
    known = logins.federation(source)
    await listed_thrice(make_gcp(credentials_file=written(tmp_path / "url.json", known)))
    assert ["federation"] == logins.issued


async def test_the_issuers_token_may_come_from_a_program(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path, monkeypatch
) -> None:
    """Only where a variable of the environment permits that."""
    said = {"version": 1, "success": True, "token_type": JWT_TYPE, "id_token": "subject-token-1"}
    program = tmp_path / "issuer"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    program.chmod(0o755)
    source = {"executable": {"command": str(program), "timeout_millis": 30_000}}
    file = written(tmp_path / "program.json", logins.federation(source))
    monkeypatch.delenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", raising=False)
    assert "AUTH" == await refusal(make_gcp(credentials_file=file), "ALLOW_EXECUTABLES")
    monkeypatch.setenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "1")
    await listed_thrice(make_gcp(credentials_file=file))
    assert ["federation"] == logins.issued


async def test_an_identity_of_aws_is_exchanged(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path, monkeypatch
) -> None:
    """The identity of AWS is sent as a signed request to AWS that is valid at this pool alone."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-aws")
    url = "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15"
    source = {"environment_id": "aws1", "regional_cred_verification_url": url}
    known = logins.federation(source, subject_token_type=AWS_TYPE)
    await listed_thrice(make_gcp(credentials_file=written(tmp_path / "aws.json", known)))
    assert ["federation"] == logins.issued


async def test_a_key_may_impersonate_another_account(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path
) -> None:
    """A service account's key impersonates another account.

    The file is as `gcloud auth application-default login --impersonate-service-account` writes it.
    """
    key = json.loads((tmp_path / "key.json").read_text())
    known = {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": logins.impersonation_url,
        "source_credentials": key,
        "delegates": [],
    }
    provider = make_gcp(credentials_file=written(tmp_path / "other.json", known))
    # The library takes the account of the address alone, and asks Google itself.
    provider._client._transport = Rerouted(httpx.URL(logins.url))
    await listed_thrice(provider)
    assert ["key", "impersonation"] == logins.issued
    assert "[secret]" == redacted(key["private_key"].strip())


async def test_the_login_of_a_user_serves_until_it_is_revoked(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path
) -> None:
    """Then the error has the command that renews it."""
    user = {"client_id": "c", "client_secret": "s", "refresh_token": "1//refresh"}
    written(of_gcloud(tmp_path), {"type": "authorized_user"} | user)
    provider = make_gcp(credentials_file="")
    provider._client._transport = Rerouted(httpx.URL(logins.url))
    logins.lifetime = 0
    await provider.list()
    logins.logged_in = False
    texts = ("expired or revoked", "`gcloud auth application-default login`")
    assert "AUTH" == await refusal(provider, *texts)
    assert ["user"] == logins.issued


# --- renewal -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"credentials_file": ""}])
async def test_an_expired_token_is_renewed(
    logins: GoogleLogins, make_gcp: Make, options: dict[str, str]
) -> None:
    """An expired token is renewed, and one that is about to expire before it does."""
    provider = make_gcp(**options)
    for logins.lifetime in (0, 200, 3600, 3600):
        assert [] == await provider.list()
    assert 3 == len(logins.issued)


async def test_a_token_serves_until_it_expires_if_no_other_is_issued(
    logins: GoogleLogins, make_gcp: Make
) -> None:
    """Renewed in time, a silence of the issuer's shorter than that is not noticed."""
    provider = make_gcp()
    logins.lifetime = 200
    assert [] == await provider.list()
    logins.answers = [JSONResponse({}, 503), JSONResponse({"error": "invalid_grant"}, 400)]
    for _ in range(3):
        assert [] == await provider.list()
    assert len(logins.issued) <= 2


async def test_callers_at_once_share_one_request(logins: GoogleLogins, make_gcp: Make) -> None:
    """One that is cancelled meanwhile does not cancel it for the others."""
    provider = make_gcp()
    logins.silent.clear()
    first, *others = [asyncio.create_task(provider.list()) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    logins.silent.set()
    assert [[]] * 19 == await asyncio.gather(*others)
    assert ["key"] == logins.issued


async def test_the_token_file_of_a_federation_is_read_again(
    logins: GoogleLogins, make_gcp: Make, federated: str, subject_file: Path
) -> None:
    """The file is read again, as its issuer rotates it; when it is missing, the error names it."""
    provider = make_gcp(credentials_file=federated)
    logins.lifetime = 0
    assert [] == await provider.list()
    logins.subject_tokens = {"subject-token-2"}
    assert "AUTH" == await refusal(provider, "invalid_grant: The subject token")
    subject_file.write_text("subject-token-2")
    assert [] == await provider.list()
    subject_file.unlink()
    assert "AUTH" == await refusal(provider, str(subject_file))


# --- refusals ------------------------------------------------------------------------------------


async def test_a_revoked_key_is_reported(gcp: GcpServer, make_gcp: Make, tmp_path: Path) -> None:
    """AUTH, with Google's reason, the file and the setting; Compute Engine is not called."""
    gcp.logins.public_key = gcp.logins.public_key.replace("A", "B", 1)
    file = f"{tmp_path}/key.json of providers.fake.credentials_file"
    assert "AUTH" == await refusal(make_gcp(), "HTTP 400: invalid_grant", file)
    assert [] == gcp.calls


async def test_without_a_metadata_server_the_error_has_the_remedy(make_gcp: Make) -> None:
    """TRANSIENT: it may come back; where no account is attached, AUTH."""
    away = make_gcp(credentials_file="", metadata_url="http://127.0.0.1:9")
    assert "TRANSIENT" == await refusal(away, "set credentials_file")


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            Response("Not Found", 404),
            "AUTH",
            "HTTP 404: 9 bytes that are not the provider's JSON; outside of Google Cloud",
        ),
        (Response("Too Many Requests", 429), "TRANSIENT", "HTTP 429"),
        (Response("no", 503), "TRANSIENT", "HTTP 503"),
        (JSONResponse([]), "AUTH", "Unexpected response from metadata server"),
        (PlainTextResponse("<html>"), "AUTH", "Unexpected response from metadata server"),
    ],
)
async def test_a_metadata_server_that_issues_nothing_is_reported_at_once(
    logins: GoogleLogins, make_gcp: Make, answer: Response, kind: str, text: str
) -> None:
    """The library repeats no request, since the provisioner does; then it goes on."""
    provider = make_gcp(credentials_file="")
    logins.answers = [answer]
    assert kind == await refusal(provider, text)
    assert [] == await provider.list()


@pytest.mark.parametrize("token", ["", "line\r\nX-Other: 1", "\u20ac", None])
@pytest.mark.parametrize("options", [{}, {"credentials_file": ""}])
async def test_what_cannot_be_sent_is_no_token(
    gcp: GcpServer, make_gcp: Make, options: dict[str, str], token: str | None
) -> None:
    """A token that cannot be part of a request is refused."""
    garbage = JSONResponse({"access_token": token, "expires_in": 3600, "email": "e"})
    gcp.logins.answers = [garbage, garbage]
    assert "TRANSIENT" == await refusal(make_gcp(**options), "cannot be sent")
    assert [] == gcp.calls


@pytest.mark.parametrize("status", [200, 400])
async def test_what_is_not_googles_answer_is_not_repeated(
    logins: GoogleLogins, make_gcp: Make, status: int
) -> None:
    """A proxy may send back what it was sent, which opens everything."""
    logins.answers = [PlainTextResponse("assertion=eyJhbGci", status)]
    with pytest.raises(ProviderError) as error:
        await make_gcp().list()
    assert "eyJhbGci" not in error.value.message


async def test_an_issuer_that_does_not_answer_is_waited_for_until_a_named_time(
    logins: GoogleLogins, make_gcp: Make, monkeypatch
) -> None:
    """The event loop goes on meanwhile, and however many wait, there is one request."""
    monkeypatch.setattr(cloud_tokens, "TOKEN_SECONDS_MAX", 0.1)
    provider = make_gcp()
    logins.silent.clear()
    waiting = [refusal(provider, "none after 0.1 s") for _ in range(200)]
    assert {"TRANSIENT"} == set(await asyncio.gather(*waiting))
    logins.silent.set()
    monkeypatch.setattr(cloud_tokens, "TOKEN_SECONDS_MAX", 60.0)
    assert [] == await provider.list()
    assert len(logins.issued) <= 2


async def test_an_answer_without_an_end_is_read_until_a_named_time(
    logins: GoogleLogins, make_gcp: Make, monkeypatch
) -> None:
    """Each of its parts comes in time; the next request is another."""
    monkeypatch.setattr(gcp_http, "TOKEN_SECONDS_MAX", 0.2)
    logins.answers = [StreamingResponse(drops(), media_type="application/json")]
    provider = make_gcp()
    assert "TRANSIENT" == await refusal(provider, "none after")
    monkeypatch.setattr(gcp_http, "TOKEN_SECONDS_MAX", 60.0)
    assert [] == await provider.list()


async def drops() -> AsyncIterator[bytes]:
    """Yield a byte now and then."""
    while True:
        yield b" "
        await asyncio.sleep(0.01)


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "no JSON",
        '{"type": "service_account"}',
        '{"type": "service_account", "client_email": "a", "token_uri": "b", "private_key": "c"}',
        '{"type": "external_account", "credential_source": 7}',
        '{"type": "impersonated_service_account", "source_credentials": 7}',
    ],
)
def test_a_file_without_credentials_keeps_the_service_from_starting(
    make_gcp: Make, tmp_path: Path, monkeypatch, content: str
) -> None:
    """The error names the setting or variable, the file and the way to a right one."""
    file = tmp_path / "odd.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"credentials_file: {file} .*gcloud iam"):
        make_gcp(credentials_file=str(file))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(ConfigurationError, match=f"GOOGLE_APPLICATION_CREDENTIALS: {file} "):
        make_gcp(credentials_file="")


def test_a_missing_file_keeps_the_service_from_starting(make_gcp: Make, monkeypatch) -> None:
    """The option or the variable names it."""
    with pytest.raises(ConfigurationError, match="credentials_file: /nowhere: No such file"):
        make_gcp(credentials_file="/nowhere")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    with pytest.raises(ConfigurationError, match="CREDENTIALS: /nowhere: No such file"):
        make_gcp(credentials_file="")


async def test_a_federation_by_certificate_says_that_it_is_not_supported(
    logins: GoogleLogins, make_gcp: Make, tmp_path: Path
) -> None:
    """A federation by certificate is refused.

    Its requests need connections with that certificate.
    """
    certificate, key = self_signed()
    (tmp_path / "certificate.pem").write_text(certificate)
    (tmp_path / "certificate.key").write_text(key)
    paths = {
        "cert_path": str(tmp_path / "certificate.pem"),
        "key_path": str(tmp_path / "certificate.key"),
    }
    place = written(tmp_path / "certificates.json", {"cert_configs": {"workload": paths}})
    known = logins.federation({"certificate": {"certificate_config_location": place}})
    provider = make_gcp(credentials_file=written(tmp_path / "x509.json", known))
    assert "AUTH" == await refusal(provider, "a federation by cert is not supported")


def test_without_its_package_the_error_names_the_extra(make_gcp: Make, monkeypatch) -> None:
    """A control plane without nodes at Google need not install it."""
    monkeypatch.setitem(sys.modules, "google.auth.credentials", None)
    with pytest.raises(ConfigurationError, match=r"providers.fake: .*'navarch\[gcp\]'"):
        make_gcp()


def test_only_a_provider_that_is_used_loads_its_library() -> None:
    """Commands and services start without any of them."""
    modules = "services.provisioner.__main__, services.cli.__main__"
    providers = "services.provisioner.providers.gcp, services.provisioner.providers.azure"
    libraries = "{'google.auth', 'azure.core', 'azure.identity', 'msal', 'requests'}"
    code = f"import sys, {modules}, {providers}; print({libraries} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "set()" == done.stdout.strip()
