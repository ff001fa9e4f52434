"""Builds and parses every subject of Navarch, with wildcards; no other module spells one.

No other module spells one.

Builders check their tokens and raise InvalidNameError; parsers return None for a subject of another
form, because external input is not a programming error.
"""

from typing import Final, NamedTuple

from schemas.names import saga_token, token

ROOT: Final = "navarch.v1"
"""First tokens of every subject; the version is the subject tree's, not a message's."""

LIVE: Final = "navarch.live"
"""Before the subject of each stored message's copy, which users of other accounts may hear."""

# --- nodes ---------------------------------------------------------------------------------------

NODE_EVENTS: Final = f"{ROOT}.node.*.*.event.>"
"""Every event about every node."""

TELEMETRY: Final = f"{ROOT}.node.*.*.telemetry"
"""Every NVML sample of every node."""


class NodeSubject(NamedTuple):
    """A parsed node subject; `fact` is the event's name, or `telemetry`."""

    pool: str
    node: str
    fact: str


def telemetry(pool: str, node: str) -> str:
    """Return the subject of a node's telemetry."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.telemetry"


def node_event(pool: str, node: str, fact: str) -> str:
    """Return the subject of an event about a node."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.event.{token(fact, 'fact')}"


def node_event_in(pool: str, fact: str) -> str:
    """Return the wildcard of events of one kind about any node of a pool."""
    return f"{ROOT}.node.{token(pool, 'pool')}.*.event.{token(fact, 'fact')}"


def telemetry_of(pool: str) -> str:
    """Return the wildcard of the telemetry of one pool's nodes."""
    return f"{ROOT}.node.{token(pool, 'pool')}.*.telemetry"


def node_event_wildcard(fact: str) -> str:
    """Return the wildcard of one event about any node."""
    return f"{ROOT}.node.*.*.event.{token(fact, 'fact')}"


def of_kind(wildcard: str, fact: str) -> str:
    """Return the wildcard of one event, from that of every event about the same."""
    return f"{wildcard.removesuffix('>')}{token(fact, 'fact')}"


def node_events_of(pool: str, node: str) -> str:
    """Return the wildcard of every event about one node."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.event.>"


def node_events_in(pool: str) -> str:
    """Return the wildcard of every event about the nodes of one pool."""
    return f"{ROOT}.node.{token(pool, 'pool')}.*.event.>"


def node_events_named(node: str) -> str:
    """Return the wildcard of every event about one node, in any pool."""
    return f"{ROOT}.node.*.{token(node, 'node')}.event.>"


def node_command(pool: str, node: str, verb: str) -> str:
    """Return the subject of commands to an agent: `diagnose`, `logs`, `reset-gpu`, `reboot`."""
    return f"{ROOT}.node.{token(pool, 'pool')}.{token(node, 'node')}.command.{token(verb, 'verb')}"


def parse_node(subject: str) -> NodeSubject | None:
    """Parse a node's telemetry or event subject."""
    match subject.split("."):
        case ["navarch", "v1", "node", pool, node, "telemetry"]:
            return NodeSubject(pool, node, "telemetry")
        case ["navarch", "v1", "node", pool, node, "event", fact]:
            return NodeSubject(pool, node, fact)
        case _:
            return None


# --- credentials of new nodes --------------------------------------------------------------------

ENROLL: Final = f"{ROOT}.enroll.*.*"
"""Enrollment requests of new nodes, answered by the provisioner."""


def enroll(pool: str, node: str) -> str:
    """Subject of one node's enrollment, the only one its bootstrap credentials permit."""
    return f"{ROOT}.enroll.{token(pool, 'pool')}.{token(node, 'node')}"


ENROLL_POD: Final = f"{ROOT}.enroll-pod.*.*"
"""The same of agents in pods, whose credentials are of a whole pool: a token proves the node."""


