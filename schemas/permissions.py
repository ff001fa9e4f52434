"""Permissions of each role on the bus, derived from the subjects, streams, durables and types.

Agents, users, services and the streams have an account each (`schemas.account_shares`). Each
service may publish its own messages and pull from its own durables; each agent publishes under its
own node only; viewers read everything and write nothing. `services.bus.nats.nats_accounts`
turns this into the server's configuration; docs/permissions.md describes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from schemas import (
    fleet_events,
    gateway_permissions,
    node_events,
    pool_events,
    region_permissions,
    subjects,
)
from schemas.account_rules import NODE_TAG, POOL_TAG, Account, Rules, acknowledgements
from schemas.join_tokens import JOIN_ORDERS, JOIN_SUBJECTS
from schemas.messages import publisher
from schemas.operations import (
    CHANGES,
    ORDERS,
    REPORT_WORK_DONE,
    SWEEP,
    Change,
    Role,
    ServiceOrder,
    orders_of,
)
from schemas.stream_specs import DurableSpec
from schemas.topology import (
    BUCKETS,
    DURABLES,
    EVENTS,
    EVERY_STREAM,
    HEARTBEATS,
    INTAKE,
    LEASES,
    NODES,
    OBJECT_BUCKETS,
    SAGAS,
    SINKS,
)

SERVICES: Final = ("pool-manager", "health-monitor", "provisioner", "notifier", "metrics")
AGENT: Final = "agent"
BOOTSTRAP: Final = "bootstrap"
"""Role of a node that is new, or was away for long: it may request its agent's credentials."""
POD: Final = "pod"
"""Role that the agents in pods of a pool's nodes share: each may request its node's credentials,
and proves by its pod's token which node that is."""
OPERATOR: Final = "operator"
POOL_ADMIN: Final = "pool-admin"
"""Role of an operator who may also create and remove pools: the HTTP API's `admin`."""
VIEWER: Final = "viewer"
ADMIN: Final = "admin"
GATEWAY: Final = "gateway"
"""Role of the HTTP gateway, which requests changes in the names of those who use it. It is in the
users' account: what reaches it from outside must not reach the services."""
REGION: Final = "region"
"""Role of a region's server: it passes on what its agents publish, and commands to them."""
SCHEDULER: Final = "scheduler"
"""Role of a workload system: it may say that work has left a node, and nothing else."""
SINK_READER: Final = "sink-reader"
"""Role of a program that reads what event sinks of type `subject` are sent, and nothing else."""
USER_ROLES: Final = (VIEWER, SCHEDULER, SINK_READER, OPERATOR, POOL_ADMIN, ADMIN)
"""Roles of people, and of programs beside the fleet; `navarch nats-config user add` gives them."""
WORK_DONE: Final = REPORT_WORK_DONE.name
PLUGIN_SWITCH: Final = "plugin-switch"
"""The order that takes a plugin out, or begins with it again."""
BUS_ORDERS: Final = (PLUGIN_SWITCH, *JOIN_ORDERS)
"""Orders of operators that the HTTP API lacks."""
CLI: Final = "cli"
"""Name of the inbox of `navarch` on a bus without accounts."""
USER_NAME: Final = "{{name()}}"
"""The server substitutes the user's name."""
USER_KEY: Final = "{{subject()}}"
"""The server substitutes the user's public key."""
SETS_UP: Final = "pool-manager"
"""The service that creates streams and changes their limits."""
RECREATES: Final = "notifier"
"""The service that watches what is stored, and creates a stream again that was deleted."""
BEGINS_HEARTBEATS: Final = "health-monitor"
"""The service that creates HEARTBEATS again after all servers have restarted."""
WATCHES_DURABLES: Final = "metrics"
"""The service that reads how far behind every durable is."""
DELIVERS: Final = "notifier"
"""The service that delivers to event sinks, whose durables are in the configuration alone."""
MAY_REQUEST: Final[Mapping[Role, tuple[str, ...]]] = {
    "operator": (OPERATOR, POOL_ADMIN),
    "admin": (POOL_ADMIN,),
}
"""Role that an operation declares -> users' roles on the bus that may request it."""
RESULTS: Final = ("succeeded", "failed", "undo-succeeded", "undo-failed")
"""Statuses that a participant appends for the steps it performs."""
NODE_COMMANDS: Final = f"{subjects.ROOT}.node.*.*.command.>"
ALSO_PUBLISHED: Final[Mapping[str, tuple[str, ...]]] = {
    # It publishes faults for telemetry levels, and that heartbeats arrive late.
    # It makes room in INTAKE, and has EVENTS copy it again.
    "health-monitor": (
        subjects.node_event_wildcard("fault"),
        subjects.fleet_event("lag"),
        f"$JS.API.STREAM.PURGE.{INTAKE.name}",
        f"$JS.API.STREAM.LEADER.STEPDOWN.{EVENTS.name}",
    ),
    "notifier": (
        # It removes what floods the history (`services.notifier.flood_watch`).
        f"$JS.API.STREAM.PURGE.{EVENTS.name}",
        subjects.SINKS,
        # The names of its event sinks' durables are in the configuration alone.
        f"$JS.API.CONSUMER.NAMES.{EVENTS.name}",
        *(
            f"$JS.API.CONSUMER.{call}.{EVENTS.name}.*"
            for call in ("DURABLE.CREATE", "INFO", "DELETE")
        ),
        f"$JS.ACK.{EVENTS.name}.*.>",
        f"$JS.ACK.*.*.{EVENTS.name}.*.>",
    ),
    # It has instances recorded that a store which was rolled back does not know.
    "pool-manager": (
        f"$JS.API.STREAM.PURGE.{SAGAS.name}",
        subjects.order(SWEEP.name, "pool-manager"),
    ),
    # Providers' APIs announce what no agent reads.
    "provisioner": (NODE_COMMANDS, subjects.node_event_wildcard("provider-notice")),
}
"""Service -> subjects that do not follow from the types and the topology."""
ALSO_ANSWERED: Final[Mapping[str, tuple[str, ...]]] = {
    "provisioner": (subjects.ENROLL, subjects.ENROLL_POD, *JOIN_SUBJECTS),
    "pool-manager": (subjects.order_wildcard(PLUGIN_SWITCH),),
}
"""Service -> requests it answers beside queries and orders."""
ASKED: Final = tuple(subjects.query(each.name) for each in ORDERS if each.is_query)
"""Queries that ask a provider or a workload system, or try a node there: operators', too."""
SERVICE_QUERIES: Final = (
    subjects.query("adopt-node"),
    subjects.query("disconnect-node"),
    subjects.query("propose-removal"),
    subjects.query("retire-node"),
    f"{subjects.query('sweep-now')}.*",
    *ASKED,
)
"""Queries that do something: services' own, denied to users."""
AGENT_BYTES_MAX: Final = 65_536
"""Of one message of an agent; samples of 16 GPUs have 17,000."""
AGENT_SUBSCRIPTIONS_MAX: Final = 64
REQUEST_BYTES_MAX: Final = 262_144
"""Of one message of an operator."""
CONNECTIONS_MAX: Final[Mapping[str, int]] = {"agents": 40_000, "users": 1_000}
"""Of an account: below the 65,536 of a server, so that services always find room."""
REPLIES: Final = "_R_.>"
"""Where the server has the answers to requests from other accounts sent; its words are random."""


