"""The kinds of SSH errors: exceptions of the connection, and exit statuses of scripts. Pure.

An error in neither table is TRANSIENT and reported as unknown.
"""

from typing import Final

import asyncssh

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import TEXT_CHARS_MAX, ProviderError
from services.provisioner.providers.ssh_claims import BUSY, CANNOT_WRITE

RAISED: Final[tuple[tuple[type[BaseException], ProviderErrorKind, str], ...]] = (
    (asyncssh.HostKeyNotVerifiable, "AUTH", "shows another host key than the one that is pinned"),
    (asyncssh.PermissionDenied, "AUTH", "refuses this user and key"),
    (asyncssh.KeyImportError, "INVALID", "cannot be entered: the private key cannot be used"),
    (asyncssh.KeyEncryptionError, "INVALID", "cannot be entered: the private key has a passphrase"),
    (FileNotFoundError, "INVALID", "cannot be entered: the private key does not exist"),
    (PermissionError, "INVALID", "cannot be entered: the private key is not readable"),
    (asyncssh.ConnectionLost, "TRANSIENT", "hung up"),
    (asyncssh.DisconnectError, "TRANSIENT", "hung up"),
    (asyncssh.ChannelOpenError, "TRANSIENT", "opens no session"),
    (TimeoutError, "NETWORK", "does not answer in time"),
    (OSError, "NETWORK", "cannot be reached"),
)
"""Exception -> kind and description; the first match counts."""

ENDED: Final[dict[int, tuple[ProviderErrorKind, str]]] = {
    CANNOT_WRITE: ("UNSUPPORTED", "the claim folder cannot be written"),
    BUSY: ("TRANSIENT", "another order holds the claim folder's lock"),
    126: ("INVALID", "a command is not executable there"),
    127: ("INVALID", "a command is missing there: bash, or flock of util-linux"),
}
"""Exit status -> kind and description."""
SUDO: Final = "sudo:"


def of_exception(machine: str, error: BaseException) -> ProviderError:
    """Return the error for an exception of a connection."""
    for kind_of, kind, words in RAISED:
        if isinstance(error, kind_of):
            text = str(error) or type(error).__name__
            return ProviderError(kind, f"{machine} {words}: {text[:TEXT_CHARS_MAX]}")
    return ProviderError(
        "TRANSIENT",
        f"{machine}: {type(error).__name__}: {error} (unknown error)",
        unknown=type(error).__name__,
    )


def of_status(machine: str, status: int, output: str) -> ProviderError:
    """Return the error for a script that ended with this status and output."""
    text = " ".join(output.split())[-TEXT_CHARS_MAX:]
    if SUDO in output:
        return ProviderError(
            "AUTH",
            f"{machine}: the user may not run commands as root (`sudo -n`): {text}; allow it, or "
            "set `sudo: false` and a `claim_folder` of the user's own",
        )
    known = ENDED.get(status)
    if known is None:
        words = "a script ended with an unknown status"
        return ProviderError(
            "TRANSIENT", f"{machine}: {words}: {status}: {text}", unknown=f"exit status {status}"
        )
    return ProviderError(known[0], f"{machine}: {known[1]}: {text or status}")
