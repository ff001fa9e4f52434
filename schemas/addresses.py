"""Declares how a machine is addressed: a host, with or without the port of its SSH server."""

PORT_MAX = 65_535


def host_and_port(address: str, port: int) -> tuple[str, int]:
    """Split `host`, `host:port`, `[v6]:port` or a bare IPv6 address; `port` is the default."""
    if address.startswith("["):
        host, _, named = address[1:].partition("]")
        return host, _number(named.removeprefix(":"), port)
    host, colon, named = address.rpartition(":")
    if not colon or ":" in host:
        return address, port
    return host, _number(named, port)


def _number(text: str, port: int) -> int:
    return int(text) if text.isdigit() and 0 < int(text) <= PORT_MAX else port