def owner(durable: DurableSpec) -> str:
    """The service that a durable belongs to: the first word of its description."""
    return durable.description.partition(":")[0]


def in_name_of(user: str, by: str) -> str:
    """Return who makes a request: a user, or the caller for whom the gateway asks.

    The gateway alone says for whom: it has authenticated that caller itself.
    """
    return f"{by or 'unknown'} via {user}" if user == GATEWAY else user


def durables_of(service: str) -> list[DurableSpec]:
    """The durables that a service pulls from, and creates."""
    return [each for each in DURABLES if owner(each) == service]


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
    """Inbox of a role's replies; only that role may subscribe."""
    return f"_INBOX.{role}"


def node_inbox(pool: str, node: str) -> str:
    """Return the inbox of one node's agent."""
    return f"_INBOX.node.{pool}.{node}"


def user_inbox(public_key: str) -> str:
    """Inbox of one user of the command line: of its own key, so that no other user can listen."""
    return f"_INBOX.user.{public_key}"


def bootstrap_inbox(pool: str, node: str) -> str:
    """Inbox of a node that has only its bootstrap credentials."""
    return f"_INBOX.bootstrap.{pool}.{node}"


def pod_inbox(pool: str) -> str:
    """Inbox of agents in pods that have no credentials of their own: what is answered is public."""
    return f"_INBOX.pod.{pool}"


