"""How an instance says whose it is: the tags (labels, annotations) that every cloud provider sets.

`list` finds an instance again by them, after whatever crash: fleet, pool, node and launch token.
Pure; the spelling is declared here and nowhere else, because what stands carries it for ever.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from services.provisioner.provider_client.provider import Instance, ProvisionRequest

FLEET_TAG: Final = "navarch-fleet"
POOL_TAG: Final = "navarch-pool"
NODE_TAG: Final = "navarch-node"
TOKEN_TAG: Final = "navarch-token"  # noqa: S105 - a tag's name
NODE_CHARS_MAX: Final = 50
"""Of a node's name in a name made of it: what most clouds take, with the rest, is 63."""
DIGEST_CHARS: Final = 12


def tags_of(request: ProvisionRequest) -> dict[str, str]:
    """The pool's labels, and what finds the instance again; a label never hides one of these."""
    return request.labels | {
        FLEET_TAG: request.fleet,
        POOL_TAG: request.pool,
        NODE_TAG: request.name,
        TOKEN_TAG: request.token,
    }


def unique_name(request: ProvisionRequest) -> str:
    """A name that people recognise the node by, and that no other intention has, of any fleet."""
    about = f"{request.fleet}/{request.token}".encode()
    digest = hashlib.sha256(about).hexdigest()[:DIGEST_CHARS]
    return f"{short_name(request)}-{digest}"


def short_name(request: ProvisionRequest) -> str:
    """As much of the node's name as goes into that."""
    return request.name[:NODE_CHARS_MAX].strip("-")


def instance_for(request: ProvisionRequest, provider_id: str) -> Instance:
    """The instance that was made for a request, as far as it is what was asked for."""
    return Instance(
        name=request.name,
        provider_id=provider_id,
        fleet=request.fleet,
        pool=request.pool,
        token=request.token,
        instance_type=request.instance_type,
        region=request.region,
        zone=request.zone,
        tags=dict(request.labels),
    )


def with_tags(instance: Instance, tags: Mapping[str, str]) -> Instance:
    """The instance with what its tags say; without a node's tag it keeps its name."""
    return replace(
        instance,
        name=tags.get(NODE_TAG) or instance.name,
        fleet=tags.get(FLEET_TAG, ""),
        pool=tags.get(POOL_TAG, ""),
        token=tags.get(TOKEN_TAG, ""),
        tags=dict(tags),
    )
