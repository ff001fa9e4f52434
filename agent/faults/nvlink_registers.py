"""Decodes the registers of an NVLink fault (XID 74, 144 to 150), by NVIDIA's tables. Pure.

The line names a link and gives seven registers, of which the first, third, fourth and fifth are
defined on Hopper and earlier. Each defined bit belongs to one class; the gravest class decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

from schemas.enums import NvlinkClass, SwitchSeverity

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


@dataclass(frozen=True, slots=True)
class DecodedRegisters:
    """Holds one row of the table."""

    resolution: str
    """NVIDIA's immediate action: IGNORE, RESET_GPU, or XID_154_EVAL (an XID 154 will say it)."""
    investigate: str
    severity: SwitchSeverity


_RESOLUTIONS: Final = ("IGNORE", "XID_154_EVAL", "RESET_GPU")
_SEVERITIES: Final = get_args(SwitchSeverity)
_IGNORE: Final = DecodedRegisters("IGNORE", "IGNORE", "nonfatal")
_SUPPORT: Final = DecodedRegisters("IGNORE", "CONTACT_SUPPORT", "nonfatal")
_RESET: Final = DecodedRegisters("RESET_GPU", "CONTACT_SUPPORT", "fatal")
_RESET_SOFT: Final = DecodedRegisters("RESET_GPU", "CONTACT_SUPPORT", "nonfatal")
_WAIT: Final = DecodedRegisters("XID_154_EVAL", "CONTACT_SUPPORT", "nonfatal")
_WAIT_LINK: Final = DecodedRegisters("XID_154_EVAL", "CHECK_NVLINK_FAILURE_FLOW", "nonfatal")
_WAIT_ONLY: Final = DecodedRegisters("XID_154_EVAL", "IGNORE", "nonfatal")
_CABLES: Final = DecodedRegisters("IGNORE", "INVESTIGATE_LINK_SI_AND_CABLES", "nonfatal")
_SOFTWARE: Final = {0x80000000: _SUPPORT}
_TLW: Final = {1: _IGNORE, 2: _SUPPORT, 4: _RESET} | _SOFTWARE

_BY_BIT: Final[dict[str, dict[int, DecodedRegisters]]] = {
    "SAW_MVB": {1: _SUPPORT, 2: _RESET, 4: _IGNORE, 8: _SUPPORT, 0x10: _RESET, 0x20: _IGNORE},
    "RLW_CTRL": _SOFTWARE,
    "RLW_REMAP": {1: _WAIT, 2: _WAIT}
    | dict.fromkeys((4, 8, 0x10, 0x20), _WAIT_LINK)
    | {0x40: _RESET, 0x80: _RESET, 0x100: _IGNORE, 0x200: _IGNORE}
    | _SOFTWARE,
    "RLW_RSPCOL": {1: _IGNORE, 2: _RESET} | _SOFTWARE,
    "RLW_RXPIPE": dict.fromkeys((1, 2, 4, 8), _SUPPORT) | _SOFTWARE,
    "RLW_SRC_TRACK": {1: _RESET, 2: _IGNORE, 4: _WAIT_ONLY, 8: _WAIT_ONLY, 0x10: _RESET}
    | {0x20: _RESET}
    | _SOFTWARE,
    "RLW_TAGSTATE": {1: _IGNORE, 2: _RESET, 0x10000: _IGNORE, 0x20000: _RESET, 0x100000: _RESET}
    | _SOFTWARE,
    "TLW_CTRL": _TLW,
    "TLW_RX": _TLW,
    "TLW_TX": _TLW,
    "TREX": {1: _SUPPORT} | _SOFTWARE,
    "NVLPW": _SOFTWARE,
}
_BY_CODE: Final[dict[str, dict[int, DecodedRegisters]]] = {
    "NETIR_BER_EVENT": dict.fromkeys(range(4), _CABLES),
    "NETIR_MFDE_EVENT": dict.fromkeys((1, 4, 5, 7), _RESET) | {3: _IGNORE},
}
_ALWAYS: Final[dict[str, DecodedRegisters]] = {
    "NETIR": DecodedRegisters("RESET_GPU", "SYMPATHETIC_REPORT_SOLO", "link-fatal"),
    "MSE DEGRADED": _RESET,
    "MSE_WATCHDOG": _RESET,
}
_ALIASES: Final = {
    "TLW_RX_PIPE0": "TLW_RX",
    "TLW_RX_PIPE1": "TLW_RX",
    "TLW_TX_PIPE0": "TLW_TX",
    "TLW_TX_PIPE1": "TLW_TX",
    "NVLPW_CTRL": "NVLPW",
    "NETIR_INT": "NETIR",
    "NETIR_LINK_DOWN": "NETIR_LINK_EVT",
}
_RXPIPE_BEFORE_R575: Final = 0b00_1100_0010
_RXPIPE_SINCE_R575: Final = 0b000_0110
_RXPIPE_BITS: Final = frozenset({1, 2, 4})
"""Errors of RLW_RXPIPE that call for a reset when a further bit of `intr_info` is set."""


