"""Clients of AWS's services in one region: every failure is a ProviderError."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

import aioboto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws_errors import error_of

TRIES_MAX: Final = 3
"""Attempts of one request by the SDK: every request that is made here is idempotent."""
SESSION_ENDED: Final = (SSOError, TokenRetrievalError, NoAuthTokenError)
NO_CREDENTIALS: Final = (
    *(NoCredentialsError, PartialCredentialsError, CredentialRetrievalError),
    *(UnknownCredentialError, ProfileNotFound, ConfigNotFound, ConfigParseError),
)
"""What the SDK raises before it sends anything; only an operator can repair it."""


class AwsClients:
    """One client for each service."""

    def __init__(
        self, region: str, *, profile: str, endpoint_url: str, timeout_seconds: float
    ) -> None:
        """Connect at the first request."""
        self.region = region
        self._profile = profile
        self._endpoint_url = endpoint_url
        self._timeout_seconds = timeout_seconds
        self._stack = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._clients: dict[str, Any] = {}

    async def call(self, service: str, what: str, **given: Any) -> Any:
        """Make one request."""
        try:
            client = await self._connect(service)
            return await getattr(client, what)(**given)
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

    async def close(self) -> None:
        """Close the connections."""
        await self._stack.aclose()
        self._clients.clear()

    async def _connect(self, service: str) -> Any:
        async with self._connecting:
            if service not in self._clients:
                session = aioboto3.Session(
                    region_name=self.region, profile_name=self._profile or None
                )
                seconds = self._timeout_seconds
                client = session.client(
                    service,
                    endpoint_url=self._endpoint_url or None,
                    config=Config(
                        connect_timeout=seconds,
                        read_timeout=seconds,
                        retries={"mode": "standard", "total_max_attempts": TRIES_MAX},
                    ),
                )
                self._clients[service] = await self._stack.enter_async_context(client)
            return self._clients[service]
