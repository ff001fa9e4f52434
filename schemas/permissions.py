"""Permissions of each role on the bus, derived from the subjects, streams, durables and types.

Each service may publish its own messages and pull from its own durables; each agent publishes under
its own node only; readers read everything and write nothing. `services.bus.nats.nats_accounts`
turns this into the server's configuration; docs/operate.md describes it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from schemas import fleet_events, node_events, pool_events, subjects
from schemas.messages import Message
from schemas.topology import (
    BUCKETS,
    DURABLES,
    HEARTBEATS,
    LEASES,
    NODES,
    OBJECT_BUCKETS,
    SAGAS,
    DurableSpec,
)

SERVICES: Final = ("pool-manager", "health-monitor", "provisioner", "notifier", "metrics")
AGENT: Final = "agent"
BOOTSTRAP: Final = "bootstrap"
"""Role of a new node: it may request its agent's credentials and nothing else."""
OPERATOR: Final = "operator"
READER: Final = "reader"
ADMIN: Final = "admin"
CLI: Final = "cli"
"""Name of the inbox of `navarch`, for all its users."""
POOL_TAG: Final = "{{tag(pool)}}"
NODE_TAG: Final = "{{tag(node)}}"
"""The server substitutes the tag of the node's own credentials."""
RESULTS: Final = ("succeeded", "failed", "undo-succeeded", "undo-failed")
"""Statuses that a participant appends for the steps it performs."""
ALSO_PUBLISHED: Final[Mapping[str, tuple[str, ...]]] = {
    # It publishes faults for telemetry levels, and that heartbeats arrive late.
    "health-monitor": (subjects.node_event_wildcard("fault"), subjects.fleet_event("lag")),
    "pool-manager": (f"$JS.API.STREAM.PURGE.{SAGAS.name}",),
    "provisioner": (f"{subjects.ROOT}.node.*.*.command.>",),
}
"""Service -> subjects that do not follow from the types and the topology."""
ALSO_ANSWERED: Final[Mapping[str, tuple[str, ...]]] = {"provisioner": (subjects.ENROLL,)}
"""Service -> requests it answers beside queries."""
ORDERS: Final = (
    subjects.query("hardware-add"),
    subjects.query("hardware-forget"),
    subjects.query("adopt-node"),
    subjects.query("sweep-now"),
    f"{subjects.query('sweep-now')}.*",
)
"""Queries that change something: denied to readers."""
REPLY_SECONDS: Final = 7_200.0
"""Time limit of a reply; diagnostics of a host take long."""
REPLIES_MAX: Final = 16


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of one role; a denial wins."""

    publish: tuple[str, ...] = ()
    publish_not: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    answers: bool = False
    """May reply to any request it receives."""


def owner(durable: DurableSpec) -> str:
    """The service that a durable belongs to: the first word of its description."""
    return durable.description.partition(":")[0]


def steps_of(service: str) -> tuple[str, ...]:
    """The saga steps that a service performs, from the filters of its durables."""
    parsed = (
        subjects.parse_saga(each)
        for durable in DURABLES
        if owner(durable) == service and durable.stream == SAGAS.name
        for each in durable.filters
    )
    found = (each.step for each in parsed if each is not None and each.step != "*")
    return tuple(dict.fromkeys(found))


def inbox(role: str) -> str:
    """Inbox of a role's replies; only that role and readers may subscribe."""
    return f"_INBOX.{role}"


def node_inbox(pool: str, node: str) -> str:
    """Inbox of one node's agent."""
    return f"_INBOX.node.{pool}.{node}"


def bootstrap_inbox(pool: str, node: str) -> str:
    """Inbox of a node that has only its bootstrap credentials."""
    return f"_INBOX.bootstrap.{pool}.{node}"


def rules() -> dict[str, Rules]:
    """Role -> permissions."""
    found = {service: _service(service) for service in SERVICES}
    reader = _reader()
    found[READER] = reader
    asks = (f"{subjects.ROOT}.pool.*.request.>", f"{subjects.ROOT}.node.*.*.command.>")
    found[OPERATOR] = msgspec.structs.replace(
        reader,
        publish=(*reader.publish, *asks),
        publish_not=tuple(each for each in reader.publish_not if each not in ORDERS),
    )
    found[ADMIN] = Rules(publish=(">",), subscribe=(">",))
    found[AGENT] = _agent()
    found[BOOTSTRAP] = _bootstrap()
    return found


# --- roles ---------------------------------------------------------------------------------------

_READS: Final = (
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.*",
    "$JS.API.DIRECT.GET.*.>",
    "$JS.API.CONSUMER.INFO.*.*",
    "$JS.API.CONSUMER.CREATE.*.*",
    "$JS.API.CONSUMER.CREATE.*.*.>",
    "$JS.API.CONSUMER.MSG.NEXT.*.*",
)
"""Followers create ephemeral consumers of their own."""
_SETS_UP: Final = (
    "$JS.API.STREAM.CREATE.*",
    "$JS.API.STREAM.UPDATE.*",
    "$JS.API.CONSUMER.DURABLE.CREATE.*.*",
)
"""Every service creates missing streams and durables at start."""
_LISTS: Final = (
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.LIST.*",
)


