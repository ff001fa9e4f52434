"""Decisions on who may join with a token, and for which nodes tokens are made. Pure.

Each refusal is one sentence with its remedy, which the machine's operator reads.
"""

import hmac
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from schemas.agent_commands import EnrollRequest
from schemas.enums import FORGOTTEN
from schemas.instance_records import InstanceRecord
from schemas.join_tokens import JoinRecord, JoinRequest, NodeOfPool, digest_of
from schemas.pool_records import PoolRecord

CLOCK_SECONDS_MAX: Final = 300.0
"""By which a machine's clock may differ from the fleet's when it joins."""
MINUTE_SECONDS: Final = 60.0
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
ALIVE: Final = ("intended", "running", "terminating", "leaked", "orphaned")


def why_no_pool(pool: PoolRecord | None, name: str) -> str:
    """Return why no machine may join a pool; empty: it may."""
    if pool is None:
        return f"there is no pool {name}: `navarch status` lists them"
    if pool.spec.nodes == "launched":
        return (
            f"pool {name} takes no machines that join: that needs `nodes: enrolled` and a provider "
            "of type `enrolled`, or `nodes: adopted`"
        )
    if pool.removing:
        return f"pool {name} is being removed"
    return ""


def why_not_made(
    asked: JoinRequest, node: str, record: InstanceRecord | None, pool: PoolRecord
) -> str:
    """Return why no token is made for a node; empty: it is.

    The nodes of a pool of adopted ones are there before their agents join.
    """
    taken = record is not None and record.state in ALIVE
    if pool.spec.nodes == "adopted":
        if is_forgotten(record):
            return f"{node} was forgotten; to adopt it again: navarch sweep --adopt {node}"
        if record is None or record.state != "running":
            return (
                f"{pool.spec.provider} lists no machine {node} for pool {asked.pool}: names are in "
                f"`navarch list`, where a new one appears within a minute (`navarch events "
                f"--node {node}`)"
            )
        taken = bool(record.agent_key)
    if taken and not asked.again:
        return (
            f"{node} is a machine of pool {asked.pool} already: choose another name, or add "
            "--again where its disk was wiped"
        )
    return ""


def is_forgotten(record: InstanceRecord | None) -> bool:
    """Return whether an operator had an instance forgotten that its provider goes on listing."""
    return record is not None and record.state == "terminated" and record.error == FORGOTTEN


def why_stays(
    pool: PoolRecord | None, asked: NodeOfPool, record: InstanceRecord | None, saga: str
) -> str:
    """Return why a node is not taken out of the fleet as it is; empty: it may be.

    `saga`: the one that is about the node, if there is one.
    """
    if pool is not None and pool.spec.nodes == "launched":
        return (
            f"pool {asked.pool} launches its nodes, and their machines would go on to cost money: "
            f"`navarch terminate {asked.node}`"
        )
    if record is None or record.state != "running":
        return f"no machine {asked.node} has joined pool {asked.pool}"
    if saga:
        return f"{saga} is about {asked.node}: cancel it (`navarch saga cancel {saga}`), or wait"
    return ""


def why_not_private(url: str, *, encrypted: bool) -> str:
    """Return why a token for this bus would show credentials to the network; empty: it would not.

    `encrypted`: whether agents are given an authority, and so refuse a connection without TLS.
    """
    split = urlsplit(url.partition(",")[0])
    if encrypted or split.scheme == "tls" or split.hostname in LOOPBACK:
        return ""
    return (
        f"the bus at {url} has no TLS, so machines could not tell it apart from another: set "
        "agent.bus_url to tls://HOST:PORT, and nats.tls_ca_file where the bus is your own"
    )


def why_not_joined(token: JoinRecord | None, request: EnrollRequest, now: datetime) -> str:
    """Return why a machine does not join with its token; empty: it does."""
    digest = digest_of(request.join_secret)
    if token is None or not hmac.compare_digest(token.digest, digest):
        return (
            "the token was revoked, ended long ago, or a later one was made for this node: make "
            "another (`navarch join --print NODE`)"
        )
    name = token.node
    if token.agent_key and token.agent_key != request.key:
        used = f"{token.used_at:%Y-%m-%d %H:%M:%S} UTC" if token.used_at else "an earlier time"
        return (
            f"the token was used already, by another machine at {used}: make another for this one; "
            f"if that machine was not yours, `navarch leave {name}`"
        )
    if token.expires_at <= now and not token.agent_key:
        return (
            f"the token ended at {token.expires_at:%Y-%m-%d %H:%M:%S} UTC: make another "
            f"(`navarch join --print {name}`)"
        )
    if request.clock is not None:
        return why_clock_differs((request.clock - now).total_seconds())
    return ""


def why_clock_differs(seconds: float) -> str:
    """Return what is wrong with a clock that is so far ahead; empty: nothing."""
    if abs(seconds) <= CLOCK_SECONDS_MAX:
        return ""
    side = "ahead of" if seconds > 0 else "behind"
    return (
        f"its clock is {abs(seconds) / MINUTE_SECONDS:.0f} minutes {side} the fleet's, so its "
        "reports would be of another time: set it (`chronyc makestep`), and join with the same "
        "token"
    )


def used_by(token: JoinRecord, key: str, now: datetime) -> JoinRecord:
    """Return the record of a token that a machine of this key has used."""
    return token if token.agent_key == key else replace(token, agent_key=key, used_at=now)
