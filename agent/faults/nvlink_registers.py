"""What the registers of an NVLink fault before NVLink 5 (XID 74) mean, by NVIDIA's workflow. Pure.

The line names a link and gives seven registers, of which the first, third, fourth and fifth are
defined on Hopper and earlier. Each defined bit belongs to one class; the gravest class decides.
"""

from collections.abc import Sequence
from typing import Final, get_args

from schemas.enums import NvlinkClass

_GRAVITY: Final[tuple[NvlinkClass, ...]] = get_args(NvlinkClass)
_BITS: Final[dict[int, dict[NvlinkClass, tuple[int, ...]]]] = {
    0: {
        "ignore": (0, 23, 30),
        "sympathetic": (1, 20),
        "ecc": (4, 5),
        "connection": (8, 9, 12, 16, 17, 24, 28),
        "signal": (21, 22),
        "repeated": (27, 29),
    },
    2: {"ecc": (0, 1, 2, 6), "repeated": (13, 16, 17, 18, 19)},
    3: {"sympathetic": (16, 17, 18)},
    4: {"ecc": (18, 19, 21, 22, 24, 25, 27, 28), "threshold": (20, 23, 26, 29)},
}
"""Register -> class -> its bits. Source: NVIDIA's XID catalogue, workflow NVLINK_ERR."""
_FABRIC_RESET_BIT: Final = 18
"""Of the fourth register: sympathetic, and the fabric must be reset."""


def classify(registers: Sequence[int]) -> NvlinkClass | None:
    """Give the gravest class of the bits that are set; None: no defined bit is set."""
    found = {
        name
        for index, classes in _BITS.items()
        if index < len(registers)
        for name, bits in classes.items()
        if any(registers[index] >> bit & 1 for bit in bits)
    }
    return max(found, key=_GRAVITY.index, default=None)


def needs_fabric_reset(registers: Sequence[int]) -> bool:
    """Whether the fourth register demands a reset of the fabric."""
    index = 3
    return index < len(registers) and bool(registers[index] >> _FABRIC_RESET_BIT & 1)
