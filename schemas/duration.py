"""A span of time as people write it: `30s`, `10m`, `1h30m`, `250ms` (Go's form).

A plain number is seconds. In Python a Duration is a float of seconds, so arithmetic needs nothing.
"""

import re
from typing import Any, Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+\Z")


class Duration(float):
    """Seconds."""

    __slots__ = ()


def parse_duration(value: object) -> Duration:
    """Read a duration; raise ValueError with the remedy where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a duration: write 30s, 10m or 1h30m")  # noqa: TRY004
    if isinstance(value, int | float):
        seconds = float(value)
    elif _WHOLE.match(value.strip()):
        seconds = sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value))
    else:
        raise ValueError(f"{value!r} is not a duration: write 30s, 10m or 1h30m")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{value!r} is not a duration: it must be zero or more, and finite")
    return Duration(seconds)


def format_duration(seconds: float) -> str:
    """Write seconds the short way: 90 -> `1m30s`, 0.25 -> `250ms`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    whole, parts = round(seconds), []
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


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
