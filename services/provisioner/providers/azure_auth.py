"""Access tokens for Azure, by azure-identity: the options' service principal, or its own chain.

The chain is DefaultAzureCredential's without what belongs to desktops: a principal in environment
variables (secret or certificate), a workload identity, a managed identity, the Azure CLI's login.
"""

import os
from typing import Any, Final

from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secret
from services.provisioner.providers.azure_vm import AzureOptions
from services.provisioner.providers.cloud_tokens import CloudTokens, missing_extra, no_token
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
    """Return tokens of the options' service principal, else of the chain."""
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
