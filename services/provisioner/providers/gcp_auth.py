"""Access tokens for Google's APIs: by a service account's key, or from the metadata server.

A key signs a short statement (a JWT) that Google's token endpoint turns into an access token; on a
Google machine the metadata server hands one out. Tokens live an hour; each is used until shortly
before its end.
"""

import time
from pathlib import Path
from typing import Any, Final

import httpx
import jwt
import msgspec

from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.token_cache import TokenCache

SCOPE: Final = "https://www.googleapis.com/auth/compute"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
METADATA_PATH: Final = "/computeMetadata/v1/instance/service-accounts/default/token"
LIFETIME_SECONDS: Final = 3600


class ServiceAccountKey(msgspec.Struct, frozen=True):
    """Of a key file, what is used."""

    client_email: str
    private_key: str
    private_key_id: str = ""
    token_uri: str = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address


def read_key(file: str, name: str) -> ServiceAccountKey:
    """A service account's key file; ConfigurationError where it is none."""
    where = f"providers.{name}.credentials_file"
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=ServiceAccountKey)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}", key=where) from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"{file} is no service account key: {error}; make one with `gcloud iam "
            "service-accounts keys create`",
            key=where,
        ) from error


class TokenSource:
    """Hands out an access token that is good for a while yet."""

    def __init__(
        self, client: httpx.AsyncClient, key: ServiceAccountKey | None, metadata_url: str
    ) -> None:
        """Without a key, ask the metadata server."""
        self._client = client
        self._key = key
        self._metadata_url = metadata_url
        remedy = "" if key else "; outside of Google Cloud set credentials_file"
        self._cache = TokenCache(self._ask, remedy)

    async def token(self) -> str:
        """The token; ProviderError where none can be had."""
        return await self._cache.token()

    async def _ask(self) -> httpx.Response:
        return await (self._by_key(self._key) if self._key else self._by_metadata())

    async def _by_key(self, key: ServiceAccountKey) -> httpx.Response:
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": key.client_email,
            "scope": SCOPE,
            "aud": key.token_uri,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
        }
        headers = {"kid": key.private_key_id} if key.private_key_id else None
        try:
            signed = jwt.encode(claims, key.private_key, algorithm="RS256", headers=headers)
        except (ValueError, jwt.PyJWTError) as error:
            raise ProviderError("AUTH", f"the private key cannot be used: {error}") from error
        return await self._client.post(
            key.token_uri, data={"grant_type": GRANT, "assertion": signed}
        )

    async def _by_metadata(self) -> httpx.Response:
        return await self._client.get(
            f"{self._metadata_url}{METADATA_PATH}", headers={"Metadata-Flavor": "Google"}
        )
