"""Clients of AWS's services in one region: every failure is a ProviderError.

AWS counts an account's requests by action and region. Each attempt of a request waits for a slot
of its action, which replicas share, and the SDK repeats nothing by itself.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any, Final, TypeVar

import aioboto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    HTTPClientError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)
from botocore.exceptions import ConnectionError as ConnectionFailure

from services.provisioner.provider_client.provider_errors import SERVER_ERROR, ProviderError
from services.provisioner.provider_client.rate_limit import (
    MakeRateLimiter,
    RateLimiter,
    RequestRate,
)
from services.provisioner.providers.aws_errors import error_of

T = TypeVar("T")
Fill = Callable[[], Awaitable[dict[str, Any]]]
"""Returns the parameters of a request whose slot has come."""

PAGE: Final = 1000
"""Entries of one page of a list."""
TRIES_MAX: Final = 3
"""Attempts of one request: every request that is made here is idempotent."""
AGAIN_AFTER_SECONDS: Final = 0.2
"""Before the second attempt; doubled before the third."""
SAYS_NOTHING: Final = frozenset({"THROTTLE", "AUTH"})
"""Answers that leave open what became of an earlier attempt."""
SLOT_WAIT_SECONDS_MAX: Final = 60.0
"""A launch that waits longer checks whether it is still needed, and then waits again."""
CONNECT_SECONDS_MAX: Final = 60.0
"""A profile may name a program that returns credentials, which may hang."""
WAITS: Final = 16
"""Requests wait for half as long at least, each longer than the one before it: launches that began
together must not all be in their back-off at the same time."""
ACCOUNT_CHARS: Final = 12
RATES: Final = {
    "run_instances": RequestRate(interval_seconds=0.5, burst=5),
    "terminate_instances": RequestRate(interval_seconds=0.5, burst=5),
}
"""EC2's documented limit of RunInstances; less than that of TerminateInstances, which takes many
instances at a time."""
READ_RATE: Final = RequestRate(interval_seconds=0.1, burst=50)
CHANGE_RATE: Final = RequestRate(interval_seconds=0.2, burst=20)
"""Half of what EC2 documents for actions without limits of their own."""
PRICE_LIST: Final = "pricing"
PRICE_LIST_REGIONS: Final = {"eu": "eu-central-1", "ap": "ap-south-1"}
"""The price list has endpoints in few regions: by the first part of a region's name."""
SESSION_ENDED: Final = (SSOError, TokenRetrievalError, NoAuthTokenError)
NO_CREDENTIALS: Final = (
    *(NoCredentialsError, PartialCredentialsError, CredentialRetrievalError),
    *(UnknownCredentialError, ProfileNotFound, ConfigNotFound, ConfigParseError),
)
"""What the SDK raises before it sends anything; only an operator can repair it."""


def rate_of(what: str) -> RequestRate:
    """Return the rate of an action, by the name of the SDK's method."""
    return RATES.get(what, READ_RATE if what.startswith("describe_") else CHANGE_RATE)


def described(answer: Any) -> list[Any]:
    """The instances in an answer of DescribeInstances, which groups them by their requests."""
    return [each for request in answer["Reservations"] for each in request["Instances"]]


