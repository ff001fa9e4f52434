"""What goes wrong between us and a machine of one's own, and what it means here. Pure.

Two tables: what the connection raises, and with what a script of ours ends. Whatever is in neither
is TRANSIENT and says so.
"""

from typing import Final

import asyncssh

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import TEXT_CHARS_MAX, ProviderError
from services.provisioner.providers.ssh_claims import BUSY, CANNOT_WRITE

RAISED: Final[tuple[tuple[type[BaseException], ProviderErrorKind, str], ...]] = (
    (asyncssh.HostKeyNotVerifiable, "AUTH", "shows another host key than the one that is pinned"),
    (asyncssh.PermissionDenied, "AUTH", "refuses this user and key"),
    (asyncssh.KeyImportError, "INVALID", "is asked with a private key that cannot be used"),
    (asyncssh.KeyEncryptionError, "INVALID", "is asked with a private key that has a passphrase"),
    (FileNotFoundError, "INVALID", "is asked with a private key that is not there"),
    (PermissionError, "INVALID", "is asked with a private key that may not be read"),
    (asyncssh.ConnectionLost, "TRANSIENT", "hung up"),
    (asyncssh.DisconnectError, "TRANSIENT", "hung up"),
    (asyncssh.ChannelOpenError, "TRANSIENT", "opens no session"),
    (TimeoutError, "NETWORK", "does not answer in time"),
    (OSError, "NETWORK", "cannot be reached"),
)
"""What is raised -> kind, and in words; the first that fits counts."""

ENDED: Final[dict[int, tuple[ProviderErrorKind, str]]] = {
    CANNOT_WRITE: ("UNSUPPORTED", "the claim folder cannot be written"),
    BUSY: ("TRANSIENT", "another order holds the claim folder's lock"),
    126: ("INVALID", "a command may not be run there"),
    127: ("INVALID", "a command is missing there: it takes bash, and flock of util-linux"),
}
"""Exit status -> kind, and in words."""
SUDO: Final = "sudo:"


def of_exception(machine: str, error: BaseException) -> ProviderError:
    """Return the error for what a connection has raised."""
    for kind_of, kind, words in RAISED:
        if isinstance(error, kind_of):
            said = str(error) or type(error).__name__
            return ProviderError(kind, f"{machine} {words}: {said[:TEXT_CHARS_MAX]}")
    return ProviderError(
        "TRANSIENT",
        f"{machine}: {type(error).__name__}: {error} (an error that is not known here)",
        unknown=type(error).__name__,
    )


def of_status(machine: str, status: int, output: str) -> ProviderError:
    """Return the error for a script that ended with this status and output."""
    said = " ".join(output.split())[-TEXT_CHARS_MAX:]
    if SUDO in output:
        return ProviderError(
            "AUTH",
            f"{machine}: the user may not run commands as root (`sudo -n`): {said}; allow it, or "
            "set `sudo: false` and a `claim_folder` of the user's own",
        )
    known = ENDED.get(status)
    if known is None:
        words = "a script ended in a way that is not known here"
        return ProviderError(
            "TRANSIENT", f"{machine}: {words}: {status}: {said}", unknown=f"exit status {status}"
        )
    return ProviderError(known[0], f"{machine}: {known[1]}: {said or status}")
