"""Azure Resource Manager over HTTP: requests, pages, and operations that take their time.

A request that was accepted goes on after its answer, which names where to look for the end: a
monitor (`Azure-AsyncOperation`) that reports the state, or a place (`Location`) that answers 202
until it is done. The token is sent to nothing but the endpoint itself.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Final

import httpx
import msgspec

from schemas.launch_offers import Market
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.azure_errors import error_of
from services.provisioner.providers.provider_http import retry_after, send
from services.provisioner.providers.token_cache import TokenCache

WAIT_MAX_SECONDS: Final = 30.0
"""Of what Azure asks to wait between two looks."""
LOOKS_FAILED_MAX: Final = 5
"""In a row, before an operation is given up: it may have ended either way."""
PAGES_MAX: Final = 10_000
PUBLIC_PAGES_MAX: Final = 50
DONE: Final = "Succeeded"
ENDED: Final = frozenset({"Failed", "Canceled"})


class AzureClient:
    """One subscription's Resource Manager."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        tokens: TokenCache,
        *,
        base_url: str,
        poll_seconds: float,
    ) -> None:
        """`poll_seconds`: between looks, where Azure names no other."""
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
        """One request, by path or by an address that Azure gave; an AzureError if refused.

        `market` is a launch's: on it depends what some codes mean.
        """
        url = self._address(path)
        token = await self._tokens.token()
        params = (query or {}) | ({"api-version": version} if version else {})
        answer = await send(
            self._client,
            method,
            path,
            url=url,
            # None keeps the query of an address that Azure gave.
            params=params or None,
            json=body,
            headers={"Authorization": f"Bearer {token}"} | (headers or {}),
        )
        if not answer.is_success:
            raise error_of(answer.status_code, _read(answer), market, retry_after(answer))
        return answer

    async def get(self, path: str, *, version: str, query: dict[str, str] | None = None) -> Any:
        """A resource; None where there is none."""
        try:
            answer = await self.send("GET", path, version=version, query=query)
        except ProviderError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return _read(answer)

    async def pages(
        self, path: str, *, version: str, query: dict[str, str] | None = None
    ) -> list[Any]:
        """Every entry of a list, to the end of its last page."""
        found: list[Any] = []
        page = _read(await self.send("GET", path, version=version, query=query))
        for _ in range(PAGES_MAX):
            if not isinstance(page, dict) or not isinstance(page.get("value"), list):
                raise ProviderError("TRANSIENT", f"GET {path}: an answer that is no list")
            found += page["value"]
            if not page.get("nextLink"):
                return found
            page = _read(await self.send("GET", page["nextLink"]))
        raise ProviderError("TRANSIENT", f"GET {path}: a list without an end")

    async def public(self, base: str, path: str, query: dict[str, str]) -> list[Any]:
        """Every entry of a list that is public: nothing is sent that says who asks."""
        found: list[Any] = []
        more, params = f"{base}{path}", query
        for _ in range(PUBLIC_PAGES_MAX):
            if not more.startswith(f"{base}/"):
                raise ProviderError("TRANSIENT", f"an address that is not {base}'s: {more[:200]}")
            answer = await send(self._client, "GET", path, url=more, params=params or None)
            page = _read(answer)
            if not answer.is_success:
                raise error_of(answer.status_code, page, "on-demand", retry_after(answer))
            if not isinstance(page, dict) or not isinstance(page.get("Items"), list):
                raise ProviderError("TRANSIENT", f"GET {path}: an answer that is no list")
            found += page["Items"]
            more, params = page.get("NextPageLink") or "", {}
            if not more:
                return found
        raise ProviderError("TRANSIENT", f"GET {path}: a list without an end")

    async def finish(self, answer: httpx.Response, market: Market = "on-demand") -> None:
        """Wait until what a request began has ended; raise what it failed of."""
        monitor = answer.headers.get("Azure-AsyncOperation", "")
        place = answer.headers.get("Location", "")
        failed = 0
        while monitor or place:
            await asyncio.sleep(self._wait(answer))
            try:
                answer = await self.send("GET", monitor or place)
            except ProviderError as error:
                failed += 1
                if failed == LOOKS_FAILED_MAX:
                    # Whatever keeps us from looking, it may have ended either way.
                    raise ProviderError(
                        "TRANSIENT", f"an operation whose end cannot be seen: {error.message}"
                    ) from error
                await asyncio.sleep(min(error.retry_after or 0.0, WAIT_MAX_SECONDS))
                continue
            failed = 0
            said = _read(answer)
            state = said.get("status", "") if monitor and isinstance(said, dict) else ""
            if state in ENDED:
                raise error_of(0, said if "error" in said else _no_reason(state), market)
            if state == DONE or (not monitor and answer.status_code != HTTPStatus.ACCEPTED):
                return

    async def pause(self) -> None:
        """Wait for as long as between two looks."""
        await asyncio.sleep(self._poll_seconds)

    def _wait(self, answer: httpx.Response) -> float:
        asked = retry_after(answer)
        return min(self._poll_seconds if asked is None else asked, WAIT_MAX_SECONDS)

    def _address(self, path: str) -> str:
        if path.startswith("/"):
            return f"{self._base_url}{path}"
        if path.startswith(f"{self._base_url}/"):
            return path
        raise ProviderError("TRANSIENT", f"an address that is not Azure's: {path[:200]}")


# --- parts ---------------------------------------------------------------------------------------


def _read(answer: httpx.Response) -> Any:
    try:
        return msgspec.json.decode(answer.content or b"{}")
    except msgspec.DecodeError as error:
        if not answer.is_success:
            return {"error": {"message": answer.text[:200]}}
        raise ProviderError("TRANSIENT", f"an answer that cannot be read: {error}") from error


def _no_reason(state: str) -> dict[str, Any]:
    return {"error": {"code": "", "message": f"the operation is {state} and names no reason"}}