def rules() -> dict[str, Rules]:
    """Return the permissions of every role, by the role's name."""
    found = {service: _service(service) for service in SERVICES}
    viewer = _viewer()
    found[VIEWER] = viewer
    for role in (OPERATOR, POOL_ADMIN):
        found[role] = msgspec.structs.replace(
            viewer,
            publish=(*viewer.publish, *_requests(role)),
            publish_not=tuple(each for each in SERVICE_QUERIES if each not in ASKED),
        )
    box = f"{user_inbox(USER_KEY)}.>"
    found[SCHEDULER] = Rules(
        account=Account.USERS,
        publish=(f"{subjects.ROOT}.order.{WORK_DONE}.{USER_NAME}", box),
        subscribe=(box,),
        payload_bytes_max=REQUEST_BYTES_MAX,
    )
    found[SINK_READER] = _sink_reader()
    found[GATEWAY] = gateway_permissions.gateway(
        GATEWAY, f"{inbox(GATEWAY)}.>", SERVICES, facts_of(GATEWAY), REQUEST_BYTES_MAX
    )
    found[ADMIN] = Rules(publish=(">",), subscribe=(">",))
    found[AGENT] = _agent()
    found[BOOTSTRAP] = _enrolling(
        bootstrap_inbox(POOL_TAG, NODE_TAG), f"{subjects.ROOT}.enroll.{POOL_TAG}.{NODE_TAG}"
    )
    found[POD] = _enrolling(pod_inbox(POOL_TAG), f"{subjects.ROOT}.enroll-pod.{POOL_TAG}.*")
    found[REGION] = region_permissions.region(found[AGENT])
    return found


# --- roles ---------------------------------------------------------------------------------------

BATCH_READS: Final = ("$JS.API.DIRECT.GET.*", "$JS.API.DIRECT.GET.*.>")
STREAM_READS: Final = ("$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*")
READS: Final = ("$JS.API.INFO", *STREAM_READS, "$JS.API.CONSUMER.INFO.*.*")
_FOLLOWS: Final = tuple(
    f"$JS.API.CONSUMER.{call}"
    for each in EVERY_STREAM
    if each.retention == "limits"
    for call in (f"CREATE.{each.name}.*", f"CREATE.{each.name}.*.>", f"MSG.NEXT.{each.name}.*")
)
"""Services follow by ephemeral consumers of their own; of a work queue that would remove messages.
Users must not: a consumer can have its messages delivered to any subject of its account."""
LISTS: Final = (
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.LIST.*",
)


def _service(name: str) -> Rules:
    own = durables_of(name)
    watched = DURABLES if name == WATCHES_DURABLES else own
    return Rules(
        account=Account.SERVICES,
        publish=(
            *STREAM_READS,
            *BATCH_READS,
            *_FOLLOWS,
            *(f"$JS.API.CONSUMER.INFO.{each.stream}.{each.name}" for each in watched),
            *(f"$JS.API.CONSUMER.MSG.NEXT.{each.stream}.{each.name}" for each in own),
            *_sets_up(name),
            *(f"$JS.API.CONSUMER.DURABLE.CREATE.{each.stream}.{each.name}" for each in own),
            *acknowledgements(own),
            *(subjects.dead(each.stream, each.name) for each in own),
            *(f"$KV.{each.name}.>" for each in BUCKETS if each.writer == name),
            *_objects(name),
            f"$KV.{LEASES.name}.{name}.>",
            *facts_of(name),
            *_sagas(name),
            *(
                f"{subjects.ROOT}.timer.schedule.{name}.>"
                for each in own
                if subjects.timer_due_wildcard(name) in each.filters
            ),
            subjects.QUERIES,
            *ALSO_PUBLISHED.get(name, ()),
            "_INBOX.>",
            REPLIES,
        ),
        publish_not=tuple(
            _not_touching([each for each in DURABLES if owner(each) != name], name == DELIVERS)
        ),
        subscribe=(
            f"{inbox(name)}.>",
            "$SRV.>",
            subjects.QUERIES,
            subjects.service_logs(name),
            *ALSO_ANSWERED.get(name, ()),
            *map(subjects.order_wildcard, orders_of(name)),
        ),
    )


def _viewer() -> Rules:
    box = f"{user_inbox(USER_KEY)}.>"
    return Rules(
        account=Account.USERS,
        publish=(
            *(*READS, *BATCH_READS, *LISTS, "$SRV.>"),
            subjects.QUERIES,
            box,
        ),
        publish_not=SERVICE_QUERIES,
        subscribe=(box, f"{subjects.ROOT}.>", "$KV.>"),
        # Requests of other users of the account, which the fleet's services answer.
        subscribe_not=(
            *(subjects.QUERIES, subjects.POOL_REQUESTS, subjects.ORDERS),
            *(NODE_COMMANDS, subjects.LOGS, subjects.GATEWAY_LOGS),
        ),
        payload_bytes_max=REQUEST_BYTES_MAX,
    )


