"""Finds nodes whose credentials hold many connections, once few are left for other agents.

nats-server limits the connections of an account, and not those of a user. So the credentials of one
node could use up those of all agents; what is found here is refused like a flood of facts.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from schemas.fleet_queries import CurrentFailure
from services.bus.nats.account_updates import (
    Connection,
    Requests,
    connections,
    count_connections,
    read_account,
)
from services.bus.nats.credentials_file import claims_of_token

CONNECTIONS_OF_NODE_MAX: Final = 16
"""An agent has one, and another for a moment while it renews its credentials or starts again."""
USED_SHARE: Final = 0.5
"""Below this share of the account's limit no agent is kept out, and none is counted."""
REFUSED_SECONDS: Final = 3_600.0
"""How long a key is refused that no running instance has: bootstrap credentials live no longer."""


class Crowd(NamedTuple):
    """Names a key that holds more connections than an agent."""

    key: str
    pool: str
    node: str
    connections: int

    @property
    def reason(self) -> str:
        """Return why its credentials are refused."""
        return (
            f"its credentials held {self.connections} connections to nats-server, and an agent has "
            f"no more than {CONNECTIONS_OF_NODE_MAX}"
        )


def find_crowds(found: Iterable[Connection]) -> list[Crowd]:
    """Return the keys with too many connections, by what their tokens say of the node. Pure.

    The credentials that the pods of a pool share name no node, and are left out.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in found:
        tags = dict(tag.partition(":")[::2] for tag in each.tags)
        if "node" in tags:
            counts[each.authorized_user, tags.get("pool", ""), tags["node"]] += 1
    return [
        Crowd(*key, count) for key, count in counts.most_common() if count > CONNECTIONS_OF_NODE_MAX
    ]


async def crowds(server: Requests, account: str) -> list[Crowd]:
    """Return who crowds out the other agents; nothing while there is room for them."""
    claims = claims_of_token(await read_account(server, account))
    limit = int(claims.get("nats", {}).get("limits", {}).get("conn", -1)) if claims else -1
    if limit < 0 or await count_connections(server, account) < USED_SHARE * limit:
        return []
    return find_crowds(await connections(server, account))


def crowd_failure(crowd: Crowd, why: str) -> CurrentFailure:
    """Return what is reported of a crowd that is no disconnected node, and `why`."""
    return CurrentFailure(
        failure="message-flood",
        about=f"node {crowd.node}",
        reason=f"{crowd.reason}. {why}",
        remedy=(
            f"find out what opens them on the node; stop its agent, or replace the node with "
            f"`navarch replace {crowd.node}`"
        ),
    )
