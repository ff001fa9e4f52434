"""Calls Azure Resource Manager over HTTP, with tokens by azure-identity: pages, long operations.

An accepted request continues after its answer, which names a URL to poll: `Azure-AsyncOperation`
reports the state, `Location` answers 202 until the operation is done. The token is sent only to the
endpoint itself.
"""

import asyncio
import os
from http import HTTPStatus
from typing import Any, Final

import httpx

from schemas.launch_offers import Market
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secret
from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers.azure_errors import error_of
from services.provisioner.providers.azure_vm import AzureOptions
from services.provisioner.providers.cloud_tokens import CloudTokens, missing_extra, no_token
from services.provisioner.providers.provider_http import read_body, retry_after, send
from services.provisioner.providers.provider_secret import read_secret

METADATA_URL: Final = "http://169.254.169.254"
REMEDY: Final = "outside of Azure set tenant, client_id and client_secret_env"
REFUSED: Final = frozenset({400, 401, 403})
"""Statuses that another attempt will not change."""
DESKTOP: Final = ("shared_token_cache", "visual_studio_code", "powershell", "developer_cli")
SECRETS: Final = ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD")
"""Variables that the library reads."""
CLI_SECONDS_MAX: Final = 20
"""Of `az account get-access-token`."""
WAIT_MAX_SECONDS: Final = 30.0
"""Longest wait between two polls that Azure may request."""
FAILED_POLLS_MAX: Final = 5
"""In a row, before an operation is given up; it may have succeeded or failed."""
PAGES_MAX: Final = 10_000
PUBLIC_PAGES_MAX: Final = 50
DONE: Final = "Succeeded"
ENDED: Final = frozenset({"Failed", "Canceled"})


class _Requests:
    """Watches a credential's requests, because its chain keeps only their texts."""

    def __init__(self, metadata_url: str) -> None:
        self._metadata_url = metadata_url
        self.status = 0
        """Of the last answer; 0: the last request had none."""

    def sent(self, request: Any) -> None:
        """Send what is for the metadata service to where the options say."""
        self.status = 0
        message = request.http_request
        if message.url.startswith(METADATA_URL):
            message.url = self._metadata_url + message.url.removeprefix(METADATA_URL)

    def answered(self, response: Any) -> None:
        """Keep the status."""
        self.status = response.http_response.status_code


def token_source(options: AzureOptions, name: str) -> CloudTokens:
    """Return tokens of the options' service principal, else of the chain.

    The chain is DefaultAzureCredential's without what belongs to desktops: a principal in
    environment variables (secret or certificate), a workload identity, a managed identity, the
    Azure CLI's login.
    """
    try:
        from azure.core.exceptions import AzureError  # noqa: PLC0415

        requests = _Requests(options.metadata_url)
        credential = _credential(options, name, requests)
    except ImportError as error:
        raise missing_extra(name, "azure") from error
    remedy = f"check tenant, client_id and the secret of providers.{name}"
    remedy = remedy if options.tenant else REMEDY
    scope = f"{options.audience}/.default"

    async def ask() -> str:
        requests.status = 0
        try:
            return str((await credential.get_token(scope)).token)
        except AzureError as error:
            status = f"HTTP {requests.status}" if requests.status else "no answer"
            why = f"{status}; {remedy}: {error.message}"
            refused = requests.status in REFUSED or "az login" in error.message
            raise no_token("AUTH" if refused else "TRANSIENT", why) from error

    return CloudTokens(ask, credential.close)


def _credential(options: AzureOptions, name: str, requests: _Requests) -> Any:
    import certifi  # noqa: PLC0415
    from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential  # noqa: PLC0415

    where = f"providers.{name}"
    seconds = float(options.timeout)
    common: dict[str, Any] = {
        "authority": options.login_url,
        "connection_timeout": seconds,
        "read_timeout": seconds,
        "retry_total": 0,  # the provisioner repeats what failed
        # As httpx does, which makes all other requests.
        "connection_verify": os.environ.get("SSL_CERT_FILE") or certifi.where(),
        "raw_request_hook": requests.sent,
        "raw_response_hook": requests.answered,
    }
    try:
        if options.tenant:
            return ClientSecretCredential(options.tenant, *_principal(options, name), **common)
        if options.client_secret_file:
            raise ConfigurationError("client_secret_file needs tenant and client_id", key=where)
        if options.client_id:
            common["managed_identity_client_id"] = options.client_id
        for secret in SECRETS:
            register_secret(os.environ.get(secret, ""))
        excluded = {f"exclude_{each}_credential": True for each in DESKTOP}
        return DefaultAzureCredential(process_timeout=CLI_SECONDS_MAX, **excluded, **common)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no credentials of Azure: {error}", key=where) from error


def _principal(options: AzureOptions, name: str) -> tuple[str, str]:
    """The service principal's application id and secret."""
    if not options.client_id:
        raise ConfigurationError("must be set where tenant is", key=f"providers.{name}.client_id")
    secret = read_secret(
        name,
        "client_secret",
        "the service principal's secret",
        env=options.client_secret_env,
        file=options.client_secret_file,
    )
    return options.client_id, secret


