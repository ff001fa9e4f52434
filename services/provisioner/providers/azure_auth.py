"""Access tokens for Azure: a service principal's, or those of a machine's managed identity."""

from typing import Final

import httpx
import msgspec

from services.primitives.errors import ConfigurationError
from services.provisioner.providers.provider_secret import read_secret
from services.provisioner.providers.token_cache import TokenCache

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
            raise ConfigurationError("client_secret_file needs tenant and client_id", key=where)
        return None
    if not client_id:
        raise ConfigurationError("must be set where tenant is", key=f"{where}.client_id")
    what = "the service principal's secret"
    secret = read_secret(name, "client_secret", what, env=secret_env, file=secret_file)
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