def enroll_pod(pool: str, node: str) -> str:
    """Subject of the enrollment of a node whose agent runs in a pod."""
    return f"{ROOT}.enroll-pod.{token(pool, 'pool')}.{token(node, 'node')}"


def parse_enroll(subject: str) -> tuple[str, str] | None:
    """Parse an enrollment subject of either kind into pool and node."""
    match subject.split("."):
        case ["navarch", "v1", "enroll" | "enroll-pod", pool, node]:
            return pool, node
        case _:
            return None


# --- pools ---------------------------------------------------------------------------------------

POOL_EVENTS: Final = f"{ROOT}.pool.*.event.>"
"""Every event about every pool."""

POOL_REQUESTS: Final = f"{ROOT}.pool.*.request.>"
"""Requests of operators: scale, cordon, uncordon, drain, replace …"""


class PoolSubject(NamedTuple):
    """A parsed pool subject; `name` is the event's name."""

    pool: str
    name: str


class PoolRequestSubject(NamedTuple):
    """Holds the tokens of a parsed subject of a request to a pool."""

    pool: str
    verb: str
    by: str
    """The user, as the server has checked where it asks for credentials; empty: unnamed."""


def pool_event(pool: str, fact: str) -> str:
    """Return the subject of an event about a pool."""
    return f"{ROOT}.pool.{token(pool, 'pool')}.event.{token(fact, 'fact')}"


def pool_events_of(pool: str) -> str:
    """Return the wildcard of every event about one pool."""
    return f"{ROOT}.pool.{token(pool, 'pool')}.event.>"


def pool_event_wildcard(fact: str) -> str:
    """Return the wildcard of one event about any pool."""
    return f"{ROOT}.pool.*.event.{token(fact, 'fact')}"


def pool_request(pool: str, verb: str, by: str = "") -> str:
    """Return the subject of a request to a pool, of the user `by`."""
    user = f".{token(by, 'user')}" if by else ""
    return f"{ROOT}.pool.{token(pool, 'pool')}.request.{token(verb, 'verb')}{user}"


def parse_pool_request(subject: str) -> PoolRequestSubject | None:
    """Parse a pool's request subject."""
    match subject.split("."):
        case ["navarch", "v1", "pool", pool, "request", verb]:
            return PoolRequestSubject(pool, verb, "")
        case ["navarch", "v1", "pool", pool, "request", verb, by]:
            return PoolRequestSubject(pool, verb, by)
        case _:
            return None


def parse_pool_event(subject: str) -> PoolSubject | None:
    """Parse a pool's event subject."""
    match subject.split("."):
        case ["navarch", "v1", "pool", pool, "event", fact]:
            return PoolSubject(pool, fact)
        case _:
            return None


# --- the fleet's own services --------------------------------------------------------------------

FLEET_EVENTS: Final = f"{ROOT}.fleet.event.>"
"""Every event about the fleet's own services."""


def fleet_event(fact: str) -> str:
    """Return the subject of an event about the fleet's own services."""
    return f"{ROOT}.fleet.event.{token(fact, 'fact')}"


def parse_fleet_event(subject: str) -> str | None:
    """Parse a fleet event subject into the event's name."""
    match subject.split("."):
        case ["navarch", "v1", "fleet", "event", fact]:
            return fact
        case _:
            return None


# --- sagas ---------------------------------------------------------------------------------------

SAGAS: Final = f"{ROOT}.saga.>"
"""Every saga's log."""


class SagaSubject(NamedTuple):
    """A parsed saga subject; `step` is `saga` for entries about the whole saga."""

    saga: str
    step: str
    status: str


def saga_entry(saga: str, step: str, status: str) -> str:
    """Return the subject of one saga log entry."""
    return f"{ROOT}.saga.{saga_token(saga)}.{token(step, 'step')}.{token(status, 'status')}"


def saga_tree(saga: str) -> str:
    """One saga's whole log; every append compares its last sequence."""
    return f"{ROOT}.saga.{saga_token(saga)}.>"


