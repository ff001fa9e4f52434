"""Cloud credentials, as `navarch config set-credentials` stores them in the data directory.

One file per provider, readable by its owner alone: options that are not secret, and where the
secret is: stored in a file beside it, or a reference to a file, an environment variable or the
command of a secret manager. References are resolved when the provisioner starts; the result is
passed to the provider as an in-memory file, so that it is never written to a disk.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from schemas.names import token
from schemas.settings import PluginSettings
from services.primitives.atomic_files import write_secret
from services.primitives.errors import ConfigurationError

FOLDER: Final = "credentials"
SECRET_BYTES_MAX: Final = 65_536
COMMAND_SECONDS_MAX: Final = 30.0
SECRET_OPTIONS: Final = (
    "api_key_file",
    "credentials_file",
    "client_secret_file",
    "token_file",
    "key_file",
    "kubeconfig",
)
"""Options of providers that name a file with a secret in it."""

SourceKind = Literal["stored", "file", "env", "command"]


class SecretSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says where a secret is."""

    kind: SourceKind
    where: str = ""
    """The file, the variable or the command; empty for a stored secret."""
    option: str
    """The provider's option that names the secret's file."""


class StoredCredentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the stored credentials of one provider."""

    options: dict[str, str] = {}
    secret: SecretSource | None = None


def credentials_file(data_dir: Path, provider: str) -> Path:
    """Return the file of a provider's stored credentials."""
    return data_dir / FOLDER / f"{token(provider, 'provider')}.json"


def secret_file(data_dir: Path, provider: str) -> Path:
    """Return the file of a stored secret."""
    return data_dir / FOLDER / f"{token(provider, 'provider')}.key"


def secret_option(kind: type[Any], named: str) -> str:
    """Return the plugin's option that names a secret's file; empty: it has none."""
    there = {field.name for field in msgspec.structs.fields(kind.Options)}
    if named:
        if named not in there:
            problem = f"the provider has no such option (known: {sorted(there)})"
            raise ConfigurationError(problem, key=named)
        return named
    return next((each for each in SECRET_OPTIONS if each in there), "")


def add_stored_credentials(name: str, settings: PluginSettings, data_dir: Path) -> PluginSettings:
    """Return a provider's settings with its stored credentials, which override the file's."""
    kept = _read_stored(name, data_dir)
    if kept is None:
        return settings
    return apply_credentials(settings, kept, secret_file(data_dir, name), os.environ)


def stored_variable(name: str, data_dir: Path) -> str:
    """Return the environment variable that a provider's stored credentials name; empty: none."""
    kept = _read_stored(name, data_dir)
    if kept is None or kept.secret is None or kept.secret.kind != "env":
        return ""
    return kept.secret.where


def _read_stored(name: str, data_dir: Path) -> StoredCredentials | None:
    file = credentials_file(data_dir, name)
    try:
        return msgspec.json.decode(file.read_bytes(), type=StoredCredentials)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"cannot be read ({error}): write it again with "
            f"`navarch config set-credentials {name}`",
            file=str(file),
        ) from error


def apply_credentials(
    settings: PluginSettings, kept: StoredCredentials, stored: Path, environment: Mapping[str, str]
) -> PluginSettings:
    """Return the settings with these credentials; `stored`: the file of a stored secret."""
    options: dict[str, Any] = {**settings.options, **kept.options}
    if kept.secret is not None:
        options[kept.secret.option] = _resolve_secret(kept.secret, stored, environment)
    return msgspec.structs.replace(settings, options=options)


def _resolve_secret(source: SecretSource, stored: Path, environment: Mapping[str, str]) -> str:
    """Return a file that contains the secret."""
    match source.kind:
        case "stored":
            return str(stored)
        case "file":
            return source.where
        case "env":
            if not environment.get(source.where):
                raise ConfigurationError(
                    "the environment variable with a provider's credentials is not set",
                    key=source.where,
                )
            return _write_memory_file(environment[source.where].encode())
        case "command":
            return _write_memory_file(_run_secret_command(source.where))


def _run_secret_command(command: str) -> bytes:
    """Return what a secret manager's command prints; errors never contain it."""
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, check=True, timeout=COMMAND_SECONDS_MAX
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise ConfigurationError(f"cannot be run for credentials: {why}", key=command) from None
    except subprocess.CalledProcessError as error:
        problem = f"returned no credentials: it ended with {error.returncode}"
        raise ConfigurationError(problem, key=command) from None
    if not done.stdout.strip() or len(done.stdout) > SECRET_BYTES_MAX:
        problem = f"printed {len(done.stdout)} bytes, which are no credentials"
        raise ConfigurationError(problem, key=command)
    return done.stdout


def _write_memory_file(secret: bytes) -> str:
    """Return the path of an in-memory file, which exists as long as this process."""
    handle = os.memfd_create("credentials")
    os.write(handle, secret)
    return f"/proc/self/fd/{handle}"


def store_credentials(data_dir: Path, provider: str, kept: StoredCredentials, secret: str) -> Path:
    """Write the credentials for their owner alone, and `secret` if the source is `stored`."""
    file = credentials_file(data_dir, provider)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.parent.chmod(0o700)
    stored = secret_file(data_dir, provider)
    if kept.secret is not None and kept.secret.kind == "stored":
        write_secret(stored, secret)
    else:
        stored.unlink(missing_ok=True)
    write_secret(file, msgspec.json.format(msgspec.json.encode(kept), indent=2).decode() + "\n")
    return file
