"""Azure Resource Manager over HTTP: requests, pages, and long operations.

An accepted request continues after its answer, which names a URL to poll: `Azure-AsyncOperation`
reports the state, `Location` answers 202 until the operation is done. The token is sent only to the
endpoint itself.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Final

import httpx

from schemas.launch_offers import Market
from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers.azure_errors import error_of
from services.provisioner.providers.cloud_tokens import CloudTokens
from services.provisioner.providers.provider_http import read_body, retry_after, send

WAIT_MAX_SECONDS: Final = 30.0
"""Longest wait between two polls that Azure may request."""
FAILED_POLLS_MAX: Final = 5
"""In a row, before an operation is given up; it may have succeeded or failed."""
PAGES_MAX: Final = 10_000
PUBLIC_PAGES_MAX: Final = 50
DONE: Final = "Succeeded"
ENDED: Final = frozenset({"Failed", "Canceled"})


class AzureClient:
    """One subscription's Resource Manager."""

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
                raise error_of(0, result if "error" in result else _no_reason(state), market)
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


def _no_reason(state: str) -> dict[str, Any]:
    return {"error": {"code": "", "message": f"the operation is {state} and names no reason"}}
