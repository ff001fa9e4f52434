"""The sections `alerts:` and `event_sinks:`: each route and sink, checked."""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import time
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from schemas.enums import FaultKind
from schemas.event_sink_settings import EventSinkSpec
from schemas.event_subjects import facts
from schemas.fault_signature import SILENCE
from schemas.names import TOKEN
from schemas.settings import AlertRoute, AlertSettings, HoursSpec
from services.primitives.redaction import register_secrets
from services.settings.problem_list import ProblemList
from services.settings.provider_choices import Problem
from services.settings.yaml_document import Document, Path_, convert, convert_all, words_of

SINKS_MAX: Final = 16
NAME_CHARS_MAX: Final = 26
"""With its prefix a durable's name stays below 32."""
MAX_AGE_SECONDS: Final = (60.0, 30 * 86_400.0)
"""EVENTS holds nothing that is older."""
TIMEOUT_SECONDS: Final = (0.1, 60.0)
OF_HTTP: Final = ("url", "headers", "secret", "mode", "batch", "timeout")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
CHANNELS_MAX: Final = 32
ROUTE_KEYS: Final = AlertRoute.__struct_fields__
RATE_WINDOW_SECONDS: Final = (1.0, 86_400.0)
FAULTS: Final = (*words_of(FaultKind), SILENCE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FAULT: Final = re.compile(r"([a-z_*?]+)(-([0-9*?]+))?")
_HOUR: Final = re.compile(r"[0-2][0-9]:[0-5][0-9]")
_PATTERN: Final = frozenset("*?[")


def event_sinks(
    document: Document, given: Mapping[str, Any], pools: Collection[str], problems: ProblemList
) -> dict[str, EventSinkSpec]:
    """Read the section; what is wrong in it goes into `problems`."""
    found: dict[str, EventSinkSpec] = {}
    if len(given) > SINKS_MAX:
        problems.add(document.error(("event_sinks",), f"has more than {SINKS_MAX}; remove some"))
    for name, value in given.items():
        path: Path_ = ("event_sinks", name)
        if not TOKEN.match(name) or len(name) > NAME_CHARS_MAX:
            text = f"{name!r} is no name: use 1 to {NAME_CHARS_MAX} of a-z, 0-9 and '-'"
            problems.add(document.error(path, text))
        if not isinstance(value, dict):
            problems.add(document.error(path, "must be a mapping of names"))
            continue
        spec: EventSinkSpec | None = convert_all(document, value, EventSinkSpec, path, problems)
        if spec is None:
            continue
        register_secrets(spec)
        for inside, text in sink_problems(spec, value, pools):
            problems.add(document.error((*path, *inside), text))
        found[name] = spec
    return found


def sink_problems(
    spec: EventSinkSpec, given: Mapping[str, Any], pools: Collection[str]
) -> Iterator[Problem]:
    """The keys of a sink that are wrong, and why; `given`: what the file says of it."""
    if spec.type == "http":
        yield from _http_problems(spec, given)
    else:
        for key in OF_HTTP:
            if key in given:
                yield (key,), "has a meaning with `type: http` only; remove it"
    for number, event in enumerate(spec.events):
        if not any(fnmatchcase(each, event) for each in facts()):
            near = get_close_matches(event, facts(), 1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/events.md lists them"
            yield ("events", number), f"no event is called {event!r}: {hint}"
    for number, pool in enumerate(spec.pools):
        if problem := pool_problem(pool, pools):
            yield ("pools", number), problem
    if not MAX_AGE_SECONDS[0] <= spec.max_age <= MAX_AGE_SECONDS[1]:
        yield ("max_age",), "must be from 1m to 30d"


def _http_problems(spec: EventSinkSpec, given: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        url = urlsplit(spec.url)
        known = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        known = False
    if not known:
        yield ("url",), "is no URL: write http://host/path or https://…"
    for name, value in spec.headers.items():
        if not _HEADER.fullmatch(name) or _is_ours(name):
            yield ("headers", name), "cannot be set: write another name, such as Authorization"
        elif not _HEADER_VALUE.fullmatch(value):
            yield ("headers", name), "is no value of a header: write visible ASCII on one line"
    if "batch" in given and spec.mode != "batch":
        yield ("batch",), "has a meaning with `mode: batch` only; remove it, or set `mode`"
    if not TIMEOUT_SECONDS[0] <= spec.timeout <= TIMEOUT_SECONDS[1]:
        yield ("timeout",), "must be from 100ms to 1m"


def _is_ours(name: str) -> bool:
    """Whether the sink itself sets a header."""
    lower = name.lower()
    ours = ("content-type", "content-length", "host", "transfer-encoding")
    return lower in ours or lower.startswith(("ce-", "x-navarch-"))


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
    """Return what is wrong with a pool's name, or pattern, beside the configuration's `pools`."""
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
