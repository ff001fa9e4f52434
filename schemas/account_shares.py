"""Declares which requests pass between accounts: to what is stored, and to the services.

The streams have an account of their own. The server checks no reply subjects, so a client in one
account with the streams can have an answer stored under any subject; in another account the answer
is delivered there, where nothing is stored.
"""

from typing import Final

from schemas import subjects
from schemas.account_rules import Account, Share
from schemas.node_events import FACTS_OF_AGENTS
from schemas.permissions import (
    BATCH_READS,
    GATEWAY,
    LISTS,
    NODE_COMMANDS,
    STREAM_READS,
    facts_of,
)
from schemas.region_permissions import NAMES
from schemas.topology import EVENTS, HEARTBEATS, NODES

ANSWER_SECONDS: Final = 600.0
"""Time limit of a service's answer; a sweep asks every provider."""
COMMAND_SECONDS: Final = 7_200.0
"""Time limit of an agent's answer; diagnostics of a host take long."""
MANY_SECONDS: Final = 10.0
"""After the last of many answers the server forgets the request; they follow one another."""
_AGENTS: Final = (Account.AGENTS,)
_SERVICES: Final = (Account.SERVICES,)
_USERS: Final = (Account.USERS,)
_READERS: Final = (Account.USERS, Account.SERVICES)
_ASKERS: Final = (Account.USERS, Account.FLEET)
"""Who asks services. The administrator, in the streams' account, may do anything."""


def shares() -> list[Share]:
    """Return all subjects that one account offers to another."""
    return [*_stored(), *_answered(), *_copies()]


def _stored() -> list[Share]:
    """What is stored, and the calls about it: the streams' account offers both."""
    store = Account.FLEET
    once = (
        *((each, _SERVICES) for each in _STORED),
        (subjects.TELEMETRY, _AGENTS),
        (subjects.POOL_REQUESTS, _USERS),
        *((each, _SERVICES) for each in _CALLS),
        *((each, _READERS) for each in (*STREAM_READS, "$JS.API.CONSUMER.INFO.*.*")),
        # Without this import the server takes all calls for calls to the account's own JetStream.
        ("$JS.API.INFO", _READERS),
        *((each, _READERS) for each in LISTS),
    )
    parts = (
        *((subjects.node_event_wildcard(each), _AGENTS) for each in FACTS_OF_AGENTS),
        (f"$KV.{HEARTBEATS.name}.*.*", _AGENTS),
        (f"$JS.API.DIRECT.GET.KV_{NODES.name}.$KV.{NODES.name}.*.*", _AGENTS),
        *((each, _USERS) for each in facts_of(GATEWAY)),
    )
    renamed = ((own, each) for each, own in NAMES.items())
    batch, single = BATCH_READS
    once = (*once, (single, _READERS))
    many = ((batch, _READERS), (_PULLS, _SERVICES))
    return [
        *(Share(subject=each, owner=store, importers=to) for each, to in once),
        *(Share(subject=each, owner=store, importers=to, exported=False) for each, to in parts),
        *(
            Share(subject=each, local_subject=own, owner=store, importers=_AGENTS, exported=False)
            for own, each in renamed
        ),
        *(
            Share(subject=each, owner=store, importers=to, many=True, reply_seconds=MANY_SECONDS)
            for each, to in many
        ),
    ]


def _answered() -> list[Share]:
    """What services and agents answer."""
    services = Account.SERVICES
    asked = (
        *((each, _AGENTS) for each in (subjects.ENROLL, subjects.ENROLL_POD)),
        *((each, _ASKERS) for each in (subjects.QUERIES, subjects.ORDERS)),
    )
    return [
        *(
            Share(subject=each, owner=services, importers=to, reply_seconds=ANSWER_SECONDS)
            for each, to in asked
        ),
        *(
            Share(
                subject=each,
                owner=services,
                importers=_ASKERS,
                many=True,
                reply_seconds=MANY_SECONDS,
            )
            for each in ("$SRV.>", subjects.LOGS)
        ),
        Share(
            subject=subjects.GATEWAY_LOGS,
            owner=Account.USERS,
            importers=(Account.FLEET,),
            many=True,
            reply_seconds=MANY_SECONDS,
        ),
        Share(
            subject=NODE_COMMANDS,
            owner=Account.AGENTS,
            importers=(Account.SERVICES, *_ASKERS),
            reply_seconds=COMMAND_SECONDS,
        ),
    ]


def _copies() -> list[Share]:
    """Stored messages, as they are stored: users have no consumers."""
    return [
        Share(
            subject=f"{subjects.LIVE}.{each}",
            local_subject=each,
            owner=Account.FLEET,
            importers=_USERS,
            live=True,
        )
        for each in (f"{subjects.ROOT}.>", "$KV.>")
    ]


_STORED: Final = (
    *(subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS),
    *(subjects.SAGAS, subjects.TIMERS, subjects.DEAD, subjects.SINKS, "$KV.>", "$O.>"),
)
"""What services store; which of them may store what is in their permissions."""
_CALLS: Final = (
    *("$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*", "$JS.API.STREAM.PURGE.*"),
    f"$JS.API.STREAM.LEADER.STEPDOWN.{EVENTS.name}",
    *("$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DURABLE.CREATE.*.*", "$JS.ACK.>"),
    "$JS.API.CONSUMER.DELETE.*.*",
)
_PULLS: Final = "$JS.API.CONSUMER.MSG.NEXT.*.*"