def _link(
    investigate: str, resolution: str = "RESET_GPU", severity: SwitchSeverity = "link-fatal"
) -> DecodedRegisters:
    return DecodedRegisters(resolution, investigate, severity)


_LINK_DOWN: Final[dict[int, DecodedRegisters]] = (
    {
        0b000000: _link("SYMPATHETIC_REPORT_SOLO"),
        0b000001: _link("REPORT_ISSUE"),
        0b100110: _link("INVESTIGATE_SW_USER", "IGNORE"),
        0b101000: _link("INVESTIGATE_HOST", "IGNORE", "fatal"),
    }
    | dict.fromkeys((0b000010, 0b000100, 0b001010), _link("INVESTIGATE_LINK_SI"))
    | dict.fromkeys((0b001111, 0b010001, 0b010110), _link("INVESTIGATE_SW_USER"))
    | dict.fromkeys((0b010000, 0b010010), _link("INVESTIGATE_SW_USER_LINK_SI"))
    | dict.fromkeys((0b010101, *range(0b100000, 0b100110)), _link("INVESTIGATE_PEER_DEVICE"))
    | dict.fromkeys((0b101010, 0b101011), _link("INVESTIGATE_LINK_SI_AND_CABLES"))
)
"""By bits 20 to 25 of `intr_info`: the reason for which a link went down."""


def decode(unit: str, intr_info: int, error_status: int) -> DecodedRegisters | None:
    """Look a fault up; None: the table does not have it.

    A line names the unit that saw the error and gives two registers: `intr_info`, whose bits say
    why a link went down, and `error_status`, which says what error the unit saw: mostly a bit for
    each error, of which the worst decides. The driver's layout of `intr_info` changed with R575;
    bits of each part distinguish the layouts. Pure.
    """
    name = unit.upper().split("/", 1)[0]
    name = _ALIASES.get(name, name)
    if name in _ALWAYS:
        return _ALWAYS[name]
    if name == "NETIR_LINK_EVT":
        return _LINK_DOWN.get(intr_info >> 20 & 0b111111)
    if name in _BY_CODE:
        return _BY_CODE[name].get(error_status)
    errors = _BY_BIT.get(name, {})
    if name == "RLW_RXPIPE" and _rxpipe_escalates(intr_info):
        errors = errors | dict.fromkeys(_RXPIPE_BITS, _RESET_SOFT)
    return _worst(errors, error_status)


def _worst(errors: dict[int, DecodedRegisters], status: int) -> DecodedRegisters | None:
    """Give the gravest of the bits that are set; a bit that is not listed might be graver."""
    found = max((errors[bit] for bit in errors if status & bit), key=_gravity, default=None)
    if found is None or (found.resolution != "RESET_GPU" and status & ~sum(errors)):
        return None
    return found


def _gravity(each: DecodedRegisters) -> tuple[int, int, bool]:
    return (
        _RESOLUTIONS.index(each.resolution),
        _SEVERITIES.index(each.severity),
        each.investigate != "IGNORE",
    )


def _rxpipe_escalates(intr_info: int) -> bool:
    """Whether the bit is set, at its place before R575 or since."""
    if intr_info & 0b11_1111_1111 == _RXPIPE_BEFORE_R575:
        return bool(intr_info & 1 << 10)
    return intr_info & 0b111_1111 == _RXPIPE_SINCE_R575 and bool(intr_info & 1 << 7)


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
    """Return whether the fourth register demands a reset of the fabric."""
    index = 3
    return index < len(registers) and bool(registers[index] >> _FABRIC_RESET_BIT & 1)
