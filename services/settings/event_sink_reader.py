"""The `event_sinks:` section: each sink is read, and what it says is checked."""

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.event_sink_settings import EventSinkSpec
from schemas.event_subjects import facts
from schemas.names import TOKEN
from services.primitives.redaction import register_secrets
from services.settings.alert_routes import pool_problem
from services.settings.problem_list import ProblemList
from services.settings.provider_choices import Problem
from services.settings.yaml_document import Document, Path_, convert_all

SINKS_MAX: Final = 16
NAME_CHARS_MAX: Final = 26
"""With its prefix a durable's name stays below 32."""
MAX_AGE_SECONDS: Final = (60.0, 30 * 86_400.0)
"""EVENTS holds nothing that is older."""
TIMEOUT_SECONDS: Final = (0.1, 60.0)
OF_HTTP: Final = ("url", "headers", "secret", "mode", "batch", "timeout")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")


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
