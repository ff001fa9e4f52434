"""Reads what the gateway needs to start: credentials, tokens, an address."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from schemas.gateway_settings import GatewaySettings
from schemas.permissions import GATEWAY, REQUEST_BYTES_MAX, inbox
from schemas.settings import AUTHENTICATOR_PLUGINS, NatsSettings, Settings
from services.bus.nats.connection_options import ConnectOptions, credentials
from services.gateway.access_tokens import CHARS_MAX, CHARS_MIN, VARIABLE, with_variable
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secret
from services.settings.plugin_loader import locate, make_plugin, setting_error
from services.settings.problem_list import ProblemList

PORT_VARIABLE: Final = "NAVARCH_GATEWAY_PORT"
PROBES_PORT_VARIABLE: Final = "NAVARCH_GATEWAY_PROBES_PORT"
GATEWAY_KEYS: Final = ("gateway.host", "gateway.port")
"""The settings of where it listens."""
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
CERTIFICATE: Final = "certificate"
"""Type of the authenticator that needs client certificates."""
PING_SECONDS: Final = 2


def bus_options(settings: NatsSettings) -> ConnectOptions:
    """Return how the gateway connects to the bus."""
    return ConnectOptions(
        settings=settings,
        name=GATEWAY,
        inbox_prefix=inbox(GATEWAY),
        ping_seconds=PING_SECONDS,
        message_bytes_max=REQUEST_BYTES_MAX,
        may_create_consumers=not settings.creds_file,
    )


def gateway_settings(settings: Settings, environment: Mapping[str, str]) -> GatewaySettings:
    """Return the settings with the token and the ports of the environment."""
    found, token = settings.gateway, register_secret(environment.get(VARIABLE, "").strip())
    if token and not CHARS_MIN <= len(token) <= CHARS_MAX:
        raise ConfigurationError(
            f"has {len(token)} characters: use {CHARS_MIN} to {CHARS_MAX}, at random "
            "(`openssl rand -base64 32`)",
            key=VARIABLE,
        )
    port, probes = (environment.get(each, "") for each in (PORT_VARIABLE, PROBES_PORT_VARIABLE))
    return msgspec.structs.replace(
        found,
        tokens=with_variable(found.tokens, token),
        port=int(port) if port.isdecimal() else found.port,
        probes_port=int(probes) if probes.isdecimal() else found.probes_port,
    )


def check(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError if the gateway cannot start with these settings."""
    problems = ProblemList()
    with problems.collecting():
        check_tls(settings.gateway, file)
    with problems.collecting():
        check_inbound(settings, file)
    for each in settings.authenticators.values():
        with problems.collecting():
            make_plugin(AUTHENTICATOR_PLUGINS, each, file, clock=SystemClock())
            if each.type == CERTIFICATE and not settings.gateway.tls_client_ca_file:
                raise setting_error(each.path, "needs gateway.tls_client_ca_file", file)
    try:
        credentials(bus_options(settings.nats))
    except ConfigurationError as error:
        problems.add(locate(error, file))
    problems.raise_found()


def tls_options(settings: GatewaySettings) -> dict[str, Any]:
    """The options of uvicorn with which it speaks HTTPS; none: it speaks HTTP."""
    if not settings.tls_cert_file:
        return {}
    authority = settings.tls_client_ca_file
    return {
        "ssl_certfile": settings.tls_cert_file,
        "ssl_keyfile": settings.tls_key_file or None,
        "ssl_ca_certs": authority or None,
        # A caller without one may have a token; one that is not valid ends the handshake.
        "ssl_cert_reqs": ssl.CERT_OPTIONAL if authority else ssl.CERT_NONE,
    }


def check_tls(settings: GatewaySettings, file: Path | None) -> None:
    """Raise ConfigurationError if the certificates cannot be used."""
    if not settings.tls_cert_file:
        for key in ("tls_key_file", "tls_client_ca_file"):
            if getattr(settings, key):
                raise setting_error(f"gateway.{key}", "needs gateway.tls_cert_file", file)
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = "tls_cert_file"
    try:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file or None)
        key = "tls_client_ca_file"
        if settings.tls_client_ca_file:
            context.load_verify_locations(settings.tls_client_ca_file)
    except OSError as error:  # an SSLError is one
        reason = getattr(error, "reason", "") or error.strerror or str(error)
        raise setting_error(f"gateway.{key}", f"no usable PEM file: {reason}", file) from error


def check_inbound(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError if answers from outside could be forged, or taken for a caller's."""
    own = settings.gateway.inbound
    for key in ("pagerduty_secret", "slack_secret"):
        secret, path = getattr(own, key), f"gateway.inbound.{key}"
        if secret and len(secret) < CHARS_MIN:
            raise setting_error(path, f"is shorter than {CHARS_MIN} characters", file)
        name = key.partition("_")[0]
        if secret and name in settings.authenticators:
            problem = f"is the name of who answers by gateway.inbound.{key}; take another"
            raise setting_error(f"authenticators.{name}", problem, file)
    if bool(own.slack_secret) != bool(own.slack_team):
        missing = "slack_team" if own.slack_secret else "slack_secret"
        raise setting_error("gateway.inbound", f"`{missing}` is missing; write both", file)


def require_tokens(
    settings: GatewaySettings, *, has_others: bool, is_open: bool, file: Path | None
) -> None:
    """Raise ConfigurationError if callers would need no token where the bus is not open to all.

    `has_others`: whether there are authenticators beside the tokens.
    """
    if settings.tokens or has_others:
        return
    if not (is_open and settings.host in LOOPBACK):
        raise setting_error(
            "gateway.tokens",
            f"there is none: add one (`navarch gateway token create NAME`), or set {VARIABLE}",
            file,
        )
