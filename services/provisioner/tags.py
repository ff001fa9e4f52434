"""How an instance says whose it is: the tags (labels, annotations) that every cloud provider sets.

`list` finds an instance again by them, after whatever crash: fleet, pool, node and launch token.
Pure; the spelling is declared here and nowhere else, because what stands carries it for ever.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from services.provisioner.provider import Instance, ProvisionRequest

FLEET_TAG: Final = "navarch-fleet"
POOL_TAG: Final = "navarch-pool"
NODE_TAG: Final = "navarch-node"
TOKEN_TAG: Final = "navarch-token"  # noqa: S105 - a tag's name


def tags_of(request: ProvisionRequest) -> dict[str, str]:
    """The pool's labels, and what finds the instance again; a label never hides one of these."""
    return request.labels | {
        FLEET_TAG: request.fleet,
        POOL_TAG: request.pool,
        NODE_TAG: request.name,
        TOKEN_TAG: request.token,
    }


def tagged(instance: Instance, tags: Mapping[str, str]) -> Instance:
    """The instance with what its tags say; without a node's tag it keeps its name."""
    return replace(
        instance,
        name=tags.get(NODE_TAG) or instance.name,
        fleet=tags.get(FLEET_TAG, ""),
        pool=tags.get(POOL_TAG, ""),
        token=tags.get(TOKEN_TAG, ""),
        tags=dict(tags),
    )
