"""Answers a command line of the original's agent with the command that starts this one. Pure."""

import shlex
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

BUS_PORT: Final = 4222
SERVER: Final = "server"
SETTINGS: Final = {SERVER: "NAVARCH_NATS_URL", "pool": "NAVARCH_POOL", "node-id": "NAVARCH_NODE"}
"""Flag of the original -> the setting that it is here, in the order of the command."""
MISSING: Final = {"pool": "POOL", "node-id": "NODE"}
"""Flag -> what is written where the command line does not say it."""


def present_command(arguments: Sequence[str]) -> str:
    """Return what to run instead; empty: the command line has none of the original's flags."""
    given = _flags(arguments)
    if not given.keys() & {SERVER, "node-id"}:
        return ""
    values = MISSING | {flag: value for flag, value in given.items() if value}
    values[SERVER] = f"nats://{_host(given.get(SERVER, ''))}:{BUS_PORT}"
    words = [f"{name}={shlex.quote(values[flag])}" for flag, name in SETTINGS.items()]
    return (
        "these are flags of the original's agent; this one connects to the fleet's bus, and reads "
        "environment variables or the file of --config (docs/agent.md). Run instead:\n"
        f"  {' '.join(words)} navarch-agent"
    )


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """Return the original's flags with their values, as Go reads them: one dash or two."""
    found: dict[str, str] = {}
    if not arguments or not arguments[0].startswith("-"):
        return found  # a command of this agent
    for each, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = each.lstrip("-").partition("=")
        if each.startswith("-") and flag in SETTINGS:
            found[flag] = value if equals else following
    return found


def _host(server: str) -> str:
    """Return the host of a URL, of HOST:PORT or of HOST."""
    try:
        host = urlsplit(server if "//" in server else f"//{server}").hostname
    except ValueError:
        host = None
    return f"[{host}]" if host and ":" in host else host or "HOST"