class AzureClient:
    """Calls the Resource Manager of one subscription."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        tokens: CloudTokens,
        *,
        base_url: str,
        poll_seconds: float,
    ) -> None:
        """`poll_seconds`: between two polls, unless Azure names another time."""
        self._client = client
        self._tokens = tokens
        self._base_url = base_url.rstrip("/")
        self._poll_seconds = poll_seconds

    async def send(
        self,
        method: str,
        path: str,
        *,
        version: str = "",
        body: Any = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        market: Market = "on-demand",
    ) -> httpx.Response:
        """Send a request by path, or by an address from Azure; ProviderError if refused.

        `market`: of a launch; the meaning of some codes depends on it.
        """
        url = self._address(path)
        token = await self._tokens.token()
        params = (query or {}) | ({"api-version": version} if version else {})
        answer = await send(
            self._client,
            method,
            path,
            url=url,
            # None keeps the query of an address from Azure.
            params=params or None,
            json=body,
            headers={"Authorization": f"Bearer {token}"} | (headers or {}),
        )
        if not answer.is_success:
            raise error_of(answer.status_code, read_body(answer), market, retry_after(answer))
        return answer

    async def get(self, path: str, *, version: str, query: dict[str, str] | None = None) -> Any:
        """Return a resource; None if there is none."""
        call = self.send("GET", path, version=version, query=query)
        answer = await none_if(call, HTTPStatus.NOT_FOUND)
        return None if answer is None else read_body(answer)

    async def pages(
        self, path: str, *, version: str, query: dict[str, str] | None = None
    ) -> list[Any]:
        """Return the entries of all pages of a list."""
        found: list[Any] = []
        page = read_body(await self.send("GET", path, version=version, query=query))
        for _ in range(PAGES_MAX):
            if not isinstance(page, dict) or not isinstance(page.get("value"), list):
                raise ProviderError("TRANSIENT", f"GET {path}: the answer is not a list")
            found += page["value"]
            if not page.get("nextLink"):
                return found
            page = read_body(await self.send("GET", page["nextLink"]))
        raise ProviderError("TRANSIENT", f"GET {path}: the list does not end")

    async def public(self, base: str, path: str, query: dict[str, str]) -> list[Any]:
        """Return the entries of all pages of a public list; the token is not sent."""
        found: list[Any] = []
        more, params = f"{base}{path}", query
        for _ in range(PUBLIC_PAGES_MAX):
            if not more.startswith(f"{base}/"):
                raise ProviderError("TRANSIENT", f"not an address of {base}: {more[:200]}")
            answer = await send(self._client, "GET", path, url=more, params=params or None)
            page = read_body(answer)
            if not answer.is_success:
                raise error_of(answer.status_code, page, "on-demand", retry_after(answer))
            if not isinstance(page, dict) or not isinstance(page.get("Items"), list):
                raise ProviderError("TRANSIENT", f"GET {path}: the answer is not a list")
            found += page["Items"]
            more, params = page.get("NextPageLink") or "", {}
            if not more:
                return found
        raise ProviderError("TRANSIENT", f"GET {path}: the list does not end")

    async def run(
        self, method: str, path: str, *, market: Market = "on-demand", **request: Any
    ) -> None:
        """Send a request, and wait until what it started has ended."""
        await self._finish(await self.send(method, path, market=market, **request), market)

    async def _finish(self, answer: httpx.Response, market: Market) -> None:
        """Wait until an accepted operation has ended; raise its error."""
        monitor = answer.headers.get("Azure-AsyncOperation", "")
        place = answer.headers.get("Location", "")
        failed = 0
        while monitor or place:
            await asyncio.sleep(self._wait(answer))
            try:
                answer = await self.send("GET", monitor or place)
            except ProviderError as error:
                failed += 1
                if failed == FAILED_POLLS_MAX:
                    # It may have succeeded or failed.
                    raise ProviderError(
                        "TRANSIENT", f"the result of an operation is unknown: {error.message}"
                    ) from error
                await asyncio.sleep(min(error.retry_after or 0.0, WAIT_MAX_SECONDS))
                continue
            failed = 0
            result = read_body(answer)
            state = result.get("status", "") if monitor and isinstance(result, dict) else ""
            if state in ENDED:
                unnamed = {"code": "", "message": f"the operation is {state} and names no reason"}
                raise error_of(0, {"error": unnamed} | result, market)
            if state == DONE or (not monitor and answer.status_code != HTTPStatus.ACCEPTED):
                return

    async def pause(self) -> None:
        """Wait between two polls."""
        await asyncio.sleep(self._poll_seconds)

    def _wait(self, answer: httpx.Response) -> float:
        requested = retry_after(answer)
        return min(self._poll_seconds if requested is None else requested, WAIT_MAX_SECONDS)

    def _address(self, path: str) -> str:
        if path.startswith("/"):
            return f"{self._base_url}{path}"
        if path.startswith(f"{self._base_url}/"):
            return path
        raise ProviderError("TRANSIENT", f"not an address of Azure: {path[:200]}")
