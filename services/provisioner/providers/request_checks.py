"""Checks of a launch request that several providers share; a refusal names the remedy. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from schemas.launch_offers import Market
from services.provisioner.provider_client.provider import (
    Capabilities,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.settings.pool_options import with_pool_options

T = TypeVar("T")


def invalid(message: str) -> ProviderError:
    """Return the error for a request that can succeed only after a change of the configuration."""
    return ProviderError("INVALID", message)


def distinctly_named(instances: Iterable[Instance], tag: str) -> list[Instance]:
    """Return each instance once; INVALID where two have one name. `tag` has their names there."""
    found: dict[str, Instance] = {}
    for each in instances:
        other = found.setdefault(each.name, each)
        if other.provider_id != each.provider_id:
            both = " and ".join(one.tags[tag] for one in (other, each))
            raise invalid(f"the nodes {both} would both be {each.name}; rename one of them")
    return list(found.values())


def check_region(request: ProvisionRequest, region: str, provider: str, kind: str) -> None:
    """Raise INVALID if the request names another region than the provider's only one."""
    if request.region not in ("", region):
        raise invalid(
            f"pool {request.pool} names region {request.region}, and provider {provider} serves "
            f"{region}; add a provider of type {kind} for it"
        )


def ssh_keys(request: ProvisionRequest, default: str) -> tuple[str, ...]:
    """Return the pool's SSH keys, else the provider's `ssh_key`."""
    return request.ssh_keys or ((default,) if default else ())


def market_of(request: ProvisionRequest, can: Capabilities, provider: str, option: str) -> Market:
    """Return a launch's market; INVALID if it is reserved, and `option` names no reservation."""
    market = request.market or can.market
    if market == "reserved" and not can.reserved:
        raise invalid(
            f"pool {request.pool} wants reserved capacity, and provider {provider} names none; set "
            f"its `{option}`"
        )
    return market


def options_of(provider: Any, options: T, request: ProvisionRequest) -> T:
    """Return the options of a launch: the provider's, and those that differ for its pool."""
    try:
        found: T = with_pool_options(type(provider), options, request.options)
    except ValueError as error:
        raise invalid(f"`options` of pool {request.pool}: {error}") from error
    return found


def check_labels(
    labels: Mapping[str, str],
    patterns: tuple["re.Pattern[str]", "re.Pattern[str]"],
    pool: str,
    rule: str,
) -> None:
    """Raise INVALID if a label's name or value does not match its pattern; `rule` explains them."""
    for key, value in labels.items():
        if not (patterns[0].fullmatch(key) and patterns[1].fullmatch(value)):
            raise invalid(f"label {key}={value} of pool {pool} is not valid {rule}")