def _service(name: str) -> Rules:
    own = [each for each in DURABLES if owner(each) == name]
    return Rules(
        publish=(
            *_READS,
            *_SETS_UP,
            *_acknowledges(own),
            *(subjects.dead(each.stream, each.name) for each in own),
            *(f"$KV.{each.name}.>" for each in BUCKETS if each.writer == name),
            *_objects(name),
            f"$KV.{LEASES.name}.>",
            *_facts(name),
            *_sagas(name),
            *(
                f"{subjects.ROOT}.timer.schedule.{name}.>"
                for each in own
                if subjects.timer_due_wildcard(name) in each.filters
            ),
            f"{subjects.ROOT}.query.>",
            *ALSO_PUBLISHED.get(name, ()),
            f"{inbox(name)}.>",
        ),
        publish_not=_not_touching(each for each in DURABLES if owner(each) != name),
        subscribe=(
            f"{inbox(name)}.>",
            "$SRV.>",
            f"{subjects.ROOT}.query.>",
            *ALSO_ANSWERED.get(name, ()),
        ),
        answers=True,
    )


def _reader() -> Rules:
    return Rules(
        publish=(*_READS, *_LISTS, "$SRV.>", f"{subjects.ROOT}.query.>", f"{inbox(CLI)}.>"),
        publish_not=(*_not_touching(DURABLES), *ORDERS),
        subscribe=(f"{subjects.ROOT}.>", "$KV.>", "$O.>", "$JS.EVENT.ADVISORY.>", "_INBOX.>"),
    )


def _bootstrap() -> Rules:
    box = f"{bootstrap_inbox(POOL_TAG, NODE_TAG)}.>"
    return Rules(publish=(f"{subjects.ROOT}.enroll.{POOL_TAG}.{NODE_TAG}", box), subscribe=(box,))


def _agent() -> Rules:
    place = f"{subjects.ROOT}.node.{POOL_TAG}.{NODE_TAG}"
    key = f"{POOL_TAG}.{NODE_TAG}"
    facts = [fact for kind, fact in node_events.FACTS.items() if _source(kind) == AGENT]
    box = f"{node_inbox(POOL_TAG, NODE_TAG)}.>"
    return Rules(
        publish=(
            f"{place}.telemetry",
            *(f"{place}.event.{fact}" for fact in facts),
            # Its own tools send it commands over the bus.
            f"{place}.command.>",
            f"$KV.{HEARTBEATS.name}.{key}",
            f"$JS.API.DIRECT.GET.KV_{NODES.name}.$KV.{NODES.name}.{key}",
            box,
        ),
        subscribe=(f"{place}.command.>", box),
        answers=True,
    )


# --- parts ---------------------------------------------------------------------------------------


def _source(kind: type[Message]) -> str:
    """The publisher of a type: `io.navarch.<source>.event.v1.<name>`."""
    tag = str(kind.__struct_config__.tag)
    return tag.split(".")[2].replace("_", "-")


def _facts(service: str) -> Iterable[str]:
    """Events of the service's own types; any service may publish those of `runtime`."""
    for kind, fact in node_events.FACTS.items():
        if _source(kind) in (service, "runtime"):
            yield subjects.node_event_wildcard(fact)
    for each, fact in pool_events.FACTS.items():
        if _source(each) in (service, "runtime"):
            yield subjects.pool_event_wildcard(fact)
    for other, fact in fleet_events.FACTS.items():
        if _source(other) in (service, "runtime"):
            yield subjects.fleet_event(fact)


def _objects(service: str) -> Iterable[str]:
    """Its objects; storing one again purges the chunks of the old one."""
    for each in OBJECT_BUCKETS:
        if each.writer == service:
            yield f"$O.{each.name}.>"
            yield f"$JS.API.STREAM.PURGE.{each.stream_name}"


def _sagas(service: str) -> Iterable[str]:
    if service == "pool-manager":
        return (subjects.SAGAS,)
    return (
        subjects.saga_step_wildcard(step, result)
        for step in steps_of(service)
        for result in RESULTS
    )


def _acknowledges(durables: Iterable[DurableSpec]) -> Iterable[str]:
    """Acknowledgements, in both forms of the server's reply subject."""
    for each in durables:
        yield f"$JS.ACK.{each.stream}.{each.name}.>"
        yield f"$JS.ACK.*.*.{each.stream}.{each.name}.>"


def _not_touching(durables: Iterable[DurableSpec]) -> tuple[str, ...]:
    """Pulling from and changing the durables of other services."""
    return tuple(
        subject
        for each in durables
        for subject in (
            f"$JS.API.CONSUMER.MSG.NEXT.{each.stream}.{each.name}",
            f"$JS.API.CONSUMER.CREATE.{each.stream}.{each.name}",
            f"$JS.API.CONSUMER.CREATE.{each.stream}.{each.name}.>",
        )
    )
