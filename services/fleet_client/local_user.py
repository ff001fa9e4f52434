"""Finds who runs a command on this machine: the requester's name without credentials."""

import getpass
import re
import socket
from typing import Final

TOKEN_CHARS: Final = 32


def requester() -> str:
    """The user and host that send a request."""
    return f"{user_name()}@{socket.gethostname()}"


def token_of(name: str) -> str:
    """Return a name as a token of a subject."""
    return re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")[:TOKEN_CHARS] or "unknown"


def user_name() -> str:
    """The user of this machine who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
