"""Durations as text: `30s`, `10m`, `1h30m`, `250ms` (Go's format).

A plain number is seconds. In Python a Duration is a float of seconds, so arithmetic needs nothing.
"""

import re
from functools import lru_cache
from typing import Any, Final

SECONDS_MAX: Final = 10 * 366 * 86_400.0
"""Ten years: a date plus a longer duration may overflow."""
TEXT_CHARS_MAX: Final = 64
"""Every unit once, with its digits; a longer text is refused unread."""
READ_MAX: Final = 1_024
"""Cached texts: records of pools repeat the same ones."""
_UNITS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "\N{MICRO SIGN}s": 1e-6,
    "\N{GREEK SMALL LETTER MU}s": 1e-6,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
TEXT_PATTERN: Final = rf"^((([0-9]+(\.[0-9]*)?|\.[0-9]+)({'|'.join(_UNITS)}))+|0)$"
"""For descriptions: as other languages than Python read it."""
_PART = re.compile(rf"({_NUMBER})({'|'.join(_UNITS)})")
_WHOLE = re.compile(rf"(?:{_NUMBER}(?:{'|'.join(_UNITS)}))+|0")


class Duration(float):
    """A duration is a number of seconds."""

    __slots__ = ()


def parse_duration(value: object) -> Duration:
    """Read a duration, or raise ValueError with the accepted forms."""
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        raise ValueError(f"{value[:TEXT_CHARS_MAX]!r}… is not a duration: write 30s, 10m or 1h30m")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a duration: write 30s, 10m or 1h30m")  # noqa: TRY004
    try:
        seconds = float(value) if isinstance(value, int | float) else _read(value.strip())
    except OverflowError:
        seconds = float("inf")
    if seconds < 0:
        raise ValueError(f"{value!r} is not a duration: it must be zero or more")
    if not seconds <= SECONDS_MAX:  # also catches NaN
        raise ValueError(f"{value!r} is not a duration: ten years are the most")
    return Duration(seconds)


@lru_cache(maxsize=READ_MAX)
def _read(text: str) -> float:
    """Seconds of a text, negative ones too."""
    bare = text[1:] if text[:1] in ("+", "-") else text
    if not _WHOLE.fullmatch(bare):
        raise ValueError(f"{text!r} is not a duration: write 30s, 10m or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(bare))
    return -seconds if text.startswith("-") else seconds


def format_duration(seconds: float) -> str:
    """Format seconds: 90 -> `1m30s`, 0.25 -> `250ms`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    whole, parts = round(seconds), []
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def written_duration(value: Duration) -> str:
    """A duration as a configuration has it."""
    return format_duration(value) if value else "0s"


def decode_hook(kind: type, value: Any) -> Any:
    """Let msgspec read Durations."""
    if kind is Duration:
        return parse_duration(value)
    raise NotImplementedError(f"no decoding for {kind}")


def encode_hook(value: Any) -> Any:
    """Let msgspec write Durations, as exact seconds."""
    if isinstance(value, Duration):
        return f"{float(value):.12g}s" if float(value) >= 0.0001 else "0s"  # noqa: PLR2004
    raise NotImplementedError(f"no encoding for {type(value)}")
