"""Providers whose list shows none of the instances that should run there. Pure.

Other credentials, another region or project, a filter that an API has changed: such a list says
less about the instances than about itself. It is reported, and nothing is done.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from schemas.fleet_queries import CurrentFailure
from schemas.instance_records import InstanceRecord
from services.provisioner.provider_client.provider import Instance

INSTANCES_MIN: Final = 2
"""One that is missing may well be gone."""
LISTED_WITHIN: Final = timedelta(seconds=60)
"""Providers list a new instance after so long at the latest."""
NAMED_MAX: Final = 5


def empty_lists(
    records: Iterable[InstanceRecord], listed: Mapping[str, Sequence[Instance]], now: datetime
) -> list[CurrentFailure]:
    """Return a failure for each provider that was listed and lacks everything that runs there."""
    running: dict[str, list[InstanceRecord]] = {}
    for each in records:
        settled = each.running_at is not None and now - each.running_at >= LISTED_WITHIN
        if each.state == "running" and settled and each.provider in listed:
            running.setdefault(each.provider, []).append(each)
    return [
        _failure(provider, sorted(each.instance for each in wanted))
        for provider, wanted in sorted(running.items())
        if len(wanted) >= INSTANCES_MIN
        and not {name for each in listed[provider] for name in (each.provider_id, each.name)}
        & {name for each in wanted for name in (each.provider_id, each.instance)}
    ]


def _failure(provider: str, names: Sequence[str]) -> CurrentFailure:
    more = f" and {len(names) - NAMED_MAX} others" if len(names) > NAMED_MAX else ""
    return CurrentFailure(
        failure="list-empty",
        about=f"provider {provider}",
        reason=(
            f"its list shows none of the {len(names)} instances that run there by their records: "
            f"{', '.join(names[:NAMED_MAX])}{more}"
        ),
        remedy=(
            "look for them at the provider; if they run, compare the account, project, region and "
            "credentials of the provisioner with theirs. Nothing is done for this alone"
        ),
    )
