"""What a configuration would change of the pools, in lines."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from services.settings.pool_differences import ABSENT, PoolDifference

UNLISTED = (
    "not in the file: it is kept at its last settings with its nodes; remove them with "
    "`navarch down {pool}`"
)


def difference_lines(found: Sequence[PoolDifference], file: str) -> Iterator[str]:
    """A heading for each pool, and a line for each of its values."""
    for each in found:
        yield f"pool {each.pool}: {_heading(each)}"
        for setting in each.settings:
            yield f"  {setting.key}: {_value(setting.old)} -> {_value(setting.new)}"
    if any(each.change != "unlisted" for each in found):
        yield (
            "The pool-managers record it when they are reloaded (SIGHUP) or restarted; see "
            "docs/operate.md, 'Change the configuration'."
        )
    if not found:
        yield f"the pools of the fleet are as {file} has them"


def _heading(difference: PoolDifference) -> str:
    before, after = difference.desired, difference.desired_after
    match difference.change:
        case "added":
            return f"is added, with a desired size of {after}"
        case "unlisted":
            return UNLISTED.format(pool=difference.pool)
        case "changed":
            size = f"; its desired size goes from {before} to {after}" if before != after else ""
            return f"changed settings: {len(difference.settings)}{size}"


def _value(value: Any) -> str:
    return "(none)" if value is ABSENT else msgspec.json.encode(value).decode()
