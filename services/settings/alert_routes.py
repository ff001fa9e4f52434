"""The `alerts:` section: each channel's route, checked, beside the plugin's own options."""

import re
from collections.abc import Collection
from datetime import time
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from schemas.enums import FaultKind
from schemas.fault_signature import SILENCE
from schemas.settings import AlertRoute, AlertSettings, HoursSpec
from services.settings.type_hints import words_of
from services.settings.yaml_document import Document, Path_, convert

CHANNELS_MAX: Final = 32
ROUTE_KEYS: Final = AlertRoute.__struct_fields__
RATE_WINDOW_SECONDS: Final = (1.0, 86_400.0)
FAULTS: Final = (*words_of(FaultKind), SILENCE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FAULT: Final = re.compile(r"([a-z_*?]+)(-([0-9*?]+))?")
_HOUR: Final = re.compile(r"[0-2][0-9]:[0-5][0-9]")
_PATTERN: Final = frozenset("*?[")


def alert_settings(document: Document, value: Any, pools: Collection[str]) -> list[AlertSettings]:
    """Read the section; raise ConfigurationError for what is wrong in it."""
    if not isinstance(value, list):
        raise document.error(("alerts",), "must be a list of alert channels (`- type: log`)")
    if len(value) > CHANNELS_MAX:
        raise document.error(("alerts",), f"has more than {CHANNELS_MAX} channels; remove some")
    found: list[AlertSettings] = []
    for number, each in enumerate(value):
        path: Path_ = ("alerts", number)
        if not isinstance(each, dict):
            raise document.error(path, "must be a mapping of names")
        options = {key: part for key, part in each.items() if key not in ("type", *ROUTE_KEYS)}
        kind = str(each.get("type") or "")
        if not kind:
            raise document.error(path, "`type` is missing; add it")
        given = {key: part for key, part in each.items() if key in ROUTE_KEYS}
        route: AlertRoute = convert(document, given, AlertRoute, path)
        route = msgspec.structs.replace(route, name=route.name or kind.rpartition(":")[2])
        if wrong := route_problem(route, pools, [other.route.name for other in found]):
            raise document.error((*path, *wrong[0]), wrong[1])
        found.append(
            AlertSettings(type=kind, options=options, path=f"alerts.{number}", route=route)
        )
    return found


def route_problem(
    route: AlertRoute, pools: Collection[str], names: Collection[str]
) -> tuple[Path_, str] | None:
    """Return the key that is wrong in a route, and why; `names`: of the channels before it."""
    if not _NAME.fullmatch(route.name):
        return ("name",), f"{route.name!r} is no name; write letters, digits, `.`, `_` and `-`"
    if route.name in names:
        return ("name",), f"{route.name!r} is there twice; give each channel a `name` of its own"
    for number, pool in enumerate(route.pools):
        if problem := pool_problem(pool, pools):
            return ("pools", number), problem
    for number, fault in enumerate(route.faults):
        found = _FAULT.fullmatch(fault)
        if not found or (not _PATTERN & set(found[1]) and found[1] not in FAULTS):
            return ("faults", number), (
                f"{fault!r} is no fault; write one like xid-79, xid-* or one of {', '.join(FAULTS)}"
            )
    low, high = RATE_WINDOW_SECONDS
    if not low <= route.rate.window <= high:
        return ("rate", "window"), "must be from 1s to 24h"
    if route.hours is not None and (wrong := _hours_problem(route.hours)):
        return ("hours", wrong[0]), wrong[1]
    return None


def pool_problem(pool: str, pools: Collection[str]) -> str:
    """What is wrong with a pool's name, or pattern, beside the configuration's `pools`."""
    if not pools or pool in pools or _PATTERN & set(pool):
        return ""
    return (
        f"no pool {pool!r} in the configuration (known: {', '.join(sorted(pools))}); for pools "
        "that are created by request write a pattern: `batch-*`"
    )


def _hours_problem(hours: HoursSpec) -> tuple[str, str] | None:
    for key in ("start", "end"):
        value = getattr(hours, key)
        try:
            time.fromisoformat(value if _HOUR.fullmatch(value) else "")
        except ValueError:
            return key, f"{value!r} is no time of day; write it in quotes, like '08:00'"
    if hours.start == hours.end:
        return "end", "is the same as `start`; take `hours` out to send at any time"
    if not hours.days:
        return "days", "is empty; write mon, tue, wed, thu, fri, sat, sun, or take it out"
    try:
        ZoneInfo(hours.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "timezone", f"{hours.timezone!r} is no time zone; write one like Europe/Berlin"
    return None