class AwsClients:
    """Holds one client for each service, and one rate limiter for each action."""

    def __init__(
        self,
        region: str,
        *,
        profile: str,
        endpoint_url: str,
        timeout_seconds: float,
        rate_limiter: MakeRateLimiter,
    ) -> None:
        """Connect at the first request."""
        self.region = region
        self._profile = profile
        self._endpoint_url = endpoint_url
        self._timeout_seconds = timeout_seconds
        self._stack = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._clients: dict[str, Any] = {}
        self._make_rate_limiter = rate_limiter
        self._rate_limiters: dict[str, tuple[RateLimiter, asyncio.Lock]] = {}
        self._waits = cycle(range(1, WAITS + 1))

    async def call(self, service: str, what: str, **given: Any) -> Any:
        """Make one request, again where the failure may pass; THROTTLE if no slot came in time."""

        async def fill() -> dict[str, Any]:
            return given

        return await self.call_with(service, what, fill)

    async def pages(self, service: str, what: str, **given: Any) -> AsyncIterator[Any]:
        """Request every page of a list, one after the other."""
        more: dict[str, Any] = {}
        while True:
            page = await self.call(service, what, MaxResults=PAGE, **given, **more)
            yield page
            if not page.get("NextToken"):
                return
            more = {"NextToken": page["NextToken"]}

    async def call_with(self, service: str, what: str, fill: Fill) -> Any:
        """Make one with the parameters as they are when an attempt has its slot."""
        doubt: ProviderError | None = None
        for tries in range(TRIES_MAX):
            try:
                return await self._call_once(service, what, fill)
            except ProviderError as error:
                failed = doubt if doubt is not None and error.kind in SAYS_NOTHING else error
                if not _may_pass(error) or tries == TRIES_MAX - 1:
                    raise failed from error.__cause__
                if error.rule.in_doubt:
                    doubt = error
                    await asyncio.sleep(AGAIN_AFTER_SECONDS * 2**tries)
        raise AssertionError

    async def _call_once(self, service: str, what: str, fill: Fill) -> Any:
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                client = await self._attempt(self._connect(service), "connect")
        except TimeoutError:
            raise ProviderError("TRANSIENT", "connect: the SDK finds no credentials") from None
        limiter, queue = self._slots(what)
        seconds_max = SLOT_WAIT_SECONDS_MAX * (1 + next(self._waits) / WAITS) / 2
        await _wait_for_slot(limiter, queue, what, seconds_max)
        try:
            return await self._attempt(getattr(client, what)(**await fill()), what)
        except ProviderError as error:
            if error.kind == "THROTTLE":
                await limiter.report_throttled()
            raise

    async def _attempt(self, request: Awaitable[T], what: str) -> T:
        try:
            return await request
        except ClientError as error:
            raise error_of(error.response) from error
        except SESSION_ENDED as error:
            profile = f" --profile {self._profile}" if self._profile else ""
            remedy = f"run `aws sso login{profile}` as the provisioner's user"
            raise ProviderError("AUTH", f"{error}; {remedy}") from error
        except NO_CREDENTIALS as error:
            remedy = "set `profile`, AWS_PROFILE, AWS_ACCESS_KEY_ID or an instance role"
            raise ProviderError("AUTH", f"{error}; {remedy}") from error
        except BotoCoreError as error:
            raise ProviderError("TRANSIENT", f"{what}: {error}") from error

    def _slots(self, what: str) -> tuple[RateLimiter, asyncio.Lock]:
        """The limiter of an action, and the queue for it."""
        if what not in self._rate_limiters:
            account = f"{self._profile}/{self._endpoint_url}/{self.region}"
            digest = hashlib.sha256(account.encode()).hexdigest()[:ACCOUNT_CHARS]
            name = f"aws-{digest}-{what.replace('_', '-')}"
            self._rate_limiters[what] = (
                self._make_rate_limiter(name, rate_of(what)),
                asyncio.Lock(),
            )
        return self._rate_limiters[what]

    async def close(self) -> None:
        """Close the connections."""
        await self._stack.aclose()
        self._clients.clear()

    async def _connect(self, service: str) -> Any:
        async with self._connecting:
            if service not in self._clients:
                region = self.region
                if service == PRICE_LIST:
                    region = PRICE_LIST_REGIONS.get(region.partition("-")[0], "us-east-1")
                session = aioboto3.Session(region_name=region, profile_name=self._profile or None)
                seconds = self._timeout_seconds
                client = session.client(
                    service,
                    endpoint_url=self._endpoint_url or None,
                    config=Config(
                        connect_timeout=seconds,
                        read_timeout=seconds,
                        retries={"mode": "standard", "total_max_attempts": 1},
                    ),
                )
                self._clients[service] = await self._stack.enter_async_context(client)
            return self._clients[service]


async def _wait_for_slot(
    limiter: RateLimiter, queue: asyncio.Lock, what: str, seconds_max: float
) -> None:
    """Wait for a slot; THROTTLE if it is not this request's turn in time: no slot is wasted."""
    try:
        async with asyncio.timeout(seconds_max):
            await queue.acquire()
    except TimeoutError:
        raise ProviderError(
            "THROTTLE", f"{what}: other requests wait for EC2's rate limit; this one was not sent"
        ) from None
    try:
        await limiter.wait_for_slot()
    finally:
        queue.release()


def _may_pass(error: ProviderError) -> bool:
    """Whether AWS is busy, or a server or the way to it failed; not the request."""
    if isinstance(error.__cause__, ClientError):
        return error.kind == "THROTTLE" or (error.status or 0) >= SERVER_ERROR
    return isinstance(error.__cause__, (HTTPClientError, ConnectionFailure))
