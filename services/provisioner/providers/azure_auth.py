"""Access tokens for Azure: a service principal's, or those of a machine's managed identity."""

import os
from pathlib import Path
from typing import Final

import httpx
import msgspec

from services.provisioner.providers.token_cache import TokenCache
from services.runtime.errors import ConfigurationError

METADATA_PATH: Final = "/metadata/identity/oauth2/token"
METADATA_VERSION: Final = "2018-02-01"
REMEDY: Final = "; outside of Azure set tenant, client_id and client_secret_env"


class ServicePrincipal(msgspec.Struct, frozen=True, kw_only=True):
    """An application that may act in a subscription."""

    tenant: str
    client_id: str
    secret: str


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Where tokens are had, and for what."""

    login_url: str
    metadata_url: str
    audience: str


def read_principal(
    name: str, *, tenant: str, client_id: str, secret_env: str, secret_file: str
) -> ServicePrincipal | None:
    """The service principal of a provider's options; None: a managed identity is to serve."""
    where = f"providers.{name}"
    if not tenant:
        if secret_file:
            raise ConfigurationError(f"{where}: client_secret_file needs tenant and client_id")
        return None
    if not client_id:
        raise ConfigurationError(f"{where}.client_id: must be set where tenant is")
    if not secret_file:
        secret = os.environ.get(secret_env, "")
        if not secret:
            raise ConfigurationError(
                f"{where}: the environment variable {secret_env} is not set; set it to the "
                "service principal's secret, or name another by client_secret_env, or a file by "
                "client_secret_file"
            )
        return ServicePrincipal(tenant=tenant, client_id=client_id, secret=secret)
    try:
        secret = Path(secret_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(
            f"{where}.client_secret_file: {secret_file}: {error.strerror}"
        ) from error
    if not secret:
        raise ConfigurationError(f"{where}.client_secret_file: {secret_file} is empty")
    return ServicePrincipal(tenant=tenant, client_id=client_id, secret=secret)


def token_source(
    client: httpx.AsyncClient,
    principal: ServicePrincipal | None,
    endpoints: Endpoints,
    identity: str,
) -> TokenCache:
    """Tokens by the principal; without one by the machine's identity, by client id where given."""

    async def by_principal(who: ServicePrincipal) -> httpx.Response:
        return await client.post(
            f"{endpoints.login_url}/{who.tenant}/oauth2/v2.0/token",
            data={
                "grant_type": "client_credentials",
                "client_id": who.client_id,
                "client_secret": who.secret,
                "scope": f"{endpoints.audience}/.default",
            },
        )

    async def by_machine() -> httpx.Response:
        wanted = {"api-version": METADATA_VERSION, "resource": f"{endpoints.audience}/"}
        return await client.get(
            f"{endpoints.metadata_url}{METADATA_PATH}",
            params=wanted | ({"client_id": identity} if identity else {}),
            headers={"Metadata": "true"},
        )

    if principal is None:
        return TokenCache(by_machine, REMEDY)
    return TokenCache(lambda: by_principal(principal))