def _requests(role: str) -> tuple[str, ...]:
    """Return the subjects on which a role requests changes, and commands agents."""
    may = [each for each in (*CHANGES, *ORDERS) if role in MAY_REQUEST[each.role]]
    verbs = [each.name for each in may if isinstance(each, Change)]
    orders = [each.name for each in may if isinstance(each, ServiceOrder) and not each.is_query]
    return (
        # The name at the end is the server's word on who asks; headers are not stored.
        *(f"{subjects.ROOT}.pool.*.request.{each}.{USER_NAME}" for each in verbs),
        *(f"{subjects.ROOT}.order.{each}.{USER_NAME}" for each in (*orders, *BUS_ORDERS)),
        *(NODE_COMMANDS, subjects.LOGS, subjects.GATEWAY_LOGS),
    )


def _sink_reader() -> Rules:
    box = f"{user_inbox(USER_KEY)}.>"
    return Rules(
        account=Account.USERS,
        publish=(
            *(f"$JS.API.{call}.{SINKS.name}" for call in ("STREAM.INFO", "STREAM.MSG.GET")),
            *(f"$JS.API.DIRECT.GET.{SINKS.name}{rest}" for rest in ("", ".>")),
            box,
        ),
        subscribe=(box, subjects.SINKS),
        payload_bytes_max=REQUEST_BYTES_MAX,
    )


def _enrolling(inbox_: str, subject: str) -> Rules:
    """A node that may do nothing but request its credentials."""
    box = f"{inbox_}.>"
    return Rules(
        account=Account.AGENTS,
        publish=(subject, box),
        subscribe=(box,),
        payload_bytes_max=AGENT_BYTES_MAX,
        subscriptions_max=AGENT_SUBSCRIPTIONS_MAX,
    )


def _agent() -> Rules:
    place = f"{subjects.ROOT}.node.{POOL_TAG}.{NODE_TAG}"
    key = f"{POOL_TAG}.{NODE_TAG}"
    box = f"{node_inbox(POOL_TAG, NODE_TAG)}.>"
    return Rules(
        account=Account.AGENTS,
        publish=(
            f"{place}.telemetry",
            *(f"{place}.event.{fact}" for fact in node_events.FACTS_OF_AGENTS),
            # It renews its credentials.
            f"{subjects.ROOT}.enroll.{POOL_TAG}.{NODE_TAG}",
            # Its own tools send it commands over the bus.
            f"{place}.command.>",
            f"$KV.{HEARTBEATS.name}.{key}",
            f"$JS.API.DIRECT.GET.KV_{NODES.name}.$KV.{NODES.name}.{key}",
            box,
            REPLIES,
        ),
        subscribe=(f"{place}.command.>", box),
        payload_bytes_max=AGENT_BYTES_MAX,
        subscriptions_max=AGENT_SUBSCRIPTIONS_MAX,
    )


def facts_of(service: str) -> Iterable[str]:
    """Events of the service's own types; any service may publish those of `runtime`."""
    own = (service,) if service == GATEWAY else (service, "runtime")
    for kind, fact in node_events.FACTS.items():
        if publisher(kind) in own:
            yield subjects.node_event_wildcard(fact)
    for each, fact in pool_events.FACTS.items():
        if publisher(each) in own:
            yield subjects.pool_event_wildcard(fact)
    for other, fact in fleet_events.FACTS.items():
        if publisher(other) in own:
            yield subjects.fleet_event(fact)


def _sets_up(service: str) -> Iterable[str]:
    """By name: another stream could copy its messages to any subject."""
    if service in (SETS_UP, RECREATES):
        yield from (f"$JS.API.STREAM.CREATE.{each.name}" for each in EVERY_STREAM)
    if service == BEGINS_HEARTBEATS:
        yield f"$JS.API.STREAM.CREATE.{HEARTBEATS.stream().name}"
    if service == SETS_UP:
        yield from (f"$JS.API.STREAM.UPDATE.{each.name}" for each in EVERY_STREAM)


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


def _not_touching(durables: Iterable[DurableSpec], sinks: bool) -> Iterator[str]:
    """Pulling from and changing the durables of others; `sinks`: for the service that has them."""
    for each in durables:
        place = f"{each.stream}.{each.name}"
        yield f"$JS.API.CONSUMER.MSG.NEXT.{place}"
        yield f"$JS.API.CONSUMER.CREATE.{place}"
        yield f"$JS.API.CONSUMER.CREATE.{place}.>"
        if sinks and each.stream == EVENTS.name:
            yield from (
                f"$JS.API.CONSUMER.{call}.{place}" for call in ("DURABLE.CREATE", "INFO", "DELETE")
            )
            yield from acknowledgements([each])
