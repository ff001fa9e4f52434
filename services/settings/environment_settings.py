"""Settings that the environment names, which count more than the file."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from schemas.settings import Settings
from services.primitives.errors import ConfigurationError
from services.settings.address_validation import bus_urls

NATS_VARIABLES: Final = {
    "url": "NAVARCH_NATS_URL",
    "creds_file": "NAVARCH_NATS_CREDS_FILE",
    "agent_signing_file": "NAVARCH_NATS_AGENT_SIGNING_FILE",
    "revocation_file": "NAVARCH_NATS_REVOCATION_FILE",
}
"""Key of `nats` -> its variable."""
PORT_VARIABLE: Final = "NAVARCH_HTTP_PORT"
PORT_MAX: Final = 65_535
CREDENTIALS_IN_URL: Final = (
    "has credentials in it, and new nodes, logs and messages have the URL; write "
    "`nats.creds_file`, or `nats.user` and `password: ${NATS_PASSWORD}`, and the URL without them"
)


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """The settings with those of the environment; ConfigurationError where one is wrong."""
    named = {key: environment.get(variable) for key, variable in NATS_VARIABLES.items()}
    given = {key: value for key, value in named.items() if value}
    changes: dict[str, Any] = {"nats": msgspec.structs.replace(settings.nats, **given)}
    if port := environment.get(PORT_VARIABLE):
        if not port.isdecimal() or int(port) > PORT_MAX:
            problem = f"{port} is not a port: use 0 to {PORT_MAX}"
            raise ConfigurationError(problem, key=PORT_VARIABLE)
        changes["http"] = msgspec.structs.replace(settings.http, port=int(port))
    settings = msgspec.structs.replace(settings, **changes)
    for section, key, urls in bus_urls(settings):
        if any("@" in _host(url) for url in urls.split(",")):
            raise ConfigurationError(CREDENTIALS_IN_URL, key=f"{section}.{key}")
    return settings


def _host(url: str) -> str:
    try:
        return urlsplit(url.strip()).netloc
    except ValueError:  # an unclosed bracket; connecting reports it
        return ""