def saga_step_wildcard(step: str, status: str) -> str:
    """One status of one step, in any saga; consumed by participants."""
    return f"{ROOT}.saga.*.{token(step, 'step')}.{token(status, 'status')}"


def parse_saga(subject: str) -> SagaSubject | None:
    """Parse a saga entry's subject."""
    match subject.split("."):
        case ["navarch", "v1", "saga", saga, step, status]:
            return SagaSubject(saga, step, status)
        case _:
            return None


# --- timers --------------------------------------------------------------------------------------

TIMERS: Final = f"{ROOT}.timer.>"
"""Scheduled messages and their targets: one stream, as the server requires."""


def timer_schedule(owner: str, key: str) -> str:
    """Subject of a scheduled timer; publishing again under the same key replaces it."""
    return f"{ROOT}.timer.schedule.{token(owner, 'owner')}.{saga_token(key)}"


def timer_due(owner: str, key: str) -> str:
    """Subject on which a timer fires."""
    return f"{ROOT}.timer.due.{token(owner, 'owner')}.{saga_token(key)}"


def timer_due_wildcard(owner: str) -> str:
    """Return the wildcard of every fired timer of one owner."""
    return f"{ROOT}.timer.due.{token(owner, 'owner')}.>"


# --- dead letters and queries --------------------------------------------------------------------

DEAD: Final = f"{ROOT}.dead.>"
"""Every message that could not be processed, with the reason."""

MAX_DELIVERIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"
"""The server's advisory that a message exceeded its deliveries, with the stream sequence."""


def dead(stream: str, durable: str) -> str:
    """Return the subject of a durable's dead letters."""
    return f"{ROOT}.dead.{token(stream.lower(), 'stream')}.{token(durable, 'durable')}"


SINKS: Final = f"{ROOT}.sink.*"
"""What every event sink of type `subject` is sent."""


def sink(name: str) -> str:
    """Subject of what one event sink is sent, as CloudEvents."""
    return f"{ROOT}.sink.{token(name, 'sink')}"


ORDERS: Final = f"{ROOT}.order.*.*"
"""Requests that a service performs at once and answers; they end with the user's name."""


def order(name: str, by: str) -> str:
    """Return the subject of an order of the user `by`."""
    return f"{ROOT}.order.{token(name, 'order')}.{token(by, 'user')}"


def order_wildcard(name: str) -> str:
    """Return the wildcard of one order of any user."""
    return f"{ROOT}.order.{token(name, 'order')}.*"


def parse_order(subject: str) -> tuple[str, str] | None:
    """Parse an order's subject into its name and its user."""
    match subject.split("."):
        case ["navarch", "v1", "order", name, by]:
            return name, by
        case _:
            return None


QUERIES: Final = f"{ROOT}.query.>"
"""Every query about the fleet."""


def query(name: str) -> str:
    """Subject of a query about the fleet (request/reply, NATS services API)."""
    return f"{ROOT}.query.{token(name, 'query')}"


def failures_query(service: str) -> str:
    """Subject of the query about what fails now in a service."""
    return query(f"failures-{service}")


def plugins_query(service: str) -> str:
    """Return the subject of the query about the plugins of a service."""
    return query(f"plugins-{service}")


LOGS: Final = f"{ROOT}.logs.*"
"""Requests for the log lines of a service, which each of its replicas answers."""


def service_logs(service: str) -> str:
    """Return the subject of requests for the log lines of a service."""
    return f"{ROOT}.logs.{token(service, 'service')}"


GATEWAY_LOGS: Final = f"{ROOT}.gateway-logs"
"""Requests for the log lines of the gateway. It answers in the users' account, which has it: what
comes from there must not look like a service's answer, so the subject is none of `LOGS`."""


def replica_query(name: str, replica: str) -> str:
    """Subject of a query that only one replica can answer; other replicas forward it."""
    return f"{query(name)}.{token(replica, 'replica')}"
