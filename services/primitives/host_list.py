"""Slurm's host lists: `gpu[001-003,7],login` names gpu001, gpu002, gpu003, gpu007, login. Pure."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

HOSTS_MAX: Final = 100_000
"""Names in one host list."""
SHOWN_MAX: Final = 5
_RANGES: Final = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")


def expand_hosts(hosts: str) -> Iterator[str]:
    """Return the names, at most HOSTS_MAX; ValueError where there are more or a range is wrong."""
    if re.search(r"[\[\]]", _RANGES.sub("", hosts)):
        raise ValueError(f"{hosts[:80]!r} is no host list like gpu[001-003,7],login")
    count = 0
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", hosts):
        for name in _expand(part):
            count += 1
            if count > HOSTS_MAX:
                raise ValueError(f"a host list of more than {HOSTS_MAX} names")
            yield name


def _expand(part: str) -> Iterator[str]:
    match = _RANGES.search(part)
    if match is None:
        yield part
        return
    for each in match.group(1).split(","):
        first, _, last = each.partition("-")
        for number in range(int(first), int(last or first) + 1):
            middle = str(number).zfill(len(first))
            for rest in _expand(part[match.end() :]):
                yield part[: match.start()] + middle + rest


def some_of(names: Iterable[str]) -> str:
    """The first names, for messages."""
    first = list(islice(names, SHOWN_MAX + 1))
    return ", ".join(first[:SHOWN_MAX]) + (", …" if len(first) > SHOWN_MAX else "")
