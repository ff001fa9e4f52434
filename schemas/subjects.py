"""Every subject of Navarch: a builder, a wildcard and a parser each. Nobody else writes one.

Builders check their tokens and raise InvalidNameError; parsers return None for a subject that is
not theirs, because what arrives from outside is not a programming error.
"""

from typing import Final, NamedTuple

from schemas.names import saga_token, token

ROOT: Final = "navarch.v1"
"""First tokens of every subject; the version is the subject tree's, not a message's."""

# --- nodes ---------------------------------------------------------------------------------------

NODE_EVENTS: Final = f"{ROOT}.node.*.*.event.>"
"""Every fact about every node."""

TELEMETRY: Final = f"{ROOT}.node.*.*.telemetry"
"""Every NVML sample of every node."""


class NodeSubject(NamedTuple):
    """A parsed node subject: `fact` is the event's name, or `telemetry`."""

    pool: str
    node: str
    fact: str


def telemetry(pool: str, node: str) -> str:
    """Where an agent publishes its node's samples."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.telemetry"


def node_event(pool: str, node: str, fact: str) -> str:
    """Where a fact about a node is published."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.event.{token(fact, 'fact')}"


def telemetry_of(pool: str) -> str:
    """The samples of one pool's nodes."""
    return f"{ROOT}.node.{token(pool, 'pool')}.*.telemetry"


def node_event_wildcard(fact: str) -> str:
    """One kind of fact, about any node."""
    return f"{ROOT}.node.*.*.event.{token(fact, 'fact')}"


def node_events_of(pool: str, node: str) -> str:
    """Every fact about one node."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.event.>"


def node_events_in(pool: str) -> str:
    """Every fact about the nodes of one pool."""
    return f"{ROOT}.node.{token(pool, 'pool')}.*.event.>"


def node_events_named(node: str) -> str:
    """Every fact about one node, whatever pool it is in."""
    return f"{ROOT}.node.*.{token(node, 'node')}.event.>"


def node_command(pool: str, node: str, verb: str) -> str:
    """Where an agent answers requests: `diagnose`, `reset-gpu`, `reboot`."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.command.{token(verb, 'verb')}"


def parse_node(subject: str) -> NodeSubject | None:
    """Read a node's telemetry or event subject."""
    match subject.split("."):
        case ["navarch", "v1", "node", pool, node, "telemetry"]:
            return NodeSubject(pool, node, "telemetry")
        case ["navarch", "v1", "node", pool, node, "event", fact]:
            return NodeSubject(pool, node, fact)
        case _:
            return None


# --- credentials of new nodes --------------------------------------------------------------------

ENROLL: Final = f"{ROOT}.enroll.*.*"
"""Where new nodes' agents ask the provisioner for their own credentials."""


def enroll(pool: str, node: str) -> str:
    """Where one node's agent asks: the only subject that its bootstrap credentials may use."""
    return f"{ROOT}.enroll.{token(pool, 'pool')}.{token(node, 'node')}"


def parse_enroll(subject: str) -> tuple[str, str] | None:
    """Read it: pool and node."""
    match subject.split("."):
        case ["navarch", "v1", "enroll", pool, node]:
            return pool, node
        case _:
            return None


# --- pools ---------------------------------------------------------------------------------------

POOL_EVENTS: Final = f"{ROOT}.pool.*.event.>"
"""Every fact about every pool."""

POOL_REQUESTS: Final = f"{ROOT}.pool.*.request.>"
"""What people and schedulers ask of pools: scale, cordon, uncordon, drain, replace."""


class PoolSubject(NamedTuple):
    """A parsed pool subject: `name` is the event's fact or the request's verb."""

    pool: str
    name: str


def pool_event(pool: str, fact: str) -> str:
    """Where a fact about a pool is published."""
    return f"{ROOT}.pool.{token(pool, 'pool')}.event.{token(fact, 'fact')}"


def pool_events_of(pool: str) -> str:
    """Every fact about one pool."""
    return f"{ROOT}.pool.{token(pool, 'pool')}.event.>"


def pool_event_wildcard(fact: str) -> str:
    """One kind of fact, about any pool."""
    return f"{ROOT}.pool.*.event.{token(fact, 'fact')}"


