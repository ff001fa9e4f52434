"""The gateway that `navarch serve` starts: its port, and a token where none is configured."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from schemas.settings import Settings
from services.gateway.access_tokens import VARIABLE, new_token
from services.gateway.gateway_start import PORT_VARIABLE, gateway_settings, listen
from services.primitives.atomic_files import write_secret

SERVED_FILE: Final = "gateway.token"
NO_GATEWAY: Final = (
    "no dashboard and no HTTP API: install this package again with its extra `gateway`"
)


def has_gateway() -> bool:
    """Whether what the gateway needs is installed; it is an extra of the package."""
    return find_spec("litestar") is not None


def token_file(settings: Settings) -> Path:
    """Where the token is that serve makes."""
    return Path(settings.data_dir).resolve() / SERVED_FILE


def gateway_port(settings: Settings, environment: Mapping[str, str]) -> str:
    """A port that the gateway can have; it keeps it, so that its clients find it again."""
    with listen(gateway_settings(settings, environment), None) as free:
        return str(free.getsockname()[1])


def gateway_variables(
    settings: Settings, environment: Mapping[str, str], port: str, *, is_open: bool
) -> dict[str, str]:
    """The variables that the gateway gets beside those of every service."""
    own = gateway_settings(settings, environment)
    found = {PORT_VARIABLE: port}
    file = token_file(settings)
    if own.tokens or settings.authenticators or is_open:
        file.unlink(missing_ok=True)
        return found
    try:
        token = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = new_token(os.urandom)
        write_secret(file, token + "\n")
    return {**found, VARIABLE: token}
