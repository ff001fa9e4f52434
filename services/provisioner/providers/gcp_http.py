"""Google's APIs over HTTP, with tokens by google-auth; every failure is a ProviderError."""

import asyncio
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import msgspec

from services.primitives.errors import ConfigurationError
from services.primitives.redaction import redacted, register_secret
from services.provisioner.provider_client.provider_errors import (
    SERVER_ERROR,
    THROTTLED,
    ProviderError,
)
from services.provisioner.providers.cloud_tokens import (
    TOKEN_SECONDS_MAX,
    CloudTokens,
    missing_extra,
    no_token,
)
from services.provisioner.providers.gcp_errors import error_of
from services.provisioner.providers.provider_http import read_body, send
from services.provisioner.providers.provider_secret import read_text

COMPUTE_SCOPE: Final = "https://www.googleapis.com/auth/compute"
PRICES_SCOPE: Final = "https://www.googleapis.com/auth/cloud-billing.readonly"
"""Of the price list: tokens of their own, so that no launch depends on it."""
METADATA_URL: Final = "http://metadata.google.internal"
LOGIN: Final = "gcloud auth application-default login"
REMEDY: Final = f"outside of Google Cloud set credentials_file, or run `{LOGIN}`"
SECRETS: Final = ("private_key", "refresh_token", "client_secret")
"""Of a credentials file."""
ODD: Final = (LookupError, TypeError, ValueError)
"""What google-auth raises, too, of a file with other contents."""


def token_source(
    client: httpx.AsyncClient,
    credentials_file: str,
    name: str,
    metadata_url: str,
    scope: str = COMPUTE_SCOPE,
) -> CloudTokens:
    """Return tokens by a credentials file, else by the application default credentials.

    The library reads every kind of credentials file: a service account's key, a workload identity
    federation (files, URLs, AWS, executables), an impersonation, a user's login. It does not know
    asyncio, so it renews tokens in a thread, and its requests go through the provider's own client.
    """
    try:
        from google.auth.credentials import TokenState  # noqa: PLC0415
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    except ImportError as error:
        raise missing_extra(name, "gcp") from error
    where = f"providers.{name}.credentials_file"
    file, where = (credentials_file, where) if credentials_file else _default_file()
    credentials = _load(file, where, scope)
    source = f"the credentials are {file} of {where}" if file else REMEDY

    def refresh(loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        def request(url: str, **rest: Any) -> SimpleNamespace:
            if url.startswith(METADATA_URL):
                url = metadata_url + url.removeprefix(METADATA_URL)
            sent = _send(client, deadline, url, **rest)
            return asyncio.run_coroutine_threadsafe(sent, loop).result()

        try:
            credentials.refresh(request)
        except GoogleAuthError as error:
            raise no_token("AUTH", f"{error.args[0]}; {source}") from error
        except ProviderError as error:
            raise no_token(error.kind, f"{error.message}; {source}") from error

    async def ask() -> str:
        if credentials.token_state is not TokenState.FRESH:
            loop = asyncio.get_running_loop()
            try:
                await asyncio.to_thread(refresh, loop, loop.time() + TOKEN_SECONDS_MAX)
            except ProviderError:
                # A token that expires in a few minutes is one still.
                if credentials.token_state is TokenState.INVALID:
                    raise
        return str(credentials.token or "")

    return CloudTokens(ask)


async def _send(
    client: httpx.AsyncClient,
    deadline: float,
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> SimpleNamespace:
    """Send a request of google-auth's; errors are ours, which it passes on and does not retry."""
    if set(more) - {"timeout"}:
        raise ProviderError("AUTH", f"a federation by {', '.join(more)} is not supported")
    async with asyncio.timeout_at(deadline):
        answer = await send(client, method, url, content=body, headers=headers)
    status = answer.status_code
    if status >= SERVER_ERROR or status == THROTTLED:
        raise ProviderError("TRANSIENT", f"HTTP {status}")
    if not answer.is_success:
        # Nothing of another body, which may hold a credential.
        match read_body(answer):
            case {"error": str(code), "error_description": str(text)}:
                why = f"{code}: {text}"
            case {"error": {"message": str(why)}} | {"error": str(why)}:
                pass
            case _:
                why = "no reason"
        raise ProviderError("AUTH", f"HTTP {status}: {why}")
    return SimpleNamespace(status=status, headers=answer.headers, data=answer.content)


def _default_file() -> tuple[str, str]:
    """The file of the application default credentials, and who names it; empty: there is none.

    google.auth.default() would look for it likewise, but then ask gcloud for its project, and the
    metadata server whether it exists: both without a time limit of ours.
    """
    variable = "GOOGLE_APPLICATION_CREDENTIALS"
    if named := os.environ.get(variable, ""):
        return named, variable
    folder = os.environ.get("CLOUDSDK_CONFIG") or f"{os.environ.get('HOME', '')}/.config/gcloud"
    file = Path(folder, "application_default_credentials.json")
    return (str(file), f"`{LOGIN}`") if file.is_file() else ("", "")


def _load(file: str, where: str, scope: str) -> Any:
    """Return google-auth's credentials of a file, or without one of the metadata server."""
    from google.auth import compute_engine, load_credentials_from_dict  # noqa: PLC0415
    from google.auth.credentials import with_scopes_if_required  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    if not file:
        return compute_engine.Credentials(scopes=[scope])
    try:
        known = msgspec.json.decode(read_text(file, where), type=dict[str, Any])
        for part in (known, known.get("source_credentials") or {}):
            for secret in SECRETS:
                register_secret(str(part.get(secret, "")))
        with warnings.catch_warnings():
            # It warns of files of unknown origin; the operator names this one.
            warnings.simplefilter("ignore", DeprecationWarning)
            # With scopes it would ask for the name of the project.
            loaded, _ = load_credentials_from_dict(known)
    except (GoogleAuthError, msgspec.DecodeError, AttributeError, *ODD) as error:
        raise ConfigurationError(
            f"{file} has no credentials of Google: {redacted(str(error.args[0]))}; create a key "
            "with `gcloud iam service-accounts keys create`, or a federation with `gcloud iam "
            "workload-identity-pools create-cred-config`",
            key=where,
        ) from error
    return with_scopes_if_required(loaded, [scope])


class GcpApi:
    """One API, whose tokens have one scope."""

    def __init__(
        self, client: httpx.AsyncClient, tokens: CloudTokens, url: str, timeout_seconds: float
    ) -> None:
        """`url`: what the paths of its calls continue."""
        self._client = client
        self._tokens = tokens
        self._url = url
        self._timeout = timeout_seconds

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        timeout_seconds: float = 0.0,
        **query: Any,
    ) -> Any:
        """Make one request, and return its answer."""
        token = await self._tokens.token()
        url = f"{self._url}/{path}".rstrip("/")
        answer = await send(
            self._client,
            method,
            path or url,
            url=url,
            params=query,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_seconds or self._timeout,
        )
        body_read = read_body(answer)
        if not answer.is_success:
            raise error_of(answer.status_code, body_read if isinstance(body_read, dict) else {})
        return body_read

    async def close(self) -> None:
        """Wait for no token any more."""
        await self._tokens.close()
