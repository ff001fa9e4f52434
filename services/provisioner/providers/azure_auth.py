"""Access tokens for Azure: a service principal's, or those of a machine's managed identity."""

from typing import Final

import httpx

from services.primitives.errors import ConfigurationError
from services.provisioner.providers.azure_vm import AzureOptions
from services.provisioner.providers.provider_secret import read_secret
from services.provisioner.providers.token_cache import TokenCache

METADATA_PATH: Final = "/metadata/identity/oauth2/token"
METADATA_VERSION: Final = "2018-02-01"
REMEDY: Final = "; outside of Azure set tenant, client_id and client_secret_env"


def token_source(client: httpx.AsyncClient, options: AzureOptions, name: str) -> TokenCache:
    """Return tokens of the options' service principal, else of the machine's managed identity."""
    where = f"providers.{name}"
    if not options.tenant:
        if options.client_secret_file:
            raise ConfigurationError("client_secret_file needs tenant and client_id", key=where)
        query = {"api-version": METADATA_VERSION, "resource": f"{options.audience}/"}
        query |= {"client_id": options.client_id} if options.client_id else {}
        url, headers = f"{options.metadata_url}{METADATA_PATH}", {"Metadata": "true"}
        return TokenCache(lambda: client.get(url, params=query, headers=headers), REMEDY)
    if not options.client_id:
        raise ConfigurationError("must be set where tenant is", key=f"{where}.client_id")
    form = {
        "grant_type": "client_credentials",
        "client_id": options.client_id,
        "client_secret": read_secret(
            name,
            "client_secret",
            "the service principal's secret",
            env=options.client_secret_env,
            file=options.client_secret_file,
        ),
        "scope": f"{options.audience}/.default",
    }
    url = f"{options.login_url}/{options.tenant}/oauth2/v2.0/token"
    return TokenCache(lambda: client.post(url, data=form))
