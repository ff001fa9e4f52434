"""Checks that what new nodes are given has no character that a shell or YAML reads. Pure.

These values are put into setup commands and user data, which run as root on every new machine.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from schemas.saga_params import WORKLOAD_NAME
from schemas.settings import PoolSpec, Settings
from schemas.value_limits import PLAIN
from services.settings.provider_choices import Problem

TEXT: Final = (
    "is put into what runs on new nodes: use letters, digits and . _ : / @ + = , [ ] ~ # % -, "
    "and begin with a letter, a digit, '/', '.' or '_'"
)

UNPROTECTED: Final = re.compile(r"(?:^|[+@\s])(?:http|git|ftp|svn|bzr)://", re.IGNORECASE)
"""How a package comes that anyone on the way may replace."""
DIGEST: Final = re.compile(r"#(?:[^#\s]*&)?sha256=[0-9a-f]{64}(?:&|$)")
ANYONES: Final = (
    "is run as root on new nodes, and comes over a connection on which anyone may replace it: use "
    "https, or end it with #sha256= and its checksum"
)


def plain_problem(value: str) -> str:
    """Return what is wrong with a value; empty where nothing is. It may be a secret: not shown."""
    return "" if PLAIN.fullmatch(value) else TEXT


def package_problem(value: str) -> str:
    """Return what is wrong with what pip installs; `name @ URL` may have its two blanks."""
    if UNPROTECTED.search(value) and not DIGEST.search(value):
        return ANYONES
    return plain_problem(value.replace(" @ ", "@", 1))


def _wrong(named: Iterable[tuple[tuple[str | int, ...], str]]) -> Iterator[Problem]:
    return ((path, wrong) for path, value in named if (wrong := plain_problem(value)))


def pool_value_problems(spec: PoolSpec) -> Iterator[Problem]:
    """Yield the keys of a pool whose values are not plain."""
    yield from _wrong(_pool_values(spec))


def _pool_values(spec: PoolSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for key in ("provider", "instance_type", "region"):
        yield (key,), getattr(spec, key)
    yield from ((("zones", place), each) for place, each in enumerate(spec.zones))
    yield ("labels", WORKLOAD_NAME), spec.labels.get(WORKLOAD_NAME, "")
    for number, choice in enumerate(spec.providers):
        for key in ("name", "instance_type"):
            yield ("providers", number, key), getattr(choice, key)
        for key in ("regions", "zones"):
            for place, each in enumerate(getattr(choice, key)):
                yield ("providers", number, key, place), each


def agent_value_problems(settings: Settings, providers: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the keys of the fleet's own settings whose values are not plain."""
    agent = settings.agent
    yield from _wrong([(("agent", "bus_url"), agent.bus_url)])
    if wrong := package_problem(agent.package):
        yield ("agent", "package"), wrong
    urls = agent.region_bus_urls.values()
    yield from _wrong((("agent", "region_bus_urls"), each) for each in urls)
    yield from _wrong((("providers", name), name) for name in providers)
