"""Permissions of a region's server, to which agents connect in place of the fleet's own.

It passes on what the agents of its pools publish, and commands to them. nats-server lets nothing
below `$KV` and `$JS` pass between two servers without JetStream in common, so these have another
name on their way.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from schemas import subjects
from schemas.account_rules import NODE_TAG, POOL_TAG, Account, Rules
from schemas.topology import HEARTBEATS, NODES

SUBSCRIPTIONS_MAX: Final = 1_000_000
"""Of one region's agents together."""
_RECORD: Final = f"$JS.API.DIRECT.GET.KV_{NODES.name}.$KV.{NODES.name}.*.*"
NAMES: Final[Mapping[str, str]] = {
    f"$KV.{HEARTBEATS.name}.*.*": f"{subjects.ROOT}.region.heartbeat.*.*",
    _RECORD: f"{subjects.ROOT}.region.record.*.*",
}
"""What agents publish that passes no leaf node under its own name -> its name on the way."""


def agent_there(agent: Rules) -> Rules:
    """An agent's permissions at a region's server, which asks for those of the other names, too."""
    key = f"{POOL_TAG}.{NODE_TAG}"
    more = (each.replace("*.*", key) for each in NAMES.values())
    return msgspec.structs.replace(agent, publish=(*agent.publish, *more))


def region(agent: Rules) -> Rules:
    """Return what a region's role may do: all that the agents of its pools may."""
    node, place = f"{POOL_TAG}.*", f"{subjects.ROOT}.node"
    return Rules(
        account=Account.AGENTS,
        publish=(
            *(
                each.replace(NODE_TAG, "*")
                for each in agent.publish
                if not each.startswith(("$", "_INBOX")) and ".command." not in each
            ),
            f"{subjects.ROOT}.enroll-pod.{node}",
            *(each.replace("*.*", node) for each in NAMES.values()),
        ),
        subscribe=(
            f"{place}.{node}.command.>",
            *(f"_INBOX.{each}.{POOL_TAG}.>" for each in ("node", "bootstrap", "pod")),
        ),
        payload_bytes_max=agent.payload_bytes_max,
        subscriptions_max=SUBSCRIPTIONS_MAX,
        connections=("LEAFNODE",),
    )
