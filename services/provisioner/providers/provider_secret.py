"""A provider's secret: out of an environment variable, or out of a file that only its owner reads.

Configurations name where a secret is and never hold one.
"""

import os
from pathlib import Path

from services.primitives.errors import ConfigurationError


def read_secret(provider: str, option: str, what: str, *, env: str, file: str) -> str:
    """The secret of `<option>_file` if that is set, else of `<option>_env`, without line ends."""
    where = f"providers.{provider}"
    if not file:
        secret = os.environ.get(env, "")
        if not secret:
            raise ConfigurationError(
                f"the environment variable {env} is not set; set it to {what}, or name another "
                f"by {option}_env, or a file by {option}_file",
                key=where,
            )
        return secret
    secret = read_text(file, f"{where}.{option}_file").strip()
    if not secret:
        raise ConfigurationError(f"{file} is empty", key=f"{where}.{option}_file")
    return secret


def read_text(file: str, where: str) -> str:
    """A file that an option names; ConfigurationError says which."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}", key=where) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is no text", key=where) from error