def pool_request(pool: str, verb: str) -> str:
    """Where a request to a pool is published."""
    return f"{ROOT}.pool.{token(pool, 'pool')}.request.{token(verb, 'verb')}"


def parse_pool_request(subject: str) -> PoolSubject | None:
    """Read a pool's request subject."""
    match subject.split("."):
        case ["navarch", "v1", "pool", pool, "request", verb]:
            return PoolSubject(pool, verb)
        case _:
            return None


def parse_pool_event(subject: str) -> PoolSubject | None:
    """Read a pool's event subject."""
    match subject.split("."):
        case ["navarch", "v1", "pool", pool, "event", fact]:
            return PoolSubject(pool, fact)
        case _:
            return None


# --- the fleet's own services --------------------------------------------------------------------

FLEET_EVENTS: Final = f"{ROOT}.fleet.event.>"
"""Every fact about the fleet's own services."""


def fleet_event(fact: str) -> str:
    """Where a fact about the fleet's own services is published."""
    return f"{ROOT}.fleet.event.{token(fact, 'fact')}"


def parse_fleet_event(subject: str) -> str | None:
    """Read the fact of a fleet's event subject."""
    match subject.split("."):
        case ["navarch", "v1", "fleet", "event", fact]:
            return fact
        case _:
            return None


# --- sagas ---------------------------------------------------------------------------------------

SAGAS: Final = f"{ROOT}.saga.>"
"""Every saga's log, live."""


class SagaSubject(NamedTuple):
    """A parsed saga subject; `step` is `saga` for entries about the saga as a whole."""

    saga: str
    step: str
    status: str


def saga_entry(saga: str, step: str, status: str) -> str:
    """Where one entry of a saga's log is appended."""
    return f"{ROOT}.saga.{saga_token(saga)}.{token(step, 'step')}.{token(status, 'status')}"


def saga_tree(saga: str) -> str:
    """One saga's whole log; also the guard of every append to it."""
    return f"{ROOT}.saga.{saga_token(saga)}.>"


def saga_step_wildcard(step: str, status: str) -> str:
    """One status of one step, in any saga: what a participant consumes."""
    return f"{ROOT}.saga.*.{token(step, 'step')}.{token(status, 'status')}"


def parse_saga(subject: str) -> SagaSubject | None:
    """Read a saga entry's subject."""
    match subject.split("."):
        case ["navarch", "v1", "saga", saga, step, status]:
            return SagaSubject(saga, step, status)
        case _:
            return None


# --- timers --------------------------------------------------------------------------------------

TIMERS: Final = f"{ROOT}.timer.>"
"""Scheduled messages and what they fire into: one stream, as the server demands."""


def timer_schedule(owner: str, key: str) -> str:
    """Where a timer waits; publishing again under the same key replaces it."""
    return f"{ROOT}.timer.schedule.{token(owner, 'owner')}.{saga_token(key)}"


def timer_due(owner: str, key: str) -> str:
    """Where a timer fires."""
    return f"{ROOT}.timer.due.{token(owner, 'owner')}.{saga_token(key)}"


def timer_due_wildcard(owner: str) -> str:
    """Every timer of one owner that has fired."""
    return f"{ROOT}.timer.due.{token(owner, 'owner')}.>"


# --- dead letters and queries --------------------------------------------------------------------

DEAD: Final = f"{ROOT}.dead.>"
"""Every message that could not be used, with the reason."""

MAX_DELIVERIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"
"""The server's word that a message was delivered too often; it names the stream sequence."""


def dead(stream: str, durable: str) -> str:
    """Where a durable's dead letters go."""
    return f"{ROOT}.dead.{token(stream.lower(), 'stream')}.{token(durable, 'durable')}"


def query(name: str) -> str:
    """Where a question about the fleet is answered (request/reply, NATS services API)."""
    return f"{ROOT}.query.{token(name, 'query')}"


def replica_query(name: str, replica: str) -> str:
    """Where one replica answers a question that only it can: whoever is asked passes it on."""
    return f"{query(name)}.{token(replica, 'replica')}"
