"""Access tokens for Google's APIs: by a service account's key, or from the metadata server.

A key signs a JWT that Google's token endpoint exchanges for an access token; on a Google machine
the metadata server issues one.
"""

import time
from typing import Any, Final

import httpx
import jwt
import msgspec

from schemas.secret_text import SecretText
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secrets
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.provider_secret import read_text
from services.provisioner.providers.token_cache import TokenCache

SCOPE: Final = "https://www.googleapis.com/auth/compute"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
METADATA_PATH: Final = "/computeMetadata/v1/instance/service-accounts/default/token"
LIFETIME_SECONDS: Final = 3600


class ServiceAccountKey(msgspec.Struct, frozen=True):
    """The used fields of a key file."""

    client_email: str
    private_key: SecretText
    private_key_id: str = ""
    token_uri: str = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address


def _read_key(file: str, name: str) -> ServiceAccountKey:
    where = f"providers.{name}.credentials_file"
    try:
        key = msgspec.json.decode(read_text(file, where), type=ServiceAccountKey)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"{file} is not a service account key: {error}; create one with `gcloud iam "
            "service-accounts keys create`",
            key=where,
        ) from error
    register_secrets(key)
    return key


def token_source(
    client: httpx.AsyncClient, credentials_file: str, name: str, metadata_url: str
) -> TokenCache:
    """Return tokens by a service account's key file, or without one from the metadata server."""
    if not credentials_file:
        url, headers = f"{metadata_url}{METADATA_PATH}", {"Metadata-Flavor": "Google"}
        remedy = "; outside of Google Cloud set credentials_file"
        return TokenCache(lambda: client.get(url, headers=headers), remedy)
    key = _read_key(credentials_file, name)

    async def request_token() -> httpx.Response:
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
        return await client.post(key.token_uri, data={"grant_type": GRANT, "assertion": signed})

    return TokenCache(request_token)
