"""The tags (labels, annotations) by which an instance's fleet, pool, node and token are recognised.

`list` finds an instance by them after any crash. Pure; the names are declared only here, because
existing instances carry them.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, get_args

from msgspec.structs import replace

from schemas.launch_offers import Market
from services.provisioner.provider_client.provider import Instance, ProvisionRequest

FLEET_TAG: Final = "navarch-fleet"
POOL_TAG: Final = "navarch-pool"
NODE_TAG: Final = "navarch-node"
TOKEN_TAG: Final = "navarch-token"  # noqa: S105 - a tag's name
MARKET_TAG: Final = "navarch-market"
"""Instances of earlier versions lack it."""
NODE_CHARS_MAX: Final = 50
"""Of a node's name in a name made of it: what most clouds take, with the rest, is 63."""
DIGEST_CHARS: Final = 12


def tags_of(request: ProvisionRequest) -> dict[str, str]:
    """Return the pool's labels and the tags of the instance; no label overrides a tag."""
    market = {MARKET_TAG: request.market} if request.market else {}
    return (
        request.labels
        | market
        | {
            FLEET_TAG: request.fleet,
            POOL_TAG: request.pool,
            NODE_TAG: request.name,
            TOKEN_TAG: request.token,
        }
    )


def unique_name(request: ProvisionRequest) -> str:
    """Return a name that contains the node's and is unique to the launch, across all fleets."""
    about = f"{request.fleet}/{request.token}".encode()
    digest = hashlib.sha256(about).hexdigest()[:DIGEST_CHARS]
    return f"{short_name(request)}-{digest}"


def short_name(request: ProvisionRequest) -> str:
    """Return the part of the node's name that the unique name contains."""
    return request.name[:NODE_CHARS_MAX].strip("-")


def instance_for(request: ProvisionRequest, provider_id: str) -> Instance:
    """Return the instance of a request, as far as the request describes it."""
    return Instance(
        name=request.name,
        provider_id=provider_id,
        fleet=request.fleet,
        pool=request.pool,
        token=request.token,
        instance_type=request.instance_type,
        market=request.market,
        region=request.region,
        zone=request.zone,
        tags=dict(request.labels),
    )


def with_tags(instance: Instance, tags: Mapping[str, str]) -> Instance:
    """Return the instance with the data of its tags; without a node tag it keeps its name."""
    markets: tuple[Market | Literal[""], ...] = get_args(Market)
    return replace(
        instance,
        name=tags.get(NODE_TAG) or instance.name,
        fleet=tags.get(FLEET_TAG, ""),
        pool=tags.get(POOL_TAG, ""),
        token=tags.get(TOKEN_TAG, ""),
        market=next((each for each in markets if each == tags.get(MARKET_TAG)), instance.market),
        tags=dict(tags),
    )
