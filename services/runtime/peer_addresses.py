"""Decides whether the name of a server may lead to an address of this machine or its network. Pure.

A name of the public DNS leads where its owner says at that moment, whatever it led to when it was
configured. Private addresses are not refused: servers of an owner's own network have such names.
"""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

OWN_NETWORKS: Final = tuple(
    ip_network(each)
    for each in (
        *("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "100.100.100.200/32"),
        *("::/127", "fe80::/10", "ff00::/8", "fd00:ec2::254/128"),
    )
)
"""This machine, its link, where clouds answer with a machine's credentials, and multicast."""
WRAPPED: Final = ip_network("64:ff9b::/96")
"""Addresses that a gateway of the network translates to those of IPv4."""
LOCAL_ENDS: Final = (".localhost", ".local", ".internal", ".test", ".home.arpa")
"""Ends of names that no stranger can have, beside names without a dot."""


def refuses(name: str, address: str, own_name: str) -> bool:
    """Return whether a connection to this name may not go to this address.

    `own_name`: of this machine. An address in place of a name is what the settings say themselves.
    """
    try:
        ip_address(name)
    except ValueError:
        first, _, rest = name.lower().rstrip(".").partition(".")
        is_strangers = rest and not f".{rest}".endswith(LOCAL_ENDS)
        is_this_machine = first == own_name.lower().partition(".")[0]
        return bool(is_strangers) and not is_this_machine and _is_own(address)
    return False


def _is_own(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and (found.ipv4_mapped or found in WRAPPED):
        found = ip_address(int(found) & 0xFFFF_FFFF)
    return any(found in each for each in OWN_NETWORKS)
