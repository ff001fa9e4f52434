"""Reads a provider's secret from an environment variable or a file that the configuration names."""

import os
from pathlib import Path

from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secret


def read_secret(provider: str, option: str, what: str, *, env: str, file: str) -> str:
    """Return the secret of `<option>_file` if set, else of `<option>_env`."""
    where = f"providers.{provider}"
    if not file:
        secret = os.environ.get(env, "")
        if not secret:
            raise ConfigurationError(
                f"the environment variable {env} is not set; set it to {what}, or name another "
                f"with {option}_env, or a file with {option}_file",
                key=where,
            )
        return register_secret(secret)
    secret = read_text(file, f"{where}.{option}_file").strip()
    if not secret:
        raise ConfigurationError(f"{file} is empty", key=f"{where}.{option}_file")
    return register_secret(secret)


def read_text(file: str, where: str) -> str:
    """Read a file that an option names; ConfigurationError with that option."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}", key=where) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8 text", key=where) from error
