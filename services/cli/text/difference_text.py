"""What a configuration would change of the fleet, in lines."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from services.cli.text.tables import columns
from services.settings.pool_differences import ABSENT, PoolDifference, SettingChange

UNLISTED = (
    "not in the file: it is kept at its last settings with its nodes; remove them with "
    "`navarch down {pool}`"
)


def difference_lines(
    pools: Sequence[PoolDifference], settings: Sequence[SettingChange], file: str
) -> Iterator[str]:
    """A heading for each pool, and a line for each value."""
    for each in pools:
        yield f"pool {each.pool}: {_heading(each)}"
        for setting in each.settings:
            yield f"  {setting.key}: {_value(setting.old)} -> {_value(setting.new)}"
    if settings:
        yield f"other settings: {len(settings)}"
    for setting in settings:
        old, new = setting.old or "(none)", setting.new or "(none)"
        yield f"  {setting.key}: {old} -> {new}"
    if not pools:
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


def process_lines(processes: Sequence[tuple[str, str, str]], file: str) -> Iterator[str]:
    """Which processes must be reloaded, and how; `processes`: service, host and PID of each."""
    if not processes:
        yield f"every process that answers runs with {file}"
        return
    yield f"These processes run with another text than {file}:"
    yield columns(("service", "host", "pid"), processes, colour=False)
    yield (
        f"Put {file} in the place of the configuration of each, then reload it: "
        "`systemctl reload navarch@SERVICE`, or `kill -HUP PID` on its host. Gateways do not "
        "answer here: reload each as well."
    )
