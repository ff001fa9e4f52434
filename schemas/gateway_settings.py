"""Settings of the HTTP gateway: where it listens, who may use it, and its limits."""

from typing import Annotated, Literal

import msgspec

from schemas.file_path import FilePath
from schemas.secret_text import SecretText
from schemas.value_limits import UtcTime

GatewayRole = Literal["viewer", "operator", "admin"]
"""viewer reads; operator also changes nodes, sagas, sizes and breakers; admin also pools."""
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class TokenSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bearer token; `navarch gateway token create` makes it and prints this entry."""

    sha256: Sha256
    """Digest of the token, which itself is stored nowhere."""
    role: GatewayRole = "viewer"
    """What its bearer may do: docs/http-api.md."""
    pools: tuple[str, ...] = ()
    """Names, or patterns (`train-*`), of the pools that it may see and change; empty: every pool,
    and the fleet's own services."""
    expires: UtcTime | None = None
    """None: never."""


class InboundSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configures who may answer alerts from outside; without a secret there is no such route."""

    pagerduty_secret: SecretText = ""
    """The secret of a webhook subscription (v3) that calls `/inbound/pagerduty`; empty: off."""
    slack_secret: SecretText = ""
    """The signing secret of the Slack app whose buttons call `/inbound/slack`; empty: off."""
    slack_team: str = ""
    """Id of the one Slack workspace whose members may use the buttons; with `slack_secret`."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configures the HTTP API."""

    host: str = "127.0.0.1"
    """Address that it listens on; `0.0.0.0`: every one of the machine."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """0: a free one, which the gateway logs; under `navarch serve` 8642, or a free one where that
    is taken."""
    probes_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    """A port of `http.host` for probes and metrics alone, over HTTP, which callers need not reach:
    `/livez`, `/readyz`, `/metrics`. 0: a free one, which the gateway logs; null: there is none, and
    they are asked for at `port`, as they can be in any case."""
    tls_cert_file: FilePath = ""
    """The server's certificate, with its chain: the gateway speaks HTTPS alone."""
    tls_key_file: FilePath = ""
    """The certificate's key; empty: it is in the same file."""
    tls_client_ca_file: FilePath = ""
    """Authority of client certificates, for an authenticator of type `certificate`."""
    tokens: dict[str, TokenSpec] = {}
    """By name. The variable NAVARCH_AUTH_TOKEN is one more, of role admin."""
    requests_per_minute: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1_200
    """Of one token."""
    streams_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_024
    """Event streams that are open at once; a quarter of them for one token."""
    inbound: InboundSettings = InboundSettings()
